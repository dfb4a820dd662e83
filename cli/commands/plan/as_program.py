"""`trisweep plan ... --as PROGRAM`: a plan as the command of another program, ready to be copied into a shell."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import typer

from cli.commands.plan.options import SearchOptions
from cli.commands.plan.search import choose, request_of, training_of
from cli.output.console import complaints
from conf.compose.load import Composition
from conf.compose.orders import require_order
from conf.compose.settings import Settings
from conf.errors import ConfigError, UsageError
from conf.folders import options
from conf.overrides import Override, Overrides
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import Call, call_of, flat, met_limits, names_of, torchrun_words
from conf.types.sites import SlurmSpec
from conf.units import MINUTES_PER_HOUR, SECONDS_PER_HOUR, TERA, count_of, gain_of
from costs import IMPLEMENTATIONS, Estimate, estimate
from launcher.command_trainer.process import HUGGINGFACE_STARTER
from results.analysis.findings.ranking import by_prediction
from results.render.units import gib
from results.tables.search_tables import padded_vocabulary_sentence, passed_over_sentences, unlikely_sentence
from sweeps.memory_odds import LIKELY, MemoryOdds
from sweeps.planner.points import best_runnable_plan, refusal_of
from sweeps.points.plan import plan_sweep

IN_A_SHELL = {
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "rank": "SLURM_PROCID",
    "local_rank": "SLURM_LOCALID",
}
"""Names that only a job knows, by the shell variables that stand for them in what is printed."""

OTHER_NAMES = {"megatron-core": "megatron-lm"}
"""Programs by another name: that of the costs which a prediction takes for them."""

OF_ONE_COMMAND = frozenset(
    {"search", "objective", "budget", "deadline", "tokens", "steps"}
    | {"devices", "clusters", "implementation", "headroom"}
)
"""The options that decide which plan is the best; all others are about tables."""

MEASURING = (
    "# For a measurement, with no data of yours. For a training, put its own data and",
    "# tokenizer in their place, and its length, which --tokens gives.",
)

STEPS, WARMUP = "training.num_steps", "training.learning_rate_warmup_steps"
WARMUP_SHARE, MOST_WARMUP_STEPS = 0.01, 2000
"""Of the warm-up where nobody states one. Source of its most: Llama 2 (arXiv 2307.09288, section 2.2)."""
OF_THE_LENGTH = {f"{{{name}}}" for name in (STEPS, WARMUP, "decay_steps")}
"""What a program's flags say of it."""

