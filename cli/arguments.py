"""Arguments that several commands share, with what the shell offers for them."""

from __future__ import annotations

from typing import Annotated

import typer

from conf.load import options

GROUPS = (
    *("model", "cluster", "parallel", "batch", "precision", "data", "training", "checkpoint", "watch", "profile"),
    *("slurm", "tracking", "search"),
)


def complete_sweep(incomplete: str) -> list[str]:
    return [name for name in options("sweep") if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    group, separator, _ = incomplete.partition("=")
    if separator and group in GROUPS:
        return [f"{group}={option}" for option in options(group) if f"{group}={option}".startswith(incomplete)]
    return [f"{name}=" for name in GROUPS if name.startswith(incomplete)]


Sweep = Annotated[str, typer.Argument(help="A file of conf/sweep, such as 175b.", autocompletion=complete_sweep)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides: cluster=frontier batch.micro_batch_size=2", autocompletion=complete_override),
]
ShowConfig = Annotated[bool, typer.Option("--cfg", help="Print the composed configuration and stop.")]
