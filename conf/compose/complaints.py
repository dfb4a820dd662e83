"""Complaints about values that are not of their type, and about overrides, without pydantic's and Hydra's own words.

Here stands too how Hydra wants right overrides spelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import eq
from typing import Any, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from conf.compose.kinds import field_names, kind_at, kinds_of
from conf.credentials import HIDDEN, shown_value
from conf.errors import ConfigError, all_at_once
from conf.folders import groups, options, own_folders
from conf.nearest import listed, most_like, nearest
from conf.overrides import (
    OTHER_TYPES,
    PLAIN,
    WITHOUT_FILE,
    Override,
    Overrides,
    command_line,
    for_a_shell,
    quoted_text,
    shell_word,
)
from conf.types.sbatch_options import remedy_for_option

Model = TypeVar("Model", bound=BaseModel)
KEY_ITSELF = "[key]"
"""Pydantic's addition to the place of a mapping's key that is wrong."""
CORRECT = "Correct it in the override, or in the file of its group."
WORDS_FOR_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
}
"""The kind of a value, by the first part of pydantic's name of the mistake, such as `int_type` and `int_parsing`."""
BRANCHES = ("str", "int", "float", "bool")
"""Pydantic's addition to the place of a value that may be of several types."""
SINGLE = "must be a single value (text, number, true/false or null)"
WORDS_OF_TYPES = {int: "a whole number", float: "a number", bool: "true or false", tuple: "a list", dict: "a mapping"}
CLOSERS = {"[": "]", "{": "}", "(": ")", "'": "'", '"': '"'}
"""What ends what a value opens."""
WORD_BEYOND_ASCII = re.compile(r"[^\s\[\]{}(),:'\"]*[^\x00-\x7f][^\s\[\]{}(),:'\"]*")
OF_HYDRA = {
    "launcher": "Jobs are submitted without it: give cluster=NAME of one of Slurm's, slurm.partition=NAME and such.",
    "sweeper": "Points come from the axes of a sweep's file, and search=bayes or search=random chooses among them.",
    "sweep": "Results are written below output_dir=PATH.",
    "run": "Results are written below output_dir=PATH.",
}
"""What takes the place of Hydra's own settings, by their group."""
MISTAKES_OF_KIND = ("type", "parsing", "from_float")
MOST_NAMED = 10
KEY = re.compile(r"[\w./@:-]+")
POINTS = tuple(f"{of}.{name}" for of in ("sweep", "sweep.proxy") for name in ("axes", "baseline"))
"""Mappings that are what the sweep is of, as lists of points are: what is stated of them is all of them."""
EXAMPLE = ("'a=b'", "c")
"""Entries of a list, of which one needs quotes."""
LOOK_LIKE = "Overrides look like cluster=frontier or batch.micro_batch_size=2."


def validate(model: type[Model], tree: Mapping[str, Any], prefix: str = "") -> Model:
    """`tree` validated as a `model`, with pydantic's complaints turned into a `ConfigError`."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise all_at_once(_complaints(error, model, prefix)) from None


def _complaints(error: ValidationError, model: type[BaseModel], prefix: str) -> list[ConfigError]:
    """Each of the mistakes, with its dotted key, its value and the remedy."""
    mistakes, found = error.errors(include_url=False), dict[tuple[int | str, ...], ConfigError]()
    for mistake in mistakes:
        place = mistake["loc"]
        # Of what is missing beside it a complaint tells too, and of a value of several types there is one for each.
        of = (*place[:-1], KEY_ITSELF) if mistake["type"] == "missing" else tuple(takewhile(_is_of_value, place))
        if not any(all(map(eq, of, known)) for known in found):  # one of them is the other, or lies in it
            found[of] = _complaint(mistake, mistakes, model, prefix)
    return list(found.values())


def _is_of_value(part: int | str) -> bool:
    """True of a part of a key; False of pydantic's word for a type among several."""
    return isinstance(part, int) or (part not in BRANCHES and "[" not in part)


