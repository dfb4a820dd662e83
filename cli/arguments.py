"""Arguments that several commands share, with what the shell offers for them, and their way into a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.text import Text

from cli.output.console import complaints
from conf.compose.model_from import expand_model_from
from conf.credentials import hide_credentials, shown_tree
from conf.errors import ConfigError, TrisweepError, UsageError
from conf.folders import further_folders, options
from conf.nearest import most_like
from conf.overrides import Overrides
from conf.types.schema import NAME

if TYPE_CHECKING:
    from conf.compose.load import Composition

TRAINERS = "trisweep, megatron-lm, megatron-deepspeed, megatron-core, fsdp, torchtitan, deepspeed"
"""Those of `costs`, written out because importing that takes longer than to answer `--help`."""


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Sweeps of all folders that the line names; none where one is wrong, because a shell asks."""
    try:
        with further_folders(context.params.get("config_dir") or ()):
            return [name for name in options("sweep") if name.startswith(incomplete)]
    except TrisweepError:
        return []


SweepName = Annotated[
    str, typer.Argument(help="A sweep of `trisweep list sweep`, such as 175b.", autocompletion=complete_sweep)
]
OverrideTexts = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides: cluster=frontier batch.micro_batch_size=2"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with one JSON document on stdout (docs/json.md).")]
ShowConfig = Annotated[bool, typer.Option("--cfg", help="Print the composed configuration and stop.")]


def overrides_of(sweep: str | None, texts: Sequence[str] | None) -> Overrides:
    """The overrides of a command line. Only here do its words become values."""
    if sweep == "":
        raise UsageError("The sweep's name is empty", "Give one, such as 175b.")
    own = expand_model_from(texts or ())
    if sweep is not None and (begun := _begun_without_file(sweep, own)) is not None:
        return begun + own
    chosen = Overrides() if sweep is None else Overrides.choosing("sweep", sweep)
    if sweep is not None and (second := own.stated_value("sweep")) is not None:
        raise UsageError(f"Two sweeps were named, {sweep} and sweep={second}", "Name one of them.")
    return chosen + own


def _begun_without_file(sweep: str, own: Overrides) -> Overrides | None:
    """The overrides of a sweep of this name that was begun with a command and without a file; None if none was."""
    if sweep in options("sweep") or not re.fullmatch(NAME, sweep):
        return None
    from conf.compose.load import compose
    from sweeps.folder.journal import History
    from sweeps.trial import SweepFolder

    output_dir = Path(compose(own.of({"output_dir"})).settings.output_dir).absolute()
    folder = SweepFolder.planned_last(output_dir, sweep, own.stated_value("cluster") or "*")
    if folder is None:
        begun_here = {*_names_begun(output_dir)} - {sweep, *options("sweep")}
        if (meant := most_like(sweep, [*begun_here, *options("sweep")])) in begun_here:
            raise ConfigError("sweep", sweep, f"was not begun in {output_dir.name}", f"Did you mean {meant}?")
        return None
    begun = History.kept_in(folder).begun
    if begun is None or not Overrides.parse(begun.overrides).is_without_file:
        return None
    from launcher.control.orders import overrides_at_begin

    return overrides_at_begin(folder, begun)


def _names_begun(output_dir: Path) -> Iterator[str]:
    from sweeps.trial import SweepFolder

    for folder in SweepFolder.started_in(output_dir, "*"):
        with suppress(UsageError):  # a damaged record tells no name
            yield folder.read_record().name


def composition_of(sweep: str | None, texts: Sequence[str] | None) -> Composition:
    """The configuration that the words of a command come to, with a warning for every figure that is unusual."""
    return composed(overrides_of(sweep, texts))


def composed(overrides: Overrides) -> Composition:
    """The configuration of a command's overrides, with the same warnings."""
    from conf.compose.load import compose

    composition = compose(overrides)
    warn_of_doubts(composition)
    return composition


def warn_of_doubts(composition: Composition) -> None:
    for doubt in composition.doubts:
        _warn(doubt)


@lru_cache  # a command that composes twice warns once
def _warn(doubt: str) -> None:
    complaints.print(Text(f"Warning: {doubt}", style="yellow"))


def print_config(composition: Composition) -> None:
    """Print the composed configuration, once it is valid; passwords are left out."""
    assert composition.settings  # reading them validates the configuration
    typer.echo(hide_credentials(yaml.safe_dump(shown_tree(composition.tree), sort_keys=False)), nl=False)