MARK = "\0{}\0"
MARKED = re.compile(r"\0(\w+)\0")
NUMBER = re.compile(r"-[\d.]")
WIDTH = 78
SPECIAL = re.compile(r'([\\"$`])')


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The plan that is printed, the trainer at whose costs it was predicted, and how it came to be that one."""

    experiment: Experiment
    predicted: Estimate
    costs_of: str
    notes: tuple[str, ...] = ()


def with_trainer(program: str, overrides: Sequence[str]) -> list[str]:
    """The overrides with the choice of a program in front; raises ConfigError where there is no such program."""
    programs = [name for name in options("trainer") if name != "trisweep"]
    chosen = OTHER_NAMES.get(program, program)
    if chosen not in programs:
        remedy = f"Use one of {', '.join(programs)}."
        if program in IMPLEMENTATIONS:
            remedy += f" With --implementation {program} it takes that trainer's costs."
        raise ConfigError("--as", program, "is not a known program", remedy)
    return [f"trainer={chosen}", *(text for text in overrides if Override.parse(text).key != "trainer")]


def print_as(composition: Composition, choices: SearchOptions, *, sbatch: bool = False) -> None:
    """Print a plan as the command of the configured program: the best of a search, or of a sweep's points.

    Args:
        sbatch: print a file for sbatch that starts it on the cluster.

    Raises:
        ConfigError: the program's configuration is wrong.
        InfeasiblePlan: no plan that fits can be carried out by it.
        UsageError: an option asks for a table.
    """
    choices.require_only(OF_ONE_COMMAND, "--as prints one command, and no table")
    names_a_place = choices.clusters or any(each.group in ("cluster", "slurm") for each in composition.overrides)
    if sbatch and not names_a_place and composition.settings.cluster.device.kind != "gpu":
        raise UsageError("--sbatch writes a job for a cluster, and none was chosen", "Add cluster=NAME.")
    is_sweep = composition.overrides.stated_value("sweep") is not None and not choices.ask_for_a_search
    chosen = _best_of_sweep(composition) if is_sweep else _best_of_search(composition, choices)
    slurm = _slurm_of(composition, chosen.experiment) if sbatch else None
    for line in _lines(chosen, slurm):
        typer.echo(line)  # by no rich console, which would wrap its lines


def _slurm_of(composition: Composition, experiment: Experiment) -> SlurmSpec:
    """The settings of the cluster for which the plan is, as its jobs have them."""
    from launcher.where import compose_for_slurm

    given, name = composition.overrides, experiment.cluster.name
    if name != composition.settings.cluster.name:
        given += Overrides.choosing("cluster", name)
    return compose_for_slurm(given).settings.slurm


def _best_of_search(composition: Composition, choices: SearchOptions) -> ChosenPlan:
    wanted = request_of(composition, choices)
    if complaints.is_terminal:
        complaints.print("Searching all plans that the program can carry out, some seconds ...")
    training = training_of(wanted, choices)
    choice = choose(wanted, choices, training, 1)
    best = choice.best[0]
    setting, notes = best.space.setting, []
    parts = wanted.settings.model_copy(update={"cluster": setting.cluster})
    if training.num_steps is not None:
        parts, note = _of_length(composition, parts, training.num_steps)
        notes.append(note)
    require_order(parts)
    refusal = refusal_of(best.strategy, parts)
    search = wanted.settings.search.model_copy(update={"kind": "planner"})
    strategy = best.strategy if refusal is None else best_runnable_plan(best.space, parts, search)
    experiment = strategy.experiment(parts)
    predicted = estimate(experiment, setting.implementation)
    share = predicted.step_seconds / best.step_seconds - 1
    if refusal is not None and (gain := gain_of(share, "faster")):
        notes.append(f"The best plan of all is {gain}: {refusal.key} = {refusal.value}: {refusal.problem}.")
    if refusal is None:
        notes += passed_over_sentences(choice)
    if wanted.padding:
        notes.append(padded_vocabulary_sentence(wanted.vocab_size, wanted.settings.model.vocab_size))
    return ChosenPlan(experiment, predicted, setting.implementation.name, tuple(notes))


def _best_of_sweep(composition: Composition) -> ChosenPlan:
    """The point with the best prediction, of those that fit and that the program can carry out."""
    record = plan_sweep(composition, proxy=False, git_sha="")
    fitting = [trial for trial in record.plan if trial.infeasible_reason is None]
    if not fitting:
        first = next(trial.infeasible_reason for trial in record.plan if trial.infeasible_reason).rstrip(".")
        points = f"None of the {count_of(len(record.plan), 'point')} of sweep {record.name}"
        raise UsageError(
            f"{points} can be run; the first: {first}",
            "Look at them with `trisweep plan`, or search all plans with --search.",
        )
    best = by_prediction(fitting)[0]
    lost = len(record.plan) - len(fitting)
    out = f"{lost} {'does' if lost == 1 else 'do'} not fit or cannot be carried out"
    notes = (f"Of the sweep's {len(record.plan)} points, {out}.",) if lost else ()
    return ChosenPlan(best.planned, best.predicted, best.planned.trainer.costs_of, notes)


def _of_length(composition: Composition, settings: Settings, num_steps: int) -> tuple[Settings, str]:
    """The settings for a training of so many steps, and what is said of them.

    A warm-up that somebody states, by its key or with a file of `training`, stays. Raises ConfigError where
    `training.num_steps` says another length.
    """
    given, training = composition.overrides, settings.training
    stated = training.num_steps
    if STEPS in given.pinned_keys() and stated != num_steps:
        problem = f"differs from the {num_steps:,} steps of --tokens or --steps"
        raise ConfigError(STEPS, stated, problem, "Leave one of them out.")
    warmup, words = training.learning_rate_warmup_steps, "as stated"
    if WARMUP not in given.pinned_keys() and given.stated_value("training") is None:
        warmup = min(MOST_WARMUP_STEPS, math.ceil(WARMUP_SHARE * num_steps), num_steps - 1)
        words = f"a hundredth, at most {MOST_WARMUP_STEPS:,}, as {WARMUP} does not say it"
    lengths = {
        "num_steps": num_steps,
        "learning_rate_warmup_steps": warmup,
        "num_warmup_steps": min(training.num_warmup_steps, num_steps - 1),
    }
    tokens = num_steps * settings.batch.global_batch_size * settings.model.seq_length
    changed = type(training).model_validate(training.model_dump() | lengths)
    stated_flags = dict(flat(settings.trainer.flags))
    # Flags of the length are no longer those of a measurement.
    measuring = tuple(name for name in settings.trainer.measuring if stated_flags.get(name) not in OF_THE_LENGTH)
    trainer = settings.trainer.model_copy(update={"measuring": measuring})
    note = f"It trains {tokens:,} tokens in {num_steps:,} steps, the first {warmup:,} of them to warm up ({words})."
    return settings.model_copy(update={"training": changed, "trainer": trainer}), note


def _lines(chosen: ChosenPlan, slurm: SlurmSpec | None) -> Iterator[str]:
    """A shell script, for sbatch with these settings if any."""
    comments, files, command = list(_comments(chosen)), *_script(chosen.experiment, in_job=slurm is not None)
    if slurm is None:
        yield from (*comments, *files, *command)
        return
    from launcher.slurm.sbatch import job_script

    hours = chosen.predicted.step_seconds * chosen.experiment.training.num_steps / SECONDS_PER_HOUR
    if hours > slurm.time_limit_minutes / MINUTES_PER_HOUR:
        limit = f"ends after slurm.time_limit_minutes = {slurm.time_limit_minutes}"
        comments += _comment(f"! The job {limit}, and the steps take {hours:,.1f} h by the prediction.")
    first, *others = job_script(slurm, chosen.experiment, files, command)
    yield from (first, *comments, *others)


def _comments(chosen: ChosenPlan) -> Iterator[str]:
    """What is for people."""
    experiment, trainer = chosen.experiment, chosen.experiment.trainer
    devices = f"{experiment.parallel.world_size:,} x {experiment.cluster.device.name}"
    yield f"# {experiment.model.name} on {devices} ({experiment.cluster.name}):"
    yield f"# {experiment.label}"
    predicted = chosen.predicted
    rate = predicted.model_flops_per_second_per_device / TERA
    memory = f"{gib(predicted.peak_memory_bytes)} of {gib(predicted.memory_capacity_bytes)} GiB"
    figures = f"{predicted.step_seconds:.3g} s a step, {rate:.4g} TFLOPS a device, {memory}"
    yield from _comment(f"Predicted, not measured: {figures}, at the costs of {chosen.costs_of}.")
    odds = MemoryOdds.of(chosen.costs_of, experiment.parallel.world_size)
    if odds.likelihood(predicted.peak_memory_bytes, predicted.memory_capacity_bytes) < LIKELY:
        words = odds.in_words(predicted.peak_memory_bytes, predicted.memory_capacity_bytes)
        yield from _comment(unlikely_sentence(f"It is {words}"))
    names = names_of(trainer, experiment, _job_names(experiment))
    for note in chosen.notes:
        yield from _comment(note)
    if left_out := experiment.model.left_out:
        yield from _comment(f"The model's file says what is neither predicted nor in these flags: {left_out}.")
    if (scaling := experiment.model.rotary_scaling) is not None and scaling.kind == "yarn":
        yield from _comment("Not in these flags: the model's positions, which are stretched by yarn.")
    for limit in met_limits(trainer.differs, names, "trainer.differs"):
        yield from _comment(f"Differs from what is predicted: {limit.because}.")
    if unsaid := met_limits(trainer.unsaid, names, "trainer.unsaid"):
        yield "# A plan does not say these, which are yours to add where the model has them:"
        for limit in unsaid:
            yield from _comment(f"  {limit.because}")


def _comment(text: str) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()))
    first, others = f"# {indent}", f"# {indent}  "
    return wrap(text.lstrip(), WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _job_names(experiment: Experiment) -> dict[str, str]:
    """The names that only a job knows; files get a folder of the plan's own, where none of that name is a person's."""
    trainer = experiment.trainer
    marks = {name: MARK.format(variable) for name, variable in IN_A_SHELL.items()}
    folder = f"./{experiment.label}" if trainer.files else "."
    python, starter = trainer.python or "python", str(HUGGINGFACE_STARTER)
    return marks | {"trial_folder": folder, "python": python, "huggingface_starter": starter}


def _script(experiment: Experiment, *, in_job: bool) -> tuple[list[str], list[str]]:
    """The lines that write the program's files, and those that start it; inside a job srun has started the tasks."""
    trainer, job = experiment.trainer, _job_names(experiment)
    call = call_of(trainer, experiment, job)
    starting = () if in_job and trainer.start == "srun" else _start_words(experiment, job, call.training[0])
    files = list(_writing(call, job["trial_folder"]))
    if trainer.working_dir is not None:
        files.insert(0, f"cd {shlex.quote(trainer.working_dir)}")
    return files, list(_starting(call, (*trainer.prefix, *starting)))


