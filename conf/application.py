"""A plain Hydra application over the configuration, for `python -m train_core`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from conf.load import CONF_DIR, Tree


def hydra_application(run: Callable[[Tree], None]) -> Callable[[], Any]:
    """`run` as a program whose arguments are Hydra's: overrides, `--cfg job`, `-m`.

    It is given the composed configuration as plain containers, which `conf.load.settings_of` validates.
    """

    @hydra.main(config_path=str(CONF_DIR), config_name="config", version_base="1.3")
    def main(config: DictConfig) -> None:
        run(cast("Tree", OmegaConf.to_container(config, resolve=True)))

    return cast("Callable[[], Any]", main)
