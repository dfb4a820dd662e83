"""A plain Hydra application over this configuration: overrides, `--cfg job` and `-m` are Hydra's."""

from __future__ import annotations

import sys
from collections.abc import Callable

import hydra
from omegaconf import DictConfig, OmegaConf

from conf.folders import CONF_DIR, site_overrides
from conf.overrides import Override
from conf.tree import Tree
from conf.wrong_overrides import as_hydra_spells


def run_with_hydra(run: Callable[[Tree], None]) -> None:
    """Compose what the command line (`sys.argv`) says and call `run` with it, once for each job of a Hydra sweep.

    Hydra prints what it cannot compose itself. The tree is not yet validated: `settings_of` does that.
    """

    def job(config: DictConfig) -> None:
        run(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]

    given = [text if text.startswith("-") else as_hydra_spells(Override.parse(text)) for text in sys.argv[1:]]
    sys.argv[1:] = [*site_overrides(), *given]
    hydra.main(config_path=str(CONF_DIR), config_name="config", version_base="1.3")(job)()
