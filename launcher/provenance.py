"""The provenance of a sweep's numbers: its code with uncommitted changes, versions, modules, and environment.

The code is kept as it was at submission: editing the checkout while jobs are queued changes nothing. Of the environment
only variables on a list are kept, and none whose name sounds like a secret. What goes wrong with what is only written
down ends nothing: a sweep without a provenance is a sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import os
import platform
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import yaml

from conf.credentials import HIDDEN, hide_credentials, hide_variables, overrides_for_records, shown_tree
from conf.errors import UsageError
from conf.folders import given_words
from launcher.external_commands import ask
from sweeps.trial import SweepFolder
from train_core.process.git_sha import GIT, RECORDED, ROOT, git_sha, trainer_code
from train_core.process.machine import this_user
from train_core.trial.atomic import replacing, write_atomically
from train_core.trial.folder import JobFolder

# A trial's job needs no more than these; results and cli stay on the login node.
PACKAGES = ("conf", "costs", "train_core", "rates", "sweeps", "launcher")
ALL_PACKAGES = (*PACKAGES, "results", "calibrate", "diagnose", "cli")
UNCHECKED = struct.pack("<L", 0b01)
"""How a compiled file says that it has its source's hash, which is not to be compared (PEP 552)."""

SUFFIXES = (".py", ".yaml", ".csv", ".html", ".js", ".css", ".md")


def snapshot_code(destination: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """Put the packages into an archive below `destination`, from which Python imports them, and return its path.

    It has its name from their content, and they are compiled in it, so that not every rank compiles them.

    Raises:
        OSError: the archive cannot be written.
    """
    found = (path for package in packages for path in sorted((ROOT / package).rglob("*")) if path.suffix in SUFFIXES)
    contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in found}
    digest = hashlib.sha256(b"".join(f"{name}\0".encode() + each + b"\0" for name, each in contents.items()))
    target = destination / f"{digest.hexdigest()[:12]}.zip"
    if not target.exists():
        with replacing(target) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
            archive.writestr(f"train_core/{RECORDED}", f"{git_sha()}\n{trainer_code()}\n")
            for name, content in contents.items():
                archive.writestr(name, content)
                if name.endswith(".py") and (compiled := _compiled(f"{target}/{name}", content)):
                    archive.writestr(f"{name}c", compiled)
    return target


def checksum_command(code: Path) -> str:
    """For a shell. A job's own script asks so, before any of the code runs, with what every node has.

    It covers all that Python could import, also from a folder in the archive's place: the content of files,
    compiled ones included, and the names of folders, links and whatever else is there; and what others may write, two
    folders above included, as they could once it was checked.
    """
    place, name = shlex.quote(str(code.parent)), shlex.quote(f"./{code.name}")
    theirs = "! -type l ! \\( -user $(id -u) ! -perm -020 ! -perm -002 \\)"
    return (
        f"cd {place} && {{ find {name} -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum;"
        f" find {name} -type d -print0 | LC_ALL=C sort -z; find {name} ! -type f ! -type d;"
        f" find {name} {theirs} | LC_ALL=C sort; find . .. -prune {theirs}; }} | sha256sum | cut -d ' ' -f 1"
    )


@cache  # every job array asks for it, and what replaces the code between two of them is not taken for it
def checksum_of(code: Path) -> str:
    """The SHA-256 of an archive or a folder, as `checksum_command` prints it.

    Raises:
        UsageError: this machine's shell cannot tell.
    """
    command = checksum_command(code)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise UsageError(f"the checksum of {code} cannot be told: {done.stderr.strip()}", f"Try there: {command}")
    return done.stdout.strip()


def _compiled(path: str, source: bytes) -> bytes | None:
    """What Python keeps of a module it has compiled (PEP 552); None of one that says so in the rank that needs it.

    Python does not compare it with the source. With thousands of ranks that start at once, the comparison would be a
    burst of questions to the shared file system.
    """
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return MAGIC_NUMBER + UNCHECKED + source_hash(source) + marshal.dumps(code)


FOLDER, OF_TRIAL, CONFIGURATION = "provenance", "provenance.json", "configuration.yaml"
MOST_PATCH_BYTES = 2**20

KEPT = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|FI|HSA|HIP|ROCR|MIOPEN|PYTORCH|TORCH|OMP|MKL|KMP|GPU|CUDA|PYTHON|LMOD|OMPI|MPICH)_\w+"
    r"|PATH|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CONDA_DEFAULT_ENV|LOADEDMODULES|MODULEPATH|HOSTTYPE|LANG|LC_ALL"
    r"|SLURM_(JOB_ID|JOB_NAME|JOB_NODELIST|JOB_PARTITION|JOB_ACCOUNT|JOB_QOS|JOB_NUM_NODES|NTASKS|NTASKS_PER_NODE"
    r"|CPUS_PER_TASK|ARRAY_JOB_ID|ARRAY_TASK_ID|CLUSTER_NAME|SUBMIT_HOST|RESTART_COUNT|JOB_GPUS|GPUS_ON_NODE)"
)
"""Variables that change how a training runs, or say where it ran."""

SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|PRIVATE|JWT|KEY|AUTH", re.IGNORECASE)
SECRET_FILES = re.compile(r"(^|/)(\.env[^/]*|[^/]*\.(pem|key|p12|pfx)|id_[a-z0-9]+|\.netrc|[^/]*credentials?[^/.]*)$")
SECRET_LINE = re.compile(r"((?:token|secret|passw\w*|api_?key|credentials?)\w*[\"']?\s*[=:]\s*)\S.*", re.IGNORECASE)
"""A line of a patch that gives a value to something with such a name."""

DRIVER_COMMANDS = (
    ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
    ("rocm-smi", "--showproductname", "--showdriverversion", "--csv"),
)


def keep_provenance(folder: SweepFolder, overrides: Sequence[str]) -> None:
    """Write down, beside the sweep, from where the command was given; each command has a file of its own."""
    with contextlib.suppress(OSError, ValueError):
        place = folder.path / FOLDER
        now = time.time()
        content = {
            "time_unix_seconds": now,
            "command": [Path(sys.argv[0]).name, *(hide_credentials(hide_variables(word)) for word in sys.argv[1:])],
            "overrides": list(overrides_for_records(overrides)),
            "config_words": given_words(),
            "user": this_user(),
            "git_sha": git_sha(),
            **_changes(place),
            **machine_facts(os.environ),
            "packages": _packages(),
        }
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(now))
        name = f"{stamp}.{int(now % 1 * 1e6):06d}-{os.getpid()}.json"  # in containers many processes are number 7
        write_atomically(place / name, _text_of(content), durable=False)


def keep_configuration(folder: SweepFolder, tree: Mapping[str, Any]) -> None:
    """Write down what a command's overrides were composed to, unless nobody has composed it."""
    with contextlib.suppress(OSError, ValueError):
        if not tree:
            return
        text = yaml.safe_dump(shown_tree(dict(tree)), sort_keys=False)
        write_atomically(folder.path / FOLDER / CONFIGURATION, hide_credentials(text), durable=False)


def keep_job_provenance(folder: JobFolder) -> None:
    """Write down, in a trial's folder, where and with what its last attempt ran. One process of the job calls this."""
    with contextlib.suppress(OSError, ValueError):
        content = {"time_unix_seconds": time.time(), "code": str(ROOT), "git_sha": git_sha()}
        content |= machine_facts(os.environ) | {"devices": devices()}
        write_atomically(folder.path / OF_TRIAL, _text_of(content), durable=False)


def machine_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """This machine, its Python and its modules, and the variables that are kept."""
    return {
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "modules": [name for name in environment.get("LOADEDMODULES", "").split(":") if name],
        "environment": recorded_variables(environment),
    }


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on the list, in the order of their names, without passwords in addresses."""
    kept = (name for name in sorted(environment) if KEPT.fullmatch(name) and not SECRET.search(name))
    return {name: hide_credentials(environment[name]) for name in kept}


def devices() -> list[str]:
    """Names and driver of this machine's accelerators, as their vendor's tool says; none where there is no tool."""
    for command in DRIVER_COMMANDS:
        if shutil.which(command[0]):
            return sorted(set(_tool_output(*command).splitlines()))
    return []


def remove_secrets(patch: str) -> str:
    """A patch without files that hold secrets by their names, and with `***` for values that are ones by theirs."""
    files = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    kept = [file for file in files if not any(map(SECRET_FILES.search, file.partition("\n")[0].split()))]
    lines = (line for file in kept for line in file.splitlines(keepends=True))
    return "".join(SECRET_LINE.sub(rf"\1{HIDDEN}", hide_credentials(line)) for line in lines)


def _changes(place: Path) -> dict[str, Any]:
    """Write the differences from the commit as a patch that is named after its content, and return its name."""
    if _tool_output(*GIT, "rev-parse", "--show-toplevel").strip() != str(ROOT):
        return {"uncommitted_changes": None}  # installed, perhaps into an environment inside somebody's checkout
    # Whatever a person has configured for git would run here, and write what no `git apply` reads.
    command = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    patch = remove_secrets(_tool_output(*GIT, *command))
    untracked = _tool_output(*GIT, "ls-files", "--others", "--exclude-standard").splitlines()
    if not patch:
        return {"uncommitted_changes": None, "untracked_files": untracked}
    whole = patch.encode()
    name = f"changes-{hashlib.sha256(whole).hexdigest()[:12]}.patch"
    if not (place / name).exists():
        text = whole[:MOST_PATCH_BYTES].decode(errors="ignore")
        write_atomically(place / name, text, durable=False)
    is_cut = len(whole) > MOST_PATCH_BYTES
    return {"uncommitted_changes": name, "changes_are_cut_short": is_cut, "untracked_files": untracked}


def _packages() -> dict[str, str]:
    """Versions by name, as the names of the folders say that installers leave: reading each one's file takes long."""
    folders = {path for entry in sys.path for path in Path(entry or ".").glob("*.dist-info")}
    # An installer that was interrupted may have left one without a version.
    pairs = (path.stem.rpartition("-") for path in folders if "-" in path.stem)
    return dict(sorted(((name, version) for name, _, version in pairs), key=lambda package: package[0].lower()))


def _text_of(content: Mapping[str, object]) -> str:
    """JSON, with a question mark for every byte of a variable or a word that is no UTF-8."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode(errors="replace").decode()


def _tool_output(*command: str) -> str:
    """Return what a tool prints; nothing if it is missing, fails or hangs."""
    result = ask(*command)
    return result.stdout if result.ok else ""
