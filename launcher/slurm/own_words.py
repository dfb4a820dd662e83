"""The lines that Slurm itself writes into a job's output, from 20.11 to 26.05, and the ends of jobs that they tell of.

Sources: src/slurmd/slurmstepd/req.c, src/plugins/task/cgroup, src/interfaces/jobacct_gather.c, src/srun/launch.c and
src/common/log.c of these versions, and logs that people have published.
"""

from __future__ import annotations

import re

from train_core.trial.measurement import Outcome

DAEMON = r"(?:slurmstepd|slurmd|srun)(?:-[\w.-]+)?: "
STAMP = r"\[[^\]\n]{8,40}\] "
PROGRESS_BAR = re.compile(rf"^(.*(?:\d%|\dit/s|\ds/it|\d/\d+ \[).*?) *(?={DAEMON}|{STAMP}error: )", re.MULTILINE)
GLUED = re.compile(rf"(?<=[^\s\"'`(\[{{<])(?={DAEMON}error: |{STAMP}error: \*\*\*|{STAMP}error: Detected )")
"""Words of Slurm's behind a line that the program has not ended. What stands there in quotation marks, or after a
blank, is the program's own."""

SLURM_SAYS = rf"^ *(?:\d+: )?(?:{DAEMON}(?:error: )?|(?:{STAMP})?error: )"
"""So begins a line of Slurm's own, also behind the number of a task. Since 2025 a time may stand where the daemon's
name stood, or nothing. What the program prints about nodes and memory decides nothing, so that all that follows has to
have the form of Slurm's own sentences."""

SRUN_SAYS = r"^ *(?:\d+: )?srun: (?:launch/slurm: \w+: )?error: "
CANCELLED = r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT [^*\n]*?"
OF_MEMORY = (
    r"(?:Detected \d+ )?oom[-_]kill event",
    r"(?:Step|Job)(?:Id=| )\S* exceeded (?:virtual )?memory limit",
    r"Exceeded job memory limit(?! at some point)",
)


def _said(*sentences: str, by_srun: str | None = None) -> re.Pattern[str]:
    of_srun = f"|{SRUN_SAYS}{by_srun}" if by_srun else ""
    return re.compile(rf"{SLURM_SAYS}(?:{'|'.join(sentences)}){of_srun}", re.MULTILINE)


WORDS_OF_SLURM = (
    (_said(f"{CANCELLED}DUE TO TIME LIMIT"), Outcome.TIMED_OUT),
    (
        _said(f"{CANCELLED}DUE TO NODE FAILURE", r"\*\*\* .* UNCORRECTABLE MEMORY", by_srun=r"Node failure on \S"),
        Outcome.NODE_FAILED,
    ),
    (_said(f"{CANCELLED}DUE TO PREEMPTION"), Outcome.PREEMPTED),
    (_said(*OF_MEMORY, by_srun=r"\S+: tasks? \d\S*: Out Of Memory"), Outcome.OUT_OF_MEMORY),
    (_said(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT (?!.*DUE TO )"), Outcome.CANCELLED),
)
"""It counts where Slurm has forgotten the job's state, and of memory always: a job beyond its --mem may be just FAILED.

The most specific come first. A person's cancellation has no DUE TO, or, since 25.05, one in other letters.
"""

REQUEUED = re.compile(rf"{SLURM_SAYS}{CANCELLED}DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE).*\n", re.MULTILINE)
TASK_END = re.compile(rf"{SRUN_SAYS}(\S+): tasks? (\d[\d,-]*): (.+)", re.MULTILINE)


def own_lines(log: str) -> str:
    """The log with all words of Slurm's at the beginning of a line, whatever bar they were written behind."""
    return GLUED.sub("\n", PROGRESS_BAR.sub(r"\1\n", log.replace("\r", "\n")))


def outcome_in_words(lines: str) -> Outcome | None:
    """Return the end that Slurm's own lines, as `own_lines` has them, tell of; None if they tell of none."""
    return next((outcome for words, outcome in WORDS_OF_SLURM if words.search(lines)), None)
