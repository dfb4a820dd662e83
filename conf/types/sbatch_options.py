"""The options of sbatch and srun, by all of their names, and what each is to a job of ours: `sbatch_options.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from conf.errors import ConfigError
from conf.folders import package_content

PREFIXES = ("SBATCH_", "SLURM_", "SRUN_")
WARNING = re.compile(r"(R:)?((SIG)?USR2|12)(@\d+)?", re.IGNORECASE)
"""The one signal that trials do not die of, with or without the seconds before the time limit."""

ALL_EXPORTED = re.compile(r"ALL(,.*)?")


Refusal: TypeAlias = tuple[str, str]
"""Why an option cannot be given for trials, and what to do instead."""


class OptionTable(NamedTuple):
    """One tool's options by each of their names, and the lists of `sbatch_options.yaml`, where each is explained."""

    names: Mapping[str, str]
    keys: Mapping[str, str]
    refused: Mapping[str, Refusal]
    devices: frozenset[str]
    rivals: Mapping[str, frozenset[str]]
    heard: frozenset[str]
    flags: frozenset[str]
    variables: Mapping[str, str]

    def option(self, name: str) -> str:
        """The option that a name means, which may be cut short; a name of no option is a plugin's, and stays.

        Raises ConfigError where it is cut so short that it means several.
        """
        plain = name.lstrip("-").replace("_", "-")
        if plain in self.names:
            return self.names[plain]
        meant = {option for full, option in self.names.items() if len(full) > 1 and full.startswith(plain)}
        if len(meant) > 1:
            problem = f"is short for several options: {', '.join(sorted(meant))}"
            raise ConfigError("slurm.extra_sbatch", name, problem, "Write the option's whole name.")
        return next(iter(meant), plain)

    def refusal(self, option: str, value: object) -> Refusal | None:
        """Why an option is refused, with its value in the remedy; None if it is not."""
        problem, remedy = self.refused.get(option, ("", ""))
        return (problem, remedy.replace("VALUE", str(value))) if problem else None

    def option_of_variable(self, variable: str) -> str | None:
        """The option that an environment variable sets; None if it sets none."""
        prefix = next((each for each in PREFIXES if variable.startswith(each)), None)
        if prefix is None:
            return None
        bare = variable.removeprefix(prefix)
        return self.names.get(self.variables.get(bare) or bare.lower().replace("_", "-"))


@cache
def sbatch_table() -> OptionTable:
    """The options of sbatch."""
    tree = package_content("sbatch_options.yaml")
    refused = {
        option: (group["problem"], group["remedy"])
        for group in tree["refused"]
        for option in _names(group["options"].split()).values()
    }
    groups = [frozenset(line.split()) for line in tree["rivals"]]
    words = [tree["free"], tree["devices"], *(group["options"] for group in tree["refused"])]
    return OptionTable(
        names=_names([*tree["keys"], *" ".join(words).split()]),
        keys={word.partition("/")[0]: key for word, key in tree["keys"].items()},
        refused=refused,
        devices=frozenset(_names(tree["devices"].split()).values()),
        rivals={option: group for group in groups for option in group},
        heard=frozenset(tree["heard"].split()),
        flags=frozenset(tree["flags"].split()),
        variables=tree["variables"],
    )


@cache
def srun_table() -> OptionTable:
    """The options of srun: those of sbatch, and its own, whose short forms come first."""
    table, own = sbatch_table(), package_content("sbatch_options.yaml")["srun"]
    refused = dict.fromkeys(
        _names(own["refused"].split()).values(),
        ("changes the tasks of a trial, or where their output goes", "Leave it out."),
    )
    names = {**table.names, **_names([*own["free"].split(), *own["refused"].split()])}
    # What has sbatch do something else may be of use to srun, which says no number.
    harmless = ("quiet", "verbose", "wait")
    kept = {option: why for option, why in table.refused.items() if option not in harmless}
    return table._replace(names=names, refused={**kept, **refused})


def _names(words: Iterable[str]) -> dict[str, str]:
    """The first name of each word, `name/other`, by all of its names."""
    return {name: word.split("/")[0] for word in words for name in word.split("/")}


def free_options(options: Mapping[str, str | int | bool], beside: str) -> dict[str, str | int | bool]:
    """The options under their own names: `--mem_per_gpu` is mem-per-gpu, and `w` is nodelist.

    Args:
        beside: where the keys stand that are to be used instead, such as `slurm.`.

    Raises:
        ConfigError: one is not free, or two names mean the same option.
    """
    table, given = sbatch_table(), dict[str, str]()
    for name, value in options.items():
        option = table.option(name)
        if option in given:
            problem = f"is the same option as {given[option]}"
            raise ConfigError(f"slurm.extra_sbatch.{name}", value, problem, "Leave out one of them.")
        given[option] = name
        if (refusal := _refusal(table, option, value, beside)) is not None:
            raise ConfigError(f"slurm.extra_sbatch.{name}", value, *refusal)
    return {option: options[name] for option, name in given.items()}


def remedy_for_option(key: str, value: object) -> str | None:
    """What to write for an option of sbatch that stands among the keys of `slurm`; None for any other key."""
    group, _, name = key.partition(".")
    table, plain = sbatch_table(), name.replace("_", "-")
    option = table.names.get(plain) if group == "slurm" and len(plain) > 1 else None
    if option is None:
        return None
    if (own := table.keys.get(option)) is not None:
        return f"Did you mean slurm.{own}?"
    if option in table.devices - {"gres"}:
        return "GPUs follow from the trial, and slurm.gpu_request says how they are asked for. Leave it out."
    if (refusal := table.refusal(option, value)) is not None:
        return f"As an option of sbatch it {refusal[0]}. {refusal[1]}"
    return f"It is an option of sbatch. Use slurm.extra_sbatch.{option}={value}."


def _refusal(table: OptionTable, option: str, value: str | int | bool, beside: str) -> Refusal | None:
    if value is False:  # which leaves the option out
        return None
    if (key := table.keys.get(option)) is not None:
        unit = "MINUTES" if option == "time" else value
        return ("has a key of its own", f"Use {beside}{key}={unit}.")
    if option == "signal" and not WARNING.fullmatch(str(value)):
        seconds = str(value).partition("@")[2] or "60"
        problem = "would end trials: USR2 is the warning that they listen to, or at least survive"
        return (problem, f"Use slurm.extra_sbatch.signal=USR2@{seconds}.")
    return table.refusal(option, value)


def srun_options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option among srun's arguments, with its words: `-n 4` and `--ntasks=4` are ntasks.

    Raises ConfigError where the first word is no option, or an option is cut too short.
    """
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            groups.append([])
        elif not groups:
            raise ConfigError("slurm.srun_args", word, "is not an option of srun", "Begin each with a dash.")
        groups[-1].append(word)
    for first, *others in groups:
        name = first.partition("=")[0] if first.startswith("--") else first[:2]
        yield srun_table().option(name), [first, *others]


def require_free_srun_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of srun as they are.

    Raises ConfigError where one would change what our tasks are, or is no option.
    """
    for option, given in srun_options(words):
        text = " ".join(given)
        if option == "export" and not ALL_EXPORTED.fullmatch(_value(given)):
            remedy = "Leave it out, or use --export=ALL,NAME=VALUE."
            raise ConfigError("slurm.srun_args", text, "hides from trials the variables that their script sets", remedy)
        if (refusal := srun_table().refusal(option, _value(given))) is not None:
            raise ConfigError("slurm.srun_args", text, *refusal)
    return words


def _value(given: Sequence[str]) -> str:
    return given[0].partition("=")[2] if "=" in given[0] else " ".join(given[1:])
