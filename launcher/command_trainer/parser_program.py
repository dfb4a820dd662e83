"""Gives command lines to a trainer's own parser: run by the trainer's Python, in its checkout, and never imported here.

Standard input is `{"parser": "megatron-lm", "calls": [{"words": [...], "environment": {...}, "world_size": 16,
"capability": 9}]}`. The file that is named as argument gets `{"missing": "why nothing was checked"}`, or
`{"refusals": [...]}` with null for each call that is accepted, and `{"problem": ..., "flag": ..., "known": [...]}` for
another: its first flag that the parser does not know, null where it knows all, and the flags that it has.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

UNKNOWN = re.compile(r"unrecognized arguments: .*?(?<!\S)(--?[A-Za-z][^\s=]*)")
FLAG = re.compile(r"--([^=]+)")
BOX = re.compile(r"[│╭╮╰╯─]")


class RefusedError(Exception):
    """A command line that the parser does not take."""

    def __init__(self, problem: str, flag: str | None = None, known: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem, self.flag, self.known = problem, flag, known


def raise_refusal(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of `argparse`'s own end of the process."""
    unknown = UNKNOWN.search(message)
    known = tuple(option for action in parser._actions for option in action.option_strings)
    raise RefusedError(message, unknown and unknown[1], known)


class MegatronLM:
    """The parser of Megatron-LM: its arguments, its checks of them, and the configuration that it makes of them."""

    def __init__(self) -> None:
        vars(argparse)["ArgumentParser"].error = raise_refusal  # of every parser, as the trainer makes its own
        self.arguments: Any = importlib.import_module("megatron.training.arguments")
        self.cuda = importlib.import_module("torch").cuda

    def check(self, call: dict[str, Any]) -> None:
        if not self.cuda.is_available():  # as on most login nodes; its checks ask for the capability of the device
            stand_in = argparse.Namespace(major=call["capability"], minor=0)
            self.cuda.get_device_capability = lambda *_, **__: (stand_in.major, 0)
            self.cuda.get_device_properties = lambda *_, **__: stand_in
        sys.argv = ["pretrain_gpt.py", *call["words"]]
        args = self.arguments.parse_args()
        self.arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        self.arguments.core_transformer_config_from_args(args)


class Torchtitan:
    """The parser of torchtitan: its `JobConfig` and the manager that fills it."""

    def __init__(self) -> None:
        self.manager: Any = importlib.import_module("torchtitan.config").ConfigManager

    def check(self, call: dict[str, Any]) -> None:
        words, said = call["words"], io.StringIO()
        manager = self.manager()
        known = tuple(_fields(manager._maybe_add_custom_config(words, manager._maybe_load_toml(words))))
        for word in words:
            named = FLAG.match(word)
            if named and not _is_field(named[1], known):
                raise RefusedError(f"unrecognized option {word}", word, tuple(f"--{name}" for name in known))
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                manager.parse_args(words)
        except SystemExit:
            raise RefusedError(" ".join(BOX.sub(" ", said.getvalue()).split())) from None


def _fields(config: Any, prefix: str = "") -> list[str]:
    """The dotted names of all fields of a tree of dataclasses, given as a type or as a value."""
    names: list[str] = []
    value = config() if isinstance(config, type) else config
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        name = f"{prefix}{field.name}"
        names += _fields(inner, f"{name}.") if dataclasses.is_dataclass(inner) else [name]
    return names


def _is_field(flag: str, known: tuple[str, ...]) -> bool:
    """True of a field's name, with dashes or underscores, and of the flag that turns it off."""
    name = flag.replace("-", "_")
    return name in known or re.sub(r"(^|\.)no_(?=[^.]*$)", r"\1", name) in known


PARSERS: dict[str, Any] = {"megatron-lm": MegatronLM, "torchtitan": Torchtitan}


def refusal_of(parser: Any, call: dict[str, Any]) -> dict[str, Any] | None:
    """What the parser refuses of a call; None where it takes it."""
    before = dict(os.environ)
    os.environ.update(call["environment"], RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(call["world_size"]))
    try:
        parser.check(call)
    except RefusedError as refusal:
        return {"problem": refusal.problem, "flag": refusal.flag, "known": refusal.known}
    except (Exception, SystemExit) as error:
        # An assertion without words is told by its line.
        problem = str(error) or f"{traceback.extract_tb(error.__traceback__)[-1].line}"
        return {"problem": " ".join(problem.split()), "flag": None, "known": ()}
    finally:
        os.environ.clear()
        os.environ.update(before)
    return None


def main(answer: Path) -> None:
    request = json.load(sys.stdin)
    sys.path[0] = str(Path.cwd())  # the trainer's modules and no neighbour of this file, whose names may be theirs
    with contextlib.redirect_stdout(sys.stderr):
        try:
            parser = PARSERS[request["parser"]]()
        except Exception as error:
            content: dict[str, Any] = {"missing": f"{type(error).__name__}: {error}"}
        else:
            content = {"refusals": [refusal_of(parser, call) for call in request["calls"]]}
    answer.write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