def _complaint(
    complaint: ErrorDetails, mistakes: Sequence[ErrorDetails], model: type[BaseModel], prefix: str
) -> ConfigError:
    place = complaint["loc"]
    branches = {each["loc"][-1] for each in mistakes if each["loc"] and each["loc"][:-1] == place[:-1]}
    if place[-1:] and place[-1] in BRANCHES and len(branches) > 1:
        place = place[:-1]  # of a value of several types pydantic complains once for each
    parts = [str(part) for part in place if part != KEY_ITSELF]
    key = prefix + ".".join(parts)
    if complaint["type"] == "missing":
        alike = [each["loc"] for each in mistakes if each["type"] == "missing" and each["loc"][:-1] == place[:-1]]
        places = [each for each in alike if each != place]
        beside = listed([str(name) for *_, name in places], MOST_NAMED)
        also = f", and so {'are' if len(places) > 1 else 'is'} {beside}" if places else ""
        remedy = f"Add it: {key}=VALUE, or in the file of its group."
        if len(places) > 1 and len(parts) == 2 and "default" in options(parts[0]):
            remedy = "Begin the file with `defaults: [default, _self_]`, which gives each key a value."
        return ConfigError(key, None, f"is missing{also}", remedy)
    if complaint["type"] == "extra_forbidden":
        names = (*field_names(model, parts[:-1]), "defaults")
        siblings = [prefix + ".".join([*parts[:-1], name]) for name in names]
        # As `training: {seed: ...}` among the axes, and not a misspelt part of an axis that is called otherwise.
        group = parts[-2] if len(parts) > 1 and "." not in parts[-2] else ""
        if kind_at(group) is not None and (wrong := _entry_with_dots(key, complaint["input"])):
            return wrong
        remedy = remedy_for_option(key, complaint["input"]) or nearest(key, siblings)
        return ConfigError(key, complaint["input"], "is not a known key", remedy)
    if complaint["type"] == "model_type":  # pydantic's own words name a class of ours
        fields = ", ".join(field_names(model, parts))
        remedy = f"Give it values for {fields}." if fields else "Give it values by their names."
        if key.startswith("sweep.axes."):
            remedy = f"Write [{complaint['input']}] for a single value."
        return ConfigError(key, complaint["input"], "is not a group of values", remedy)
    remedy, value = complaint.get("ctx", {}).get("remedy", CORRECT), complaint["input"]
    if complaint["type"].startswith("int_") and isinstance(value, float) and value.is_integer():
        remedy = f"Write {int(value)}, without a point or an exponent."
    if complaint["type"] == "string_type" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        remedy = f"Write it as one text: {for_a_shell(key, str(shown_value(key, ','.join(value))))}"
    if complaint["type"] in ("tuple_type", "list_type") and isinstance(value, str):
        entries = value.splitlines() if parts[-1] == "setup" else value.split()
        listed_anew = ",".join(map(quoted_text, entries))
        remedy = f"Write it as a list: {shell_word(f'{key}=[{listed_anew}]')}"
    problem = SINGLE if branches == set(BRANCHES) else _problem(complaint)
    return ConfigError(key, shown_value(key, value), problem, remedy)


def _problem(complaint: ErrorDetails) -> str:
    kind, _, mistake = complaint["type"].partition("_")
    if kind in WORDS_FOR_KINDS and mistake in MISTAKES_OF_KIND:
        return f"must be {WORDS_FOR_KINDS[kind]}"
    if complaint["type"] == "too_short":
        return f"must have {complaint['ctx']['min_length']} or more entries"
    if complaint["type"] == "string_pattern_mismatch":  # names alone have a pattern
        return "must be a name: letters (a to z), digits, dots, underscores and dashes, a letter or a digit first"
    # pydantic speaks of an input; ours begin with a verb, since they follow the key and its value.
    words = complaint["msg"].replace("Input should", "must", 1).replace("String should", "must", 1)
    return words[0].lower() + words[1:]


def as_hydra_spells(override: Override) -> str:
    """The text that Hydra needs for an override, since people may write some of them shorter.

    The root lists no `sweep` by default, so Hydra wants a plus. Devices and efficiencies are chosen inside the cluster,
    so Hydra wants an at sign. A text needs quotes that Hydra would take for a number, or could not read. And so does a
    command that is given as a text, since a shell has taken its quotes and Hydra takes braces for mappings. A key that
    the chosen files leave to its default needs two pluses, as Hydra knows only what is written.
    """
    text, option = override.text, override.value or ""
    if _is_meant_as_text(override):
        text = f"{text.partition('=')[0]}={quoted_text(option)}"
    if text.startswith("trainer.command=") and "{" in text and not text.partition("=")[2].startswith(("[", "'", '"')):
        escaped = option.replace("\\", "\\\\").replace('"', '\\"')
        return f'trainer.command="{escaped}"'
    if text.startswith(("device=", "efficiency=")):
        return f"{override.key}@cluster.{text}"
    if _is_plain(override):
        return f"++{text}"
    return f"+{text}" if text.startswith("sweep=") else text