def _writing(call: Call, folder: str) -> Iterator[str]:
    if call.files:
        yield f"mkdir -p {shlex.quote(folder)}"
    for name, content in call.files.items():
        yield f"cat > {shlex.quote(f'{folder}/{name}')} <<'END'"
        yield from content.splitlines()
        yield "END"


def _starting(call: Call, starting: Sequence[str]) -> Iterator[str]:
    """The environment and the command; flags that serve a measurement alone are an array of their own."""
    for name, value in call.environment.items():
        yield f"export {name}={_shell_word(value)}"
    command = _command_lines(starting, call.training)
    if call.measuring:
        yield from MEASURING
        yield "measuring=("
        yield from (f"  {line}" for line in _command_lines((), call.measuring))
        yield ")"
        command.append('"${measuring[@]}"')
    yield " \\\n  ".join(command)


def _start_words(experiment: Experiment, job: Mapping[str, str], program: str) -> tuple[str, ...]:
    """The words by which a person starts the program on all nodes; for torchrun, on each of them."""
    trainer, nodes, ranks = experiment.trainer, experiment.num_nodes, experiment.tasks_per_node
    if trainer.start == "srun":
        return ("srun", f"--nodes={nodes}", f"--ntasks-per-node={ranks}")
    if trainer.start == "once":
        return ()
    meeting = tuple(f"--{name.replace('_', '-')}={job[name]}" for name in ("node_rank", "master_addr", "master_port"))
    words = torchrun_words("python", nodes, ranks, program, meeting)
    return ("torchrun", *words[3:])


def _command_lines(starting: Sequence[str], words: Sequence[str]) -> list[str]:
    """The lines of the command: what starts the program, the program, and every flag with its values."""
    lines: list[list[str]] = [[]]
    for index, word in enumerate((*starting, *words)):
        # A negative number begins like a flag and is a value.
        is_flag = word.startswith("-") and not NUMBER.match(word)
        if lines[-1] and (is_flag or index == len(starting)):
            lines.append([])
        lines[-1].append(_shell_word(word))
    return [" ".join(line) for line in lines]


def _shell_word(word: str) -> str:
    """The word for a shell, which puts in the variables that stand for what only a job knows."""
    if not MARKED.search(word):
        return shlex.quote(word)
    return '"' + MARKED.sub(r"${\1}", SPECIAL.sub(r"\\\1", word)) + '"'
