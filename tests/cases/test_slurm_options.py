"""Options of sbatch and srun that people write beside ours, under whichever name."""

from __future__ import annotations

import re

import pytest

from conf.errors import ConfigError
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import BuildRecord, RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.slurm.requested import requested
from tests.messages import refused

GPU = ["cluster=frontier", "cluster.num_nodes=4", "precision=bf16", "batch.global_batch_size=16"]
TYPED = ("slurm.gpu_request=gres", "slurm.gpu_type=a100")


@pytest.fixture(scope="module")
def slurm_of() -> SlurmOf:
    return lambda *overrides: load(overrides).slurm


@pytest.fixture(scope="module")
def record_of(build_record: BuildRecord) -> RecordOf:
    return lambda points, *overrides: build_record(points, overrides)


def asked_for(record_of: RecordOf, slurm_of: SlurmOf, *settings: str) -> str:
    """The text of the job of a trial on 8 GPUs of one node."""
    sweep = Sweep(SweepFolder("/shared/runs/x"), record_of([{"parallel.world_size": 8}], *GPU))
    (job,) = requested(sweep, slurm_of("slurm.max_array_size=5", *settings))
    return job.sbatch


def extra(option: str, value: object) -> str:
    return f"slurm.extra_sbatch={{{option}: '{value}'}}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, "gpu") for name in ("p", "partition", "--partition", "part", "-p")),
        *((name, "x") for name in ("A", "account", "acco")),
        ("q", "long"),
        ("C", "a100"),
        ("t", "12:00:00"),
        ("c", "8"),
        *((name, "2") for name in ("N", "nodes", "n", "ntasks", "tasks-per-node", "a")),
        *((name, "x") for name in ("J", "job-name", "job_name", "job")),
        *((name, "x") for name in ("o", "output", "e", "err", "open_mode", "i")),
        *((name, "/x") for name in ("D", "chdir")),
        *((name, "true") for name in ("W", "wait", "Q", "parsable", "tes", "external")),
        ("wrap", "hostname"),
        *((name, "alps") for name in ("M", "cluster", "clusters")),
        ("container", "/bundle"),
        *((name, "USR1@90") for name in ("signal", "sig", "--signal")),
        ("signal", "B:USR2@300"),
        ("signal", "TERM"),
        ("signal", "10@30"),
        ("mem-p", "2G"),
    ],
)
def test_an_option_of_ours_is_refused_under_every_name_with_what_to_use(
    option: str, value: str, slurm_of: SlurmOf
) -> None:
    with refused(ConfigError, "slurm.extra_sbatch" if option == "mem-p" else f"slurm.extra_sbatch.{option}"):
        slurm_of(extra(option, value))


@pytest.mark.parametrize("signal", ["USR2@600", "SIGUSR2@90", "usr2", "12@60", "R:USR2@30"])
def test_the_warning_that_trials_survive_may_come_earlier(signal: str, slurm_of: SlurmOf) -> None:
    assert slurm_of(extra("signal", signal)).extra_sbatch == {"signal": signal}


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("w", "nodelist"),
        ("x", "exclude"),
        ("L", "licenses"),
        ("H", "hold"),
        ("mem_per_gpu", "mem-per-gpu"),
        ("share", "oversubscribe"),
        ("reserv", "reservation"),
        ("mail_typ", "mail-type"),
        ("container-image", "container-image"),  # of the plugin pyxis
    ],
)
def test_a_free_option_is_written_by_its_own_name(option: str, name: str, slurm_of: SlurmOf) -> None:
    assert slurm_of(extra(option, "1")).extra_sbatch == {name: "1"}