def _is_meant_as_text(override: Override) -> bool:
    """True of a value without quotes that its key takes as a text, and Hydra for something else."""
    written = override.text.partition("=")[2]
    kinds = frozenset([str]) if override.key in groups() else kinds_of(override.key)
    if str not in kinds or not written or re.match(r"['\"{]|null$", written) or {",", "$"} & {*written}:
        return False
    if OTHER_TYPES.fullmatch(written):
        return type(OverridesParser.create().parse_override(f"x={written}").value()) not in kinds
    return not PLAIN.fullmatch(written) and (written[0] != "[" or "|" in written)


def cleared_before(override: Override) -> list[str]:
    """Hydra's override that takes away what is there, where a stated mapping takes its place.

    Hydra merges mappings, so that an empty one would change nothing, and axes would multiply those of the sweep's file.
    A plus in front asks for merging.
    """
    value = (override.value or "").replace(" ", "")
    is_whole = value == "{}" or (override.key in POINTS and value.startswith("{"))
    return [f"++{override.key}=null"] if is_whole and _is_plain(override) else []


def _is_plain(override: Override) -> bool:
    """True of a value that is stated without a sign in front, of a key that there can be."""
    return override.text.startswith(override.key) and override.pins and kind_at(override.key) is not None


def wrong_alone(override: Override) -> ConfigError | None:
    """The error in an override that would be wrong beside any others; None if there is none."""
    key, value = override.key, override.value
    if value is None and override.text.startswith("~"):
        return None
    if value is None or not key:
        return ConfigError("override", override.text, f"states no {'key' if value else 'value'}", LOOK_LIKE)
    if not KEY.fullmatch(key):
        return ConfigError(key, value, "is not a key: a key is words with dots between them", LOOK_LIKE)
    if key in groups() and value not in options(key) and (key, value) != ("sweep", WITHOUT_FILE):
        return no_option(key, value)
    printable = str(shown_value(key, value))
    if wrong := _entry_with_dots(key, value):
        return wrong
    try:
        is_single = not OverridesParser.create().parse_override(as_hydra_spells(override)).is_sweep_override()
    except HydraException:
        return _unreadable(key, printable)
    return None if is_single else _several(key, printable)


def _entry_with_dots(key: str, value: object) -> ConfigError | None:
    """The error of an axis, or a value of the baseline, whose name was taken for mappings within each other."""
    of = next((points for points in POINTS if key.startswith(f"{points}.")), None)
    if of is None or "." not in (name := key.removeprefix(f"{of}.")):
        return None
    remedy = f"Write {shell_word(f'+{of}={{{name}: {value}}}')}."
    return ConfigError(key, value, f"is read as one mapping in another, and a name in {of} has dots of its own", remedy)


def require_no_hidden_mapping(overrides: Overrides) -> None:
    """Refuse `slurm` or `trainer` as one mapping: their secrets are hidden by their keys, and would be shown in it.

    Raises ConfigError where an override states such a mapping.
    """
    for each in overrides:
        if each.key in ("slurm", "trainer") and (each.value or "").lstrip().startswith("{"):
            problem = "sets the whole group in one value, in which secrets cannot be hidden"
            remedy = f"Give its values one by one, such as {each.key}.environment.NAME=VALUE."
            raise ConfigError(each.key, HIDDEN, problem, remedy)


def require_none_of_hydra(overrides: Overrides) -> None:
    """Raises ConfigError for settings of Hydra's own start of programs, which would change nothing here."""
    if wrong := next(filter(None, (wrong_of_hydra(each.key, each.value) for each in overrides)), None):
        raise wrong


def wrong_of_hydra(key: str, value: object, where: str = "") -> ConfigError | None:
    """The error in a key that is a setting of Hydra's; None of any other."""
    of, *inside = re.split("[/.]", key, maxsplit=2)
    if of != "hydra" or not inside:
        return None
    remedy = OF_HYDRA.get(inside[0], "Leave it out.")
    return ConfigError(key, value, f"is a setting of Hydra's, which starts nothing here{where}", remedy)


def require_option(group: str, value: str, key: str) -> None:
    """Raises ConfigError where a command's option, or a table's column, of that name names no file of the group."""
    if value not in options(group):
        raise no_option(group, value, key)


