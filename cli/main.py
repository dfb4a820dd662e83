"""`trisweep COMMAND`: every command by its name, the options that all have, and one message for whatever goes wrong.

Commands stay thin: they choose, call and print, and import what only they need, so that none waits for another's
torch, mlflow or submitit.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from cli.commands import (
    control,
    doctor,
    estimate,
    export,
    logs,
    metrics,
    rehearse,
    reindex,
    report,
    rerun,
    show,
    status,
    train,
    ui,
)
from cli.commands.calibrate import command as calibrate
from cli.commands.diagnose import command as diagnose
from cli.commands.init import command as init
from cli.commands.plan import command as plan
from cli.commands.sweep import command as sweep
from cli.output.console import complaints, console, print_complaint
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, FULL_ERRORS, TrisweepError
from conf.folders import OPTION, further_folders
from conf.nearest import most_like
from conf.private_files import existing_part, keep_private, owner_of

ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option(
        OPTION, metavar="FOLDER", help="Your own clusters, models, sweeps ...; may be repeated.", show_default=False
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print nothing but errors, and what --json, --cfg or --as asks for."),
]
WORDS = {"int": "N", "float": "NUMBER", "path": "PATH", "str": "TEXT"}
"""By a part of the name of a type."""

PROBLEMS = {
    "int_parsing": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_parsing": "is not a number",
    "greater_than_equal": "is below {ge}",
    "less_than_equal": "is above {le}",
}
"""The fault of a value, by the type of pydantic's error."""

# What all of these have in common is public under no name: it is Click's class, or Typer's own copy of it.
WrongArguments: type[Exception] = typer.BadParameter.__mro__[1]

# These are mistakes of the user's or of the disk. Any other OSError is a defect of ours and keeps its traceback.
FOLDER_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, *FULL_ERRORS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)
# A file server that fails or has lost this machine says so; the same folder may serve again in a while.
SERVER_ERRORS = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN)


