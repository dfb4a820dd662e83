"""Tells within seconds whether an MLflow store can be opened.

MLflow itself tries again for minutes, and prints a page each time. So what it is going to open is opened here first.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from conf.credentials import hide_credentials, without_credentials
from conf.errors import UsageError
from conf.private_files import owner_of
from conf.types.sites import OF_CLOUD

if TYPE_CHECKING:
    from mlflow import MlflowClient

REACH_SECONDS = 5.0
REFUSALS = ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED")
"""MLflow's names of the answers 401 and 403."""

KNOWN_FAULTS = {
    re.compile(r"No space left|is full|quota exceeded", re.IGNORECASE): "Free space on its disk (or in your quota)",
    re.compile(r"read-?only", re.IGNORECASE): "Make the store and its folder writable",
    re.compile(r"database is locked|busy"): "Wait for the program that holds it, such as another import",
}
"""What the store says, and what to do before the import is begun again; it goes on where it ended."""
OTHER_VERSION = re.compile(r"out-of-date database schema \(found version (\w+)")
"""MLflow's words about a store that another version of it wrote, be it older or newer."""

KEPT = "The sweeps' folders keep everything"


def require_server(uri: str) -> None:
    """Ask whether a server answers, but for those that MLflow finds by itself.

    Any HTTP answer will do, because a proxy in front may refuse `/health` and still pass the API on. The user and the
    password that the address may hold are left out: urllib takes none there, and messages must not show them.

    Raises:
        UsageError: nothing answers.
    """
    if OF_CLOUD.match(uri):
        return
    address = without_credentials(uri)
    pass_proxy_by(address)
    try:
        with urllib.request.urlopen(address.rstrip("/") + "/health", timeout=REACH_SECONDS):
            return
    except urllib.error.HTTPError as answer:
        answer.close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"tracking.uri = {address!r}: no MLflow server answers{_through_proxy(address)} ({reason})",
            _start_or_choose("server"),
        ) from None


def pass_proxy_by(address: str) -> None:
    """Have this process and its children reach a server on loopback themselves: a proxy has a loopback of its own."""
    place = urlsplit(address)
    host = place.hostname or ""
    is_proxied = urllib.request.getproxies() and not urllib.request.proxy_bypass(place.netloc)
    if not (is_proxied and (host.startswith("127.") or host in ("localhost", "::1"))):
        return
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    added = [known] if known else []
    added += [host, f"[{host}]"] if ":" in host else [host]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(added)


def _through_proxy(address: str) -> str:
    """Words that name the proxy by which the environment has the address reached; empty where there is none."""
    place = urlsplit(address)
    proxy = urllib.request.getproxies().get(place.scheme)
    if proxy is None or urllib.request.proxy_bypass(place.netloc):
        return ""
    return f" through the proxy {without_credentials(proxy)} of {place.scheme}_proxy"


def _start_or_choose(kind: str) -> str:
    """The remedy where nothing answers. A sweep's record keeps its address, so that another must be stated."""
    where = f"tracking={kind} tracking.uri=URL"
    return f"Start it and give `trisweep report NAME` again, for another address with {where}. {KEPT}."


def require_entry(client: MlflowClient, uri: str) -> None:
    """Ask the server for something that it may keep from strangers, in MLflow's own way of signing in.

    Raises:
        UsageError: it wants to know who asks, or does not believe it.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.search_experiments(max_results=1)
    except MlflowException as error:
        if error.error_code not in REFUSALS:
            raise
        named = "MLFLOW_TRACKING_USERNAME" in os.environ or without_credentials(uri) != uri
        what = "the user or the password is wrong" if named else "it got no user"
        raise UsageError(
            f"tracking.uri = {without_credentials(uri)!r}: the MLflow server refuses ({what})",
            f"Export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD as the server knows them. {KEPT}.",
        ) from None


class DamagedStore(UsageError):
    """The SQLite store is torn, or was made in another folder, and can be made anew from the sweeps' folders."""


def require_sqlite(path: Path) -> None:
    """Open the file for writing, if there is one.

    Raises:
        DamagedStore: it is no whole SQLite database.
        UsageError: it may not be written, or another program keeps it locked.
    """
    if not path.exists():
        return
    for place in (path, path.parent):  # SQLite writes a journal beside it
        require_writable(place)
    try:
        with closing(sqlite3.connect(path, timeout=REACH_SECONDS)) as store:
            store.execute("BEGIN IMMEDIATE")
            store.execute("SELECT count(*) FROM sqlite_master").fetchone()
            store.rollback()
    except sqlite3.Error as error:
        # A file that is locked or may not be opened raises an OperationalError, and nothing is wrong with its content.
        raise (UsageError if isinstance(error, sqlite3.OperationalError) else DamagedStore)(
            f"The MLflow store {path} cannot be opened ({error})",
            f"{KEPT}: move a damaged store away, and `trisweep reindex` makes it anew.",
        ) from None


def require_writable(path: Path) -> None:
    """Tell a part of the store that this user may not write from one that is damaged, and say whose it is.

    Raises:
        UsageError: it is there, and may not be read and written; says whose it is.
    """
    if not path.exists() or os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return
    owner = owner_of(path)
    whose, give = (f": {path} belongs to {owner}", f"Have {owner} give") if owner else ("", "Give")
    elsewhere = "`trisweep report NAME --out FOLDER` does without it"
    raise UsageError(
        f"The MLflow store in {path if path.is_dir() else path.parent} may not be written{whose}",
        f"{give} `chmod {'g' if owner else 'u'}+rw {shlex.quote(str(path))}`; {elsewhere}. {KEPT}.",
    )


def require_database(uri: str) -> None:
    """Connect to a database server once.

    Raises:
        UsageError: it cannot be reached, or refuses the user, or the driver for it is not installed.
    """
    import sqlalchemy

    limit = {"connect_timeout": int(REACH_SECONDS)} if uri.startswith("postgresql") else {}
    try:
        engine = sqlalchemy.create_engine(uri, connect_args=limit)
        with engine.connect():
            pass
        engine.dispose()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, ValueError) as error:
        message = " ".join(str(getattr(error, "orig", None) or error).split())
        raise UsageError(
            f"tracking.uri = {without_credentials(uri)!r} cannot be opened ({hide_credentials(message)[:300]})",
            _start_or_choose("database"),
        ) from None


def mlflow_command(*words: str) -> str:
    """A command of MLflow's for a shell, which finds it wherever this program is installed."""
    return shlex.join((sys.executable, "-m", "mlflow", *words))


def remedy_of(message: str, uri: str) -> str | None:
    """The remedy if MLflow refused its store; None if that is not known."""
    match = OTHER_VERSION.search(message)
    if match is None:
        act = next((act for fault, act in KNOWN_FAULTS.items() if fault.search(message)), None)
        return act and f"{act}, then give the same command again: {KEPT[0].lower()}{KEPT[1:]}."
    anew = f"{KEPT}, so a store that holds only sweeps may be moved away instead, and `trisweep reindex` makes it anew."
    import mlflow

    # One that has had this layout of its tables can upgrade it.
    versions = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if any(versions.glob(f"{match[1]}_*.py")):
        upgrade = mlflow_command("db", "upgrade", without_credentials(uri))
        return f"An older MLflow wrote it: take a backup of it, then give `{upgrade}`. {anew}"
    return f"A newer MLflow wrote it: install that one. {anew}"