def test_nodes_that_a_site_leaves_out_under_a_short_name_stay_out(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    assert "#SBATCH --exclude=n7" in asked_for(record_of, slurm_of, extra("x", "n7"))


@pytest.mark.parametrize("given", ["{}", "+{}", "++{}"])
@pytest.mark.parametrize(
    "word", ["mem=10G", "nodelist=n1", "reservation=now", "mail_type=END", "gres=nvme:1", "exclusive=true"]
)
def test_an_option_among_the_keys_of_slurm_is_told_where_it_belongs(word: str, given: str, slurm_of: SlurmOf) -> None:
    with refused(ConfigError, f"slurm.{word.split('=')[0]}") as caught:
        slurm_of(given.format(f"slurm.{word}"))
    (remedy,) = re.findall(r"Use (slurm\.extra_sbatch\.\S+=\S+)\.$", str(caught.value))
    assert slurm_of(remedy).extra_sbatch


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("time=12:00", "slurm.time"),
        ("nodes=4", "slurm.nodes"),
        ("gpus=4", "slurm.gpus"),
        ("gpus_per_node=4", "slurm.gpus_per_node"),
        ("output=x", "slurm.output"),
        ("partiton=x", "slurm.partiton"),
    ],
)
def test_an_option_among_the_keys_of_slurm_is_told_what_to_use(word: str, key: str, slurm_of: SlurmOf) -> None:
    with refused(ConfigError, key):
        slurm_of(f"slurm.{word}")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("{w: n1, nodelist: n2}", "slurm.extra_sbatch.nodelist"),
        ("{mem-per-gpu: 4G, mem_per_gpu: 2G}", "slurm.extra_sbatch.mem_per_gpu"),
    ],
)
def test_two_names_of_one_option_are_refused(options: str, key: str, slurm_of: SlurmOf) -> None:
    with refused(ConfigError, key):
        slurm_of(f"slurm.extra_sbatch={options}")


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (("slurm.extra_sbatch={mem: 0, mem-per-gpu: 4G}",), "mem"),
        (("slurm.extra_sbatch={mem-per-cpu: 2G, mem: 8G}",), "mem-per-cpu"),
        (("slurm.extra_sbatch={cpus-per-gpu: 4}", "slurm.cpus_per_task=7"), "cpus-per-gpu"),
        ((extra("gres", "gpu:4"),), "gres"),
        ((extra("gres", "gpu:a100:4,nvme:1"), *TYPED), "gres"),
        ((extra("gres", "gres/gpu:4"), *TYPED), "gres"),
        *(((extra(name, "4"),), name) for name in ("gpus", "gpus-per-node")),
        ((extra("G", "4"),), "gpus"),
        ((extra("gpus_per_socket", "4"),), "gpus-per-socket"),
        ((extra("gpus-per-task", "2"),), "gpus-per-task"),
        ((extra("tres-per-task", "cpu=4,gres/gpu=1"),), "tres-per-task"),
    ],
)
def test_options_that_contradict_the_trial_or_each_other_are_refused(
    settings: tuple[str, ...], option: str, record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    with refused(ConfigError, f"slurm.extra_sbatch.{option}"):
        asked_for(record_of, slurm_of, *settings)


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ((extra("gres", "localtmp:1024"), *TYPED), ["--gres=gpu:a100:8,localtmp:1024"]),
        ((extra("gres", "nvme:1"),), ["--gpus-per-node=8", "--gres=nvme:1"]),
        ((extra("gres", "gpu_mem:40"),), ["--gpus-per-node=8", "--gres=gpu_mem:40"]),
        ((extra("gres", "gpu:8"), "slurm.gpu_request=none"), ["--gres=gpu:8"]),
        ((extra("gpus-per-task", "1"),), ["--gpus-per-node=8", "--gpus-per-task=1"]),
        (("slurm.extra_sbatch={mail-type: [END, FAIL]}",), ["--mail-type=END,FAIL"]),
        (("slurm.partition=[gpu,long]",), ["--partition=gpu,long"]),
        (("slurm.extra_sbatch={mem: false, mem-per-cpu: 4G}",), ["--mem-per-cpu=4G"]),
        (
            ("slurm.extra_sbatch={mem_per_cpu: 32GB, cpus_per_gpu: 1, gpus_per_task: '3g.39gb:1'}",),
            ["--mem-per-cpu=32GB", "--cpus-per-gpu=1", "--gpus-per-task=3g.39gb:1"],
        ),
    ],
)
def test_what_can_stand_beside_ours_is_joined_with_it(
    settings: tuple[str, ...], lines: list[str], record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    text = asked_for(record_of, slurm_of, *settings)
    assert [line for line in lines if f"#SBATCH {line}\n" not in text] == []


@pytest.mark.parametrize(
    "words",
    [
        "[-n, '4']",
        "[-n4]",
        "['--ntasks=4']",
        "['--out=/x']",
        "['--label']",
        "[-l]",
        "['--export=NONE']",
        "['--export=NIL']",
        "[gpu]",
    ],
)
def test_an_argument_of_srun_that_would_change_the_tasks_is_refused(words: str, slurm_of: SlurmOf) -> None:
    with refused(ConfigError, "slurm.srun_args"):
        slurm_of(f"slurm.srun_args={words}")


@pytest.mark.parametrize(
    "words", ["['--cpu-bind=cores']", "[-K, '-W', '60', -q, x, '--mpi', pmix]", "['--export=ALL,A=1']"]
)
def test_other_arguments_of_srun_are_passed_on(words: str, record_of: RecordOf, slurm_of: SlurmOf) -> None:
    settings = slurm_of(f"slurm.srun_args={words}")
    assert " ".join(settings.srun_args) in asked_for(record_of, slurm_of, f"slurm.srun_args={words}").replace("'", "")


def test_srun_hands_on_what_the_script_has_set(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    (step,) = [line for line in asked_for(record_of, slurm_of).splitlines() if line.startswith("srun ")]
    assert " --export=ALL " in step


def test_a_component_replaces_what_its_own_option_excludes(slurm_of: SlurmOf) -> None:
    components = "slurm.components.other={extra_sbatch: {mem_per_gpu: 4G}}"
    settings = slurm_of("slurm.extra_sbatch={mem: 0, comment: x}", f"+{components}")
    assert settings.on("other").extra_sbatch == {"comment": "x", "mem-per-gpu": "4G"}


def test_qsub_has_options_of_its_own(slurm_of: SlurmOf) -> None:
    settings = slurm_of("slurm.scheduler=pbs", "slurm.extra_sbatch={k: doe, M: me@there}")
    assert settings.extra_sbatch == {"k": "doe", "M": "me@there"}
