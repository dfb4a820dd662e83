"""`trisweep COMMAND`: every command by its name, and one message for whatever goes wrong.

Commands stay thin: they choose, call and print, and import what only they need, so that none waits for another's
torch, mlflow or submitit.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import typer

from cli import (
    advance,
    cancel,
    doctor,
    estimate,
    export,
    pause,
    plan,
    rehearse,
    reindex,
    report,
    rerun,
    retry,
    status,
    sweep,
    train,
    ui,
)
from cli.calibrate import command as calibrate
from cli.console import complaints, headed
from cli.logs import command as logs
from conf.credentials import hide_credentials
from conf.errors import EXIT_FAILED, EXIT_USAGE, TrisweepError
from conf.private_files import keep_private

# These are mistakes of the user's or of the disk. Any other OSError is a defect of ours and keeps its traceback.
FOLDER_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find out, on your own cluster, how to lay out a model that does not fit on one device.",
)
app.command()(plan.plan)
app.command()(estimate.estimate)
app.command()(rehearse.rehearse)
# Unknown options are let through here, and below, to reach the command: its own message, or Hydra, deals with them.
app.command(hidden=True, context_settings={"ignore_unknown_options": True})(rehearse.dry_run)
app.command()(calibrate.calibrate)
app.command()(export.export)
app.command(context_settings={"ignore_unknown_options": True})(train.train)
app.command()(sweep.sweep)
app.command()(status.status)
app.command()(logs.logs)
app.command()(advance.advance)
app.command()(pause.pause)
app.command()(pause.resume)
app.command()(retry.retry)
app.command()(cancel.cancel)
app.command()(report.report)
app.command()(reindex.reindex)
app.command()(rerun.rerun)
app.command()(doctor.doctor)
app.command()(ui.ui)


def main() -> None:
    """Run a command. What went wrong is one message and exit code 2, never a traceback."""
    keep_private()
    try:
        app()
    except TrisweepError as error:
        _complain(str(error))
    except BrokenPipeError:
        # Whoever read has had enough, as `head` has. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except OSError as error:
        if error.errno not in FOLDER_ERRORS:
            raise
        _complain(f"{error.filename or 'output_dir'}: {error.strerror}. Choose another folder with output_dir=PATH.")


def _complain(message: str) -> NoReturn:
    line = headed("trisweep:", f" {hide_credentials(message)}")
    line.stylize("red", 0, len("trisweep:"))
    complaints.print(line)
    sys.exit(EXIT_USAGE)
