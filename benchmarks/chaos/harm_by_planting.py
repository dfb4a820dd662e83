"""Scenarios: somebody puts code where a queued job may take it for its own; how often that code ran is counted."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

from benchmarks.chaos.cluster import command, wait_for
from benchmarks.chaos.person import Person
from benchmarks.chaos.scenario import scenario

Plant = Callable[[Path, Path], Callable[[], None]]
"""Puts the evil program into the sweep's folder; what it returns takes it away again."""


@scenario(
    "links, files and packages are planted in code/, submitit's and trials' folders",
    num_trials=10,
    by_hand=True,
    repetitions=1,
)
def code_planted(person: Person) -> None:
    trace, evil = person.folder / "planted.log", person.folder / "evil.py"
    evil.write_text(f"open({str(trace)!r}, 'a').write('ran\\n')\n")
    person.give("sweep", "+slurm.extra_sbatch.hold=true", code=0)
    jobs = person.jobs()
    for seed, plant in zip(person.seeds, PLANTS, strict=False):
        taken_away = plant(person.sweep_folder, person.trial_of(seed), evil)
        person.num_faults += 1
        command("scontrol", "release", jobs[seed])
        _wait_for_the_end(jobs[seed])
        num_runs = trace.read_text().count("ran") if trace.exists() else 0
        person.require(not num_runs, f"what {plant.__name__} planted ran {num_runs} times")
        trace.unlink(missing_ok=True)
        taken_away()
    command("scontrol", "release", ",".join(jobs.values()), check=False)
    person.finish()
    if "FAILED" in person.states().values():
        person.finish("--retry-failed")
    person.require(not trace.exists(), "planted code ran later")


def _wait_for_the_end(job: str) -> None:
    live = ("squeue", "--noheader", "--states=PD,R,CG", f"--jobs={job}")
    wait_for(lambda: not command(*live, check=False).strip())


def _archive(sweep: Path) -> Path:
    """Of the code that the jobs run."""
    (archive,) = (sweep / "code").glob("*.zip")
    return archive


def _replaced(path: Path, plant: Callable[[], object]) -> Callable[[], None]:
    """Plant in the place of the file; what is returned puts it back."""
    kept = path.with_name(f".kept-{path.name}")
    path.rename(kept)
    plant()

    def take_away() -> None:
        _remove(path)
        kept.rename(path)

    return take_away


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _evil_archive(archive: Path, evil: Path, target: Path) -> None:
    """The archive with the evil program in the place of all that Python may import first."""
    with ZipFile(archive) as before, ZipFile(target, "w") as after:
        for name in before.namelist():
            if not name.endswith("task.pyc"):
                after.writestr(name, evil.read_text() if name.endswith("task.py") else before.read(name))
        for name in ("sitecustomize.py", "usercustomize.py"):
            after.write(evil, name)


def archive_replaced(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    other = evil.with_name("other.zip")
    _evil_archive(_archive(sweep), evil, other)
    path = _archive(sweep)
    return _replaced(path, lambda: shutil.copy(other, path))


def archive_linked(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    other = evil.with_name("other.zip")
    _evil_archive(_archive(sweep), evil, other)
    path = _archive(sweep)
    return _replaced(path, lambda: path.symlink_to(other))


def member_added(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    path = _archive(sweep)

    def add() -> None:
        shutil.copy(path.with_name(f".kept-{path.name}"), path)
        with ZipFile(path, "a") as archive:
            archive.write(evil, "sitecustomize.py")

    return _replaced(path, add)


def folder_in_place_of_the_archive(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    path = _archive(sweep)

    def unpack() -> None:
        with ZipFile(path.with_name(f".kept-{path.name}")) as archive:
            archive.extractall(path)
        (path / "sitecustomize.py").symlink_to(evil)

    return _replaced(path, unpack)


def files_beside_the_archive(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    return _beside(sweep / "code", evil)


def files_in_the_sweep(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    return _beside(sweep, evil)


def files_in_submitit(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    return _beside(sweep / "submitit", evil)


def files_in_the_trial(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    return _beside(trial, evil)


def _beside(folder: Path, evil: Path) -> Callable[[], None]:
    """Links, a file, packages, a linked package and a `.pth`, each by a name that Python imports before others."""
    planted = [folder / f"{name}.py" for name in ("sitecustomize", "json", "pickle", "cloudpickle")]
    for path in planted:
        path.symlink_to(evil)
    packages = [folder / name for name in ("launcher", "train_core", "numpy")]
    for package in packages:
        package.mkdir()
        shutil.copy(evil, package / "__init__.py")
    (folder / "evil.pth").write_text(f"import runpy; runpy.run_path({str(evil)!r})\n")
    (folder / "conf").symlink_to(packages[0], target_is_directory=True)
    planted += [*packages, folder / "evil.pth", folder / "conf"]

    def take_away() -> None:
        for path in planted:
            _remove(path)

    return take_away


def pickle_replaced(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    (work,) = (sweep / "submitit").glob("*.pkl")
    before = work.read_bytes()
    work.write_bytes(pickle.dumps(_Evil(str(evil))))

    def take_away() -> None:
        work.write_bytes(before)

    return take_away


def link_to_pickle(sweep: Path, trial: Path, evil: Path) -> Callable[[], None]:
    (work,) = (sweep / "submitit").glob("*.pkl")
    before, outside = work.read_bytes(), evil.with_name("outside.pkl")
    outside.write_bytes(pickle.dumps(_Evil(str(evil))))
    work.unlink()
    work.symlink_to(outside)

    def take_away() -> None:
        work.unlink()
        work.write_bytes(before)

    return take_away


class _Evil:
    """Whoever unpickles it runs the program."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.system, (f"python3 {self.program}",)


PLANTS = (
    *(archive_replaced, archive_linked, member_added, folder_in_place_of_the_archive, files_beside_the_archive),
    *(files_in_the_sweep, files_in_submitit, files_in_the_trial, pickle_replaced, link_to_pickle),
)