def _with_options_of_all(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the options that every command has; it finds what they say done when it is called.

    A parameter whose type is a dataclass stands for options: the fields of that class.
    """
    # Typer takes a command's options from its signature, which is therefore written by hand here.
    own = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}

    @wraps(command)
    def run(*args: Any, config_dir: list[Path] | None = None, quiet: bool = False, **others: Any) -> None:
        console.quiet = quiet
        console.stderr = others.get("as_json", False)  # so that the document has stdout to itself
        for name, group in groups.items():
            others[name] = group(**{field.name: others.pop(field.name) for field in fields(group)})
        try:
            with further_folders(config_dir or ()):
                command(*args, **others)
        except (KeyboardInterrupt, Exception) as error:
            # A disk that is full as Ctrl-C is dealt with is said all the same.
            if isinstance(error, typer.Exit | OSError) or not _stems_from_ctrl_c(error):
                raise
            complaints.print("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    parameters: list[inspect.Parameter] = []
    for each in own:
        group = groups.get(each.name)
        parameters += inspect.signature(group, eval_str=True).parameters.values() if group else [each]
    parameters += [
        inspect.Parameter("config_dir", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigDirs),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _stems_from_ctrl_c(error: BaseException | None) -> bool:
    """True of Ctrl-C, also where a library that it met has made an error of its own of it, as pydantic and Hydra do."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


class Command(TyperCommand):
    """A command whose help names values in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, `--help` among them."""
        return _named_plainly(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """All commands together, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own options, `--help` among them."""
        return _named_plainly(super().get_params(ctx))


def _named_plainly(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if each.metavar is None:
            each.metavar = "" if getattr(each, "is_bool_flag", False) else _word(each)
    return parameters


def _word(parameter: Any) -> str | None:
    """None leaves it to Typer, as for what is not an option: its own name says what it is."""
    kind = str(getattr(getattr(parameter, "type_descriptor", parameter), "annotation", "")).lower()
    words = (word for part, word in WORDS.items() if part in kind)
    return next(words, None) if parameter.param_type_name == "option" else None


app = typer.Typer(
    cls=HelpfulGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the fastest way to train a model that does not fit on one device.",
)


def _add(command: Callable[..., None], name: str | None = None, **settings: Any) -> None:
    # Else the lines of a docstring would stay lines of a terminal that is narrower.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    words = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, cls=Command, help=words, **settings)(_with_options_of_all(command))


_add(plan.plan)
_add(estimate.estimate)
_add(diagnose.diagnose)
_add(rehearse.rehearse)
_add(calibrate.calibrate)
_add(export.export)
_add(train.train, context_settings={"ignore_unknown_options": True})
_add(sweep.sweep)
_add(status.status)
_add(logs.logs)
_add(metrics.metrics)
_add(control.advance)
_add(control.pause)
_add(control.resume)
_add(control.retry)
_add(control.cancel)
_add(report.report)
_add(reindex.reindex)
_add(rerun.rerun)
_add(doctor.doctor)
_add(init.init)
_add(show.list_options, "list")
_add(show.show)
_add(ui.ui)


def main() -> None:
    """Run a command. What went wrong is one message and exit code 2, never a traceback."""
    keep_private()
    if sys.stdout is None:  # closed, as by `>&-`; the next file that is opened would else get all that is printed
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (stays open until the end)
    try:
        sys.exit(app(standalone_mode=False) or 0)  # else Typer would print its own complaints, in a box
    except WrongArguments as error:
        _complain(_complaint_of(error))
    except TrisweepError as error:
        _complain(str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in OUR_PACKAGES:
            raise
        _complain(
            f"{missing} is not installed for this Python, {sys.executable}: install all that Trisweep needs with"
            " `pip install` of its wheel or checkout, without --no-deps."
        )
    except BrokenPipeError:
        # Whoever read has had enough, as `head` has. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except OSError as error:
        if error.errno not in (*FOLDER_ERRORS, *SERVER_ERRORS):
            raise
        if error.filename is None and not _stdout_is_written():
            _complain(f"What the command printed could not be written: {error.strerror}.")
        _complain(f"{error.filename or 'output_dir'}: {error.strerror}. {_remedy_of(error)}")


def _remedy_of(error: OSError) -> str:
    """What to do about a folder or its disk. A sweep that was started stays where it is, whoever looks at it."""
    from sweeps.trial import RECORD

    path = Path(str(error.filename or "")).absolute()
    records = (os.path.exists(above / RECORD) for above in path.parents)  # noqa: PTH110 (asks, and raises nothing)
    is_started = any(records) or any(path.parent.glob(f"*/{RECORD}"))
    if error.errno in FULL_ERRORS:
        return "Free space there, and give the same command again: what is done is not done twice."
    if error.errno in SERVER_ERRORS:
        again = "Give the command again once the file system works: what is done is not done twice."
        return again if is_started else f"{again} Or choose another folder with output_dir=PATH."
    if not is_started:
        return "Choose another folder with output_dir=PATH."
    if error.errno in (errno.EACCES, errno.EPERM) and (owner := owner_of(existing_part(path))):
        return f"It belongs to {owner}, whose sweep it is: have {owner} do it, or let you write there."
    return "Correct that, and give the same command again: what is done is not done twice."


def _stdout_is_written() -> bool:
    """True if stdout takes one more line. One that does not is put away, or Python would complain of it at its end."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _complain(message: str) -> NoReturn:
    if message:  # empty where help was printed in its place
        print_complaint(message)
    sys.exit(EXIT_USAGE)


def _complaint_of(error: Any) -> str:
    """The complaint about an error of class `WrongArguments`; empty where help was printed in its place."""
    said = _problem(error).rstrip(".")
    command = error.ctx.command_path if error.ctx else "trisweep"
    stop = "" if said.endswith("?") else "."
    return f"{said}{stop} `{command} --help` says what it takes." if said else ""


OUR_PACKAGES = ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate", "diagnose", "cli")
"""One that lacks a module of these is damaged, which is a defect and keeps its traceback."""
OF_HYDRA = {
    **dict.fromkeys(("-m", "--multirun"), "Points come from the axes of a sweep's file, such as sweep/NAME.yaml"),
    **dict.fromkeys(("-cd", "-cn", "-cp", "--config-name", "--config-path"), "Folders are named with --config-dir"),
    **dict.fromkeys(("-c", "--cfg", "--package", "--resolve"), "`trisweep show` prints the configuration"),
}
"""What takes the place of options of Hydra's own command line, which this one has not."""


def _problem(error: Any) -> str:
    if instead := OF_HYDRA.get(getattr(error, "option_name", "")):
        return f"{error.message.rstrip('.')}, which is one of Hydra's. {instead}"
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if details and (problem := PROBLEMS.get(details[0]["type"])):
        name = max(error.param.opts, key=len)
        return f"{name} = {details[0]['input']!r}: {problem.format(**details[0].get('ctx', {}))}"
    if (alike := getattr(error, "possibilities", None)) and hasattr(error, "option_name"):
        # The dashes before them make short options look alike.
        meant = [each for each in sorted(alike) if most_like(error.option_name.lstrip("-"), [each.lstrip("-")])]
        return f"{error.message}." + (f" Did you mean {' or '.join(meant)}?" if meant else "")
    return str(error.format_message())
