"""A sweep without a file: a command with names in braces, and the values that each of them takes, as overrides.

At the end, the file of such a sweep, written as a person would.

lr=1e-4..1e-1:log   every value between two ends, here even in the logarithm
width=8..64:step=8  a range in steps; `num=5` takes so many values of it; whole ends mean whole numbers
batch=4,8,16        a list: numbers, true and false, texts (in quotes where they have commas)
epochs=10           one value
gpus=1,2,4          of one trial each, which is an axis too
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import ValidationError

from conf.compose.complaints import as_hydra_spells
from conf.compose.load import compose, load_cluster, require_name
from conf.compose.tree import part_at
from conf.errors import ConfigError
from conf.folders import OPTION, conf_dir, folders, groups, options
from conf.nearest import listed, most_like
from conf.overrides import WITHOUT_FILE, Overrides, command_line, override_text, quoted_text, value_text
from conf.plan.templates import TOKEN
from conf.plan.trainer_call import JOB_NAMES
from conf.types.axes import SweepAxis
from conf.types.schema import Value
from conf.types.sweep_spec import Named
from conf.types.trainer_spec import PARAM, program_name
from conf.yaml_text import yaml_content

COMMAND = "--command"
SEED = "seed"
SEED_KEY = "training.seed"
"""Trials that differ in it alone are runs of one point."""
OF_JOBS = ("gpus", "nodes", "minutes")
RESERVED = frozenset(
    {*OF_JOBS, "cluster", "slurm", "search", "sweep", "budget", "controller", "launcher", "notify", "tracking"}
    | {"output_dir", "trainer", "checkpoint", "watch", "profile"}
)
"""Words that choose where and how trials run, so that they can be no names in a command."""
WORLD = "=parallel.world_size"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(r"(?=[^:]*\d)(?P<low>[^,:/]*?)\.\.(?P<high>[^,:/]*)(?P<how>(?::.*)?)")
FORMS = "{0}=1,2,4 (a list), {0}=0.1..0.9 or {0}=1e-4..1e-1:log (a range)"
Axis = list[Value] | dict[str, Value]


@dataclass
class ScriptSweep:
    """What a command line says of a sweep without a file.

    Attributes:
        axes: by dotted key, a list of values or the fields of a range.
        fixed: values of the program's own that do not vary, by dotted key.
        others: the overrides among the words.
    """

    name: str
    command: list[str]
    flags: dict[str, str] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    fixed: dict[str, Value] = field(default_factory=dict)
    others: Overrides = field(default_factory=Overrides)

    def overrides(self, chosen: Sequence[str], max_trials: int | None) -> Overrides:
        """The sweep as overrides of the configuration, which records keep.

        Args:
            chosen: overrides of what is sought.

        Raises:
            ConfigError: the number of trials is needed, and was not given.
        """
        kind = self.others.stated_value("search") or self._search(max_trials)
        own = [
            f"sweep={WITHOUT_FILE}",
            f"sweep.name={self.name}",
            *([] if kind == "grid" else [f"search={kind}"]),
            f"trainer.command={_hydra(self.command)}",
            *(f"trainer.flags.{name}={quoted_text(text)}" for name, text in self.flags.items()),
            *(override_text(key, value) for key, value in self.fixed.items()),
            *([f"sweep.axes={_hydra(self.axes)}"] if self.axes else []),
            *chosen,
            *([] if max_trials is None else [f"sweep.max_trials={max_trials}"]),
        ]
        return Overrides.parse(own) + self.others.without_choice("search")

    def _search(self, max_trials: int | None) -> str:
        """A grid where all of its points may be tried, else a search that learns from the trials before."""
        size = 1
        for key, values in self.axes.items():
            axis = SweepAxis.model_validate(values)
            if axis.grid_values is None:
                if max_trials is None:
                    assert isinstance(values, dict), "a list has its values"
                    problem = "is a continuous range, and nothing says how many trials to run"
                    ends = f"{values['low']}..{values['high']}"
                    raise ConfigError(key.rsplit(".", 1)[-1], ends, problem, "Give --trials N, or :num=N values.")
                return "bayes"
            size *= len(axis.grid_values)
        return "bayes" if max_trials is not None and size > max_trials else "grid"


def script_sweep(command: str, words: Sequence[str], name: str | None = None) -> ScriptSweep:
    """Take a command line apart.

    Args:
        words: `NAME=VALUES` of each name in braces, `gpus` (an axis where there are several), `nodes`, `minutes`, and
            overrides.
        name: of the sweep; None takes that of the script.

    Raises:
        ConfigError: names the flag or word, its value and what to do.
    """
    parts = _words_of(command)
    sweep, names = ScriptSweep(name or program_name(parts), parts), _names_in(parts)
    if (conf_dir() / "sweep" / f"{sweep.name}.yaml").is_file():
        remedy = f"Give another before the values, as in `trisweep sweep my-{sweep.name} --command ...`."
        raise ConfigError("sweep.name", sweep.name, "is the name of a sweep of the package", remedy)
    told, others = dict[str, str](), list[str]()
    given = {word.partition("=")[0] for word in words}
    for word in words:
        key, equals, text = word.partition("=")
        if key in names and equals:
            told[key] = text
        else:
            _require_override(word, names, given)
            others.append(word)
    _require_all(names, told, parts)
    for key, text in told.items():
        dotted, axis = SEED_KEY if key == SEED else f"trainer.params.{key}", values_of(key, text)
        if isinstance(axis, list) and len(axis) == 1:
            sweep.fixed[dotted] = axis[0]
        else:
            sweep.axes[dotted] = axis
    sweep.command, sweep.flags = _templates(parts)
    gpus = next((word.removeprefix("gpus=").split(",") for word in others if word.startswith("gpus=")), [])
    if len(gpus) > 1:
        others = [word for word in others if not word.startswith("gpus=")]
        for each in gpus:
            list(_of_jobs([*others, f"gpus={each}"]))  # refuses a number that a trial alone could not have
        sweep.axes |= {"parallel.world_size": [int(each) for each in gpus], "batch.global_batch_size": [WORLD]}
    sweep.others = Overrides.parse(_of_jobs(others))
    return sweep


def objective_overrides(objectives: Sequence[str], *, maximize: bool, is_script: bool) -> list[str]:
    """The override that says what is sought: of a script every name but `loss` is one that it prints."""
    named = ("loss",) if is_script else get_args(Named)
    found = []
    for each in objectives:
        sign, name = ("max:", each.removeprefix("max:")) if maximize or each.startswith("max:") else ("", each)
        if not re.fullmatch(r"[A-Za-z_]\S*", name):
            remedy = "Give the name under which the program prints it, such as --objective loss."
            raise ConfigError("--objective", each, "is not the name of a figure", remedy)
        is_plain = (name in named and not sign) or ("." in name and not is_script)
        found.append(f"{sign}{name if is_plain else f'train.{name}'}")
    return [f"search.objective={_hydra(found)}"] if found else []


def values_of(name: str, text: str) -> Axis:
    """The values that a word gives a name: a list, or the fields of a range; see the module."""
    if not (of_range := RANGE.fullmatch(text)):
        return _listed_values(name, text)
    fields: dict[str, Value] = {end: _number(name, text, of_range[end]) for end in ("low", "high")}
    for how in filter(None, of_range["how"].split(":")):
        key, _, value = how.partition("=")
        if how == "log":
            fields["log"] = True
        elif key in ("step", "num"):
            fields[key] = _number(name, text, value)
        else:
            problem, remedy = (
                f"has :{how} after the range, which is not an option",
                "Write :log, :step=NUMBER or :num=N.",
            )
            raise ConfigError(name, text, problem, remedy)
    try:
        SweepAxis.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        remedy = first.get("ctx", {}).get("remedy") or f"Write {FORMS.format(name)}."
        raise ConfigError(name, text, first["msg"], remedy.replace("`low`", "LOW").replace("`high`", "HIGH")) from None
    return fields


def _listed_values(name: str, text: str) -> list[Value]:
    try:
        values = yaml_content(f"[{text}]", COMMAND)
    except ConfigError:
        values = None
    plain = isinstance(values, list) and values and all(isinstance(each, bool | int | float | str) for each in values)
    if not plain or values is None:
        remedy = f"Write {FORMS.format(name)}, and texts with commas or brackets in quotes."
        raise ConfigError(name, text, "cannot be read as values", remedy)
    return list(dict.fromkeys(values)) if not any(isinstance(each, bool) for each in values) else values


def _number(name: str, text: str, written: str) -> int | float:
    if not re.fullmatch(NUMBER, written):
        what = f"{written!r} is not a number" if written else "an end of the range is missing"
        raise ConfigError(name, text, what, f"Write LOW..HIGH, as in {name}=1e-4..1e-1:log.")
    return int(written) if re.fullmatch(r"[-+]?\d+", written) else float(written)


def _words_of(command: str) -> list[str]:
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise ConfigError(COMMAND, command, f"cannot be split into words ({error})", "Close the quotation.") from None
    if not parts:
        remedy = "Give the program, as in --command 'python train.py --lr {lr}'."
        raise ConfigError(COMMAND, command, "names no program", remedy)
    return parts


def _names_in(parts: Iterable[str]) -> list[str]:
    """The names in braces of the program's own, each once; `{--lr}` is the flag `--lr` with the value of `lr`."""
    found = dict[str, None]()
    for part in parts:
        for match in TOKEN.finditer(part):
            if match[0] in "{}":
                raise ConfigError(
                    COMMAND,
                    part,
                    f"has a {match[0]} without the other brace",
                    f"Write {match[0] * 2} for a brace itself.",
                )
            name = (match[1] or "").lstrip("-")
            if not name or "." in name or name in JOB_NAMES or match[0] == "{gpus}":
                continue
            if not re.fullmatch(PARAM, name) or name in RESERVED:
                what = "chooses where and how trials run" if name in RESERVED else "is not a name"
                remedy = "Use another name of letters, digits, dashes and underscores; {{ is a brace itself."
                raise ConfigError(COMMAND, part, f"{{{match[1]}}} {what}", remedy)
            found[name] = None
    return list(found)


