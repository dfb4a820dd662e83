"""`trisweep init`: make a folder for clusters, models and sweeps of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson
from cli.output.console import console, print_json, print_unwrapped, shown_path
from conf.errors import ConfigError, UsageError
from conf.folders import at_home, further_folders
from conf.units import count_of

if TYPE_CHECKING:
    from cli.commands.init.machine import DescribedMachine

Folder = Annotated[Path, typer.Argument(help="The folder; made if it is not there.")]
ClusterName = Annotated[
    str | None, typer.Option("--name", help="What to call the cluster; Slurm's own name of it, unless given.")
]
Like = Annotated[str | None, typer.Option(help="A cluster that yours is like (`trisweep list cluster`).")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Nodes that a job may take.")]
Partition = Annotated[str | None, typer.Option(help="The partition whose nodes the cluster's file describes.")]


def init(
    folder: Folder = Path(),
    name: ClusterName = None,
    partition: Partition = None,
    like: Like = None,
    nodes: Nodes = None,
    as_json: AsJson = False,
) -> None:
    """Make a folder of your own: a cluster, its Slurm settings, a model and a sweep, each with comments.

    Slurm is asked for partitions, devices and limits where it answers. Files that are there already are left alone.
    """
    from cli.commands.init.files import FOLDER, texts
    from cli.commands.init.machine import machine, partitions
    from conf.compose.complaints import require_option
    from conf.compose.load import load_cluster, require_name
    from launcher.slurm.cluster import read_site

    require_name("--name", name)
    if like is not None:
        require_option("cluster", like, "--like")
    folder = at_home(folder, "folder")
    if partition is not None and partition not in (names := partitions()):
        remedy = f"Use one of {', '.join(names)}." if names else "Leave it out, or run this where Slurm answers."
        raise ConfigError("--partition", partition, "is not a partition that Slurm knows", remedy)
    described = machine(name, partition, like, nodes)
    site = read_site() if described.offer else None
    written, kept = _write(folder, texts(described, site))
    with further_folders([folder / FOLDER]):
        load_cluster(described.name)  # what was written, or was there, composes
    if as_json:
        paths = {"written": written, "kept": kept}
        print_json("init", {"cluster": described.name, **paths, "asked_slurm": bool(described.offer)})
        return
    _print(folder, described, written, kept)


def _write(folder: Path, files: dict[str, str]) -> tuple[list[str], list[str]]:
    """Write what is not there, and return the paths of both kinds."""
    from train_core.trial.atomic import write_atomically

    written, kept = [], []
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() or path.is_symlink():
                kept.append(str(path.absolute()))
                continue
            write_atomically(path, text)
        except OSError as error:
            problem = f"{path} cannot be written ({error.strerror})"
            raise UsageError(problem, "Name another folder: `trisweep init FOLDER`.") from None
        written.append(str(path.absolute()))
    return written, kept


def _print(folder: Path, described: DescribedMachine, written: list[str], kept: list[str]) -> None:
    for path in written:
        print_unwrapped(f"Written: {shown_path(Path(path))}")
    for path in kept:
        print_unwrapped(f"Kept:    {shown_path(Path(path))}, which was there")
    offer = described.offer
    if described.is_like:
        console.print(f"Its numbers are those of cluster {described.similar.name}: correct what differs.")
    elif offer is None:
        console.print("No Slurm answered, so all numbers of the cluster are an example: correct them.")
    else:
        of = f"{count_of(described.num_nodes, 'node')} of {described.devices_per_node} x {described.called}"
        console.print(f"Slurm told of partition {offer.partition}: {of}. {_of_device(described)}")
    console.print("Next:")
    for command in _next_commands(folder, described):
        print_unwrapped(f"  {command}")


def _of_device(described: DescribedMachine) -> str:
    """What is to be corrected: a device that nothing describes, or that may be another of the same name, first."""
    from cli.commands.init.files import device_file

    if not described.is_known:
        file = device_file(described)
        return f"No file describes this device, so {file} holds another's figures: write its own there."
    if described.device_candidates:
        others = " or ".join(described.device_candidates)
        return f"It is taken for {described.device}, and may be {others}. Correct that, the links and the rest."
    return "Correct the links and the rest."


def _next_commands(folder: Path, described: DescribedMachine) -> list[str]:
    """Commands that work now, one after another."""
    from cli.commands.init.files import MODEL, SWEEP, precision_of

    cluster = f"cluster={described.name}"
    inside = [] if folder.absolute() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    through_slurm = [f"trisweep doctor {cluster}", f"trisweep calibrate {cluster}"] if described.offer else []
    sizes = f"precision={precision_of(described)} batch.global_batch_size=256"
    return [
        *inside,
        f"trisweep show {cluster}",
        f"trisweep plan {SWEEP}",
        f"trisweep plan --search model={MODEL} {cluster} {sizes}",
        *through_slurm,
        f"trisweep sweep {SWEEP} {cluster} --dry-run",
    ]