def no_option(group: str, value: str, key: str | None = None) -> ConfigError:
    """Return the refusal of what is no file of the group; `key` is what names it where that is not the group."""
    if "," in value and key is None:
        return _several(group, value)
    if group == "sweep" and "=" in value and key is None:
        remedy = "Name the sweep first, as in `trisweep sweep 175b cluster=frontier`."
        return ConfigError(group, value, "is not the name of a sweep", remedy)
    if (astray := _astray(group, value)) is not None:
        return astray
    meant = most_like(value, options(group))
    of = next((other for other in groups() if value in options(other)), None)
    see = f"; see `trisweep list {group}`" if len(options(group)) > MOST_NAMED else ""
    remedy = f"Did you mean {meant}?" if meant else f"Known: {listed(options(group), MOST_NAMED)}{see}."
    # An efficiency is called h100 too, but whoever writes cluster=h100 means dgx-h100.
    has_all_words = meant is not None and {*value.split("-")} <= {*meant.split("-")}
    if of is not None and not has_all_words:
        remedy = f"It is an option of group {of}: write {of}={value}."
    problem = "is not an option of this group" if key is None else f"is not a known {group}"
    return ConfigError(key or group, value, problem, remedy)


def _astray(group: str, value: str) -> ConfigError | None:
    """The error for a person's file of that name which is called .yml or lies in no folder of a group."""
    for folder in own_folders():
        for path in (*folder.glob("*.*"), *folder.glob("*/*.*")):
            is_option = path.suffix == ".yaml" and path.parent.name in groups()
            if path.stem == value and path.suffix.lower() in (".yml", ".yaml") and not is_option:
                remedy = f"Rename it: {command_line(['mv', str(path), str(folder / group / f'{value}.yaml')])}"
                return ConfigError(group, value, f"is found only in {path}, where no group looks for it", remedy)
    return None


def _unreadable(key: str, value: str) -> ConfigError:
    closed, kinds = _closed(value), kinds_of(key)
    if closed != value and _is_readable(closed):
        problem = "has brackets or quotes that do not match"
        return ConfigError(key, value, problem, f"Write {shell_word(f'{key}={closed}')}, if that is meant.")
    if key == "trainer.command" and "{" in value:
        remedy = "Quote a text with braces, and all of it for the shell: \"trainer.command=[train.py,'{world_size}']\"."
        return ConfigError(key, value, "cannot be read", remedy)
    quoted = WORD_BEYOND_ASCII.sub(lambda word: quoted_text(word[0]), value)
    if value[:1] in ("[", "{") and _is_readable(quoted):
        problem = "holds letters other than a to z that are not in quotes"
        return ConfigError(key, value, problem, f"Write {shell_word(f'{key}={quoted}')}.")
    problem = "holds characters that need quotes in an override"
    if value.startswith("["):
        remedy = f"Quote each entry, and the whole for the shell, as in {_quoted_list(key, value)}"
        return ConfigError(key, value, problem, remedy)
    if (words := [WORDS_OF_TYPES[kind] for kind in WORDS_OF_TYPES if kind in kinds]) and str not in kinds:
        return ConfigError(key, value, f"must be {' or '.join(words)}", CORRECT)
    return ConfigError(key, value, problem, f"Quote the value, and all of it for the shell: {for_a_shell(key, value)}")


def _is_readable(value: str) -> bool:
    try:
        OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return False
    return True


def _closed(value: str) -> str:
    """The value with the brackets and the quote closed that it opens, and without those that it closes alone."""
    kept, still_open = "", ""
    for at, character in enumerate(value):
        if still_open[-1:] in ("'", '"'):  # inside quotes, where a backslash takes the next quote's meaning
            if character == still_open[-1] and value[at - 1] != "\\":
                still_open = still_open[:-1]
        elif character in CLOSERS:
            still_open += CLOSERS[character]
        elif character in CLOSERS.values():
            if still_open[-1:] != character:
                continue
            still_open = still_open[:-1]
        kept += character
    return kept + still_open[::-1]


def _quoted_list(key: str, value: str) -> str:
    """The override with those entries in quotes that need them; an example where the list holds more than texts."""
    entries = [entry.strip() for entry in value.strip("[]").split(",")]
    is_of_texts = not set("".join(entries)) & set("[]{}'\"")
    quoted = [entry if PLAIN.fullmatch(entry) else quoted_text(entry) for entry in entries]
    return shell_word(f"{key}=[{','.join(quoted if is_of_texts else EXAMPLE)}]")


def _several(key: str, values: str) -> ConfigError:
    """Several values where one is taken, which Hydra takes for a sweep of its own."""
    kinds = kinds_of(key)
    as_list = f", a list as {key}=[{values}]" if {tuple, list} & kinds or not kinds else ""
    as_text = f", or a text as \"{key}='{values}'\"" if str in kinds or not kinds else ""
    remedy = f"Give one of them{as_list if as_text else as_list.replace(',', ', or', 1)}{as_text}."
    if key == "cluster":
        remedy = f"Give one of them, or let a search choose: `trisweep plan --clusters {values}`."
    elif key in groups():
        remedy = "Give one of them."
    return ConfigError(key, values, "gives several values, and this key takes one", remedy)