def _templates(parts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of the command, and its flags: a truth is a flag that is there or not."""
    flags = {part[1:-1].lstrip("-"): part for part in parts if re.fullmatch(r"\{--[^{}]*\}", part)}
    words = [part for part in parts if part not in flags.values()]
    for name, key in {SEED: SEED_KEY, "gpus": "devices_per_node"}.items():
        words = [re.sub(rf"(?<!\{{)\{{{name}\}}", f"{{{key}}}", word) for word in words]
    return words, {
        part[1:-1].removeprefix("--"): f"{{{SEED_KEY if name == SEED else name}}}" for name, part in flags.items()
    }


def _require_override(word: str, names: Sequence[str], given: Collection[str]) -> None:
    """Raises ConfigError for a word that is neither an override nor one of a job's.

    Args:
        names: those in braces, of which `given` have values.
    """
    key, equals, text = word.partition("=")
    of_group = key.lstrip("+~").partition("@")[0]
    if equals and ("." in key or key in OF_JOBS or of_group in (*groups(), "output_dir", "mixed")):
        return
    if not equals and word.startswith("~"):
        return
    if not equals:
        raise ConfigError("sweep", word, "is not NAME=VALUES", f"Write {FORMS.format('lr')}.")
    meant = most_like(key, [name for name in names if name not in given])
    remedy = f"Did you mean {meant}={text}?" if meant else f"Put {{{key}}} into the command, as in --{key} {{{key}}}."
    braces = listed([f"{{{name}}}" for name in names], 8) or "no names in braces"
    raise ConfigError(key, text, f"has no place in {COMMAND}, which has {braces}", remedy)


def _require_all(names: Sequence[str], told: Mapping[str, str], parts: Sequence[str]) -> None:
    missing = next((name for name in names if name not in told and name != SEED), None)
    if missing is None:
        return
    raise ConfigError(COMMAND, shlex.join(parts), f"{{{missing}}} has no values", f"Give {FORMS.format(missing)}.")


def _of_jobs(words: Sequence[str]) -> Iterator[str]:
    """The overrides, with those in place of `gpus`, `nodes` and `minutes`: of one trial each."""
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    yield from (word for word in words if word.partition("=")[0] not in OF_JOBS)
    for key in OF_JOBS:
        if key in given and not re.fullmatch(r"[1-9]\d*", given[key]):
            raise ConfigError(key, given[key], "is not a whole number above 0", f"Write {key}=1.")
    if "minutes" in given:
        yield f"slurm.time_limit_minutes={given['minutes']}"
    if "gpus" not in given and "nodes" not in given:
        return
    nodes, cluster = int(given.get("nodes", 1)), given.get("cluster")
    whole = load_cluster(cluster).devices_per_node if cluster in options("cluster") else None
    gpus = int(given.get("gpus", (whole or 1) if nodes > 1 else 1))
    if whole is not None and gpus > whole:
        raise ConfigError("gpus", gpus, f"is more than a node of {cluster} has, which is {whole}", "Add nodes=N.")
    if nodes > 1 and gpus != whole:
        problem = f"does not fill {nodes} nodes of {whole} GPUs" if whole else f"is for {nodes} nodes without a cluster"
        raise ConfigError("gpus", gpus, problem, f"Give gpus={whole}, or nodes=1." if whole else "Add cluster=NAME.")
    yield f"parallel.world_size={nodes * gpus}"
    yield f"batch.global_batch_size={nodes * gpus}"


def _hydra(value: object) -> str:
    """A value in the grammar of Hydra's overrides, every text in quotes."""
    if isinstance(value, str):
        return quoted_text(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(entry)}" for key, entry in value.items()) + "}"
    return value_text(value)


SAVE = "--save"
OF_THE_LINE = frozenset({"output_dir"})
"""Overrides that say where results are written, which a command goes on to say."""


def save_script_sweep(path: Path, overrides: Overrides, *, dry_run: bool = False) -> tuple[str, str]:
    """Write the file of a sweep, and return its text and the command that runs it; a dry run writes nothing.

    Raises:
        ConfigError: the path is none that a sweep's file may have, is there already, or the sweep itself is wrong.
    """
    if path.suffix != ".yaml" or path.absolute().parent.name != "sweep":
        remedy = f"Give one in a folder `sweep` of your configuration, such as conf/sweep/{path.stem or 'fit'}.yaml."
        raise ConfigError(SAVE, str(path), "is not where a sweep's file is looked for", remedy)
    require_name(SAVE, path.stem)
    if path.exists():
        raise ConfigError(SAVE, str(path), "is there already", "Give another name, or remove it first.")
    named = overrides + Overrides.parse([f"sweep.name={path.stem}"])
    assert compose(named).settings  # reading them validates the sweep, before anything is written
    text = _file_text(named, path.stem)
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config_dir = path.absolute().parent.parent
    words = [] if config_dir in {each.absolute() for each in folders()} else [OPTION, str(path.parent.parent)]
    cluster = overrides.stated_value("cluster")
    chosen = [f"cluster={cluster}"] if cluster else []
    where = [each.text for each in overrides.of(OF_THE_LINE)]
    return text, command_line(["trisweep", "sweep", path.stem, *chosen, *where, *words])


def _file_text(overrides: Overrides, name: str) -> str:
    base = compose(Overrides.choosing("sweep", WITHOUT_FILE)).tree
    chosen = [f"override /trainer: {part_at(base, 'trainer.name')}"]
    content: dict[str, Any] = {"watch": {"hang_seconds": part_at(base, "watch.hang_seconds")}}
    for key, value in _values(overrides):
        if key == "sweep" or key in OF_THE_LINE:
            continue
        if key in groups():
            chosen.append(f"override /{key}: {value}")
        else:
            _put(content, key, value)
    content["sweep"] = {"name": name} | {key: value for key, value in content.pop("sweep").items() if key != "name"}
    lines = "".join(f"  - {each}\n" for each in chosen)
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return f"# Written by `trisweep sweep --command ... {SAVE}`.\ndefaults:\n{lines}{body}"


def _values(overrides: Overrides) -> Iterator[tuple[str, Any]]:
    parser = OverridesParser.create()
    for each in overrides:
        yield each.key, parser.parse_override(as_hydra_spells(each)).value()


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    content[leaf] = value
