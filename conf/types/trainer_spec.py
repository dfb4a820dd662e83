"""The program that trains: this package's own trainer, or any command line that is made from the plan."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from conf.errors import ConfigError
from conf.overrides import value_text
from conf.types.schema import Frozen, Name, Printed, Value

Start = Literal["torchrun", "srun", "once"]
Parser = Literal["megatron-lm", "torchtitan"]
"""The programs whose own parser can be called before anything is submitted."""

CostsOf = Literal["trisweep", "megatron-lm", "megatron-deepspeed", "megatron-core", "fsdp", "torchtitan", "deepspeed"]
"""The trainers whose costs the cost model knows; `costs.IMPLEMENTATIONS` declares them."""

Practice = Literal["first-run", "recipe", "tuned"]
"""How well somebody's runs are tuned: as a trainer first ran; by its maker's recipe; until nothing made it faster."""

Decimal = Literal["point", "comma"]
TIMES = (
    "step_seconds",
    "step_milliseconds",
    "steps_per_second",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "samples_per_second",
)
"""The quantities that tell how long a step took, the most direct one first."""

QUANTITIES = (
    "step",
    "epoch",
    "loss",
    "held_out_loss",
    "gradient_norm",
    "learning_rate",
    *TIMES,
    "tflops",
    "memory_bytes",
    "memory_mib",
    "memory_gib",
)
"""Names of groups in patterns. `tflops` are those of one device, as the program counts them."""

OF_A_RANK = ("rank", "local_rank")
"""Names that are known only where every process is started for one rank."""

ABOUT_PLANS = {"costs_of", "practice", "limits_of", "refuses", "differs", "measuring", "unsaid", "flavors", "parser"}
"""Keys that say what is thought of a program's plans and flags; they change nothing of what it does."""

NOT_A_FILE = re.compile(r"^[/~]|(^|/)\.\.(/|$)")


PARAM = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
Param = Annotated[str, Field(pattern=rf"^{PARAM.pattern}$")]
"""The name of a value of the program's own."""


class LookUp(Frozen):
    """The program's word for a value of the plan, such as `LayerNorm` for the family `gpt`.

    Attributes:
        of: the name of the value that is looked up.
        to: by that value as it is written in YAML; texts may hold names in braces.
        otherwise: for any other value; null leaves a flag out.
    """

    of: str
    to: dict[str, Value | Annotated[tuple[str, ...], Field(strict=False)]]
    otherwise: Value = None

    @field_validator("to", mode="before")
    @classmethod
    def _keys_are_texts(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key if isinstance(key, str) else value_text(key): entry for key, entry in value.items()}


class Limit(Frozen):
    """Values of the plan that the program cannot carry out, or carries out otherwise.

    Attributes:
        of: the name of the value.
        values: those that are meant; null means all but `other_than`.
        other_than: those that the program can carry out, where `values` is null.
        because: what the program does or lacks, in one sentence, in which names in braces stand for values.
    """

    of: str
    values: Annotated[tuple[Value, ...], Field(strict=False)] | None = None
    other_than: Annotated[tuple[Value, ...], Field(strict=False)] = ()
    because: str

    def meets(self, value: object) -> bool:
        text = value_text(value)
        if self.values is None:
            return text not in map(value_text, self.other_than)
        return text in map(value_text, self.values)


class LogSpec(Frozen):
    """The patterns by which the program's log is read.

    Attributes:
        patterns: regular expressions by a name for people; their groups are named after QUANTITIES.
        first_step: the number that the program gives to its first step.
        done: what the log says once training has ended well; null trusts the exit code alone.
        errors: what means that the trial has failed, whatever the exit code is.
        decimal: what stands before the decimals of its numbers; null: a point, and a comma that could be one is said.
        figures: every number that is printed under a name is read, from lines of JSON and from `name: value` and
            `name=value`; a pattern's groups may then have any name, and a trial makes as many steps as it likes.
    """

    patterns: dict[str, str] = Field(default_factory=dict)
    first_step: Annotated[int, Field(ge=0)] = 1
    done: str | None = None
    errors: Annotated[tuple[str, ...], Field(strict=False)] = ()
    decimal: Decimal | None = None
    figures: bool = False

    @model_validator(mode="after")
    def _patterns_are_regular(self) -> LogSpec:
        for name, pattern in self.patterns.items():
            groups = _compile(f"trainer.log.patterns.{name}", pattern).groupindex
            unknown = [group for group in groups if group not in QUANTITIES]
            if unknown and not self.figures:
                remedy = f"Name groups (?P<NAME>...) after {', '.join(QUANTITIES)}."
                problem = f"its group {unknown[0]} is not a quantity"
                raise ConfigError(f"trainer.log.patterns.{name}", pattern, problem, remedy)
            if not groups:
                remedy = r"Name what it finds, such as 'loss: (?P<loss>\S+)'."
                raise ConfigError(f"trainer.log.patterns.{name}", pattern, "names no quantity", remedy)
        for index, pattern in enumerate(self.errors):
            _compile(f"trainer.log.errors[{index}]", pattern)
        if self.done is not None:
            _compile("trainer.log.done", self.done)
        return self

    @property
    def quantities(self) -> frozenset[str]:
        return frozenset(group for pattern in self.patterns.values() for group in re.compile(pattern).groupindex)

    def require(self, what: str, wanted: Collection[str]) -> None:
        """Raises ConfigError for patterns of which none finds one of the wanted quantities."""
        if self.quantities.isdisjoint(wanted):
            remedy = f"Add one with a group (?P<NAME>...), whose NAME is {' or '.join(wanted)}."
            raise ConfigError("trainer.log.patterns", list(self.patterns), f"no pattern finds {what}", remedy)


class MetricsSpec(Frozen):
    """The place of the figures of a program that does not train, such as an evaluation.

    Attributes:
        file: a JSON object, inside the trial's folder; numbers in objects inside it are called `outer.inner`.
        line: a regular expression, whose named groups are the figures; of several lines the last one counts.
    """

    file: str | None = None
    line: str | None = None

    @model_validator(mode="after")
    def _says_where(self) -> MetricsSpec:
        if (self.file is None) == (self.line is None):
            remedy = "Give one of metrics.file=scores.json and metrics.line='score (?P<score>[.0-9]+)'."
            raise ConfigError("metrics", self.places, "says not one place where figures are found", remedy)
        if self.file is not None and (not self.file or NOT_A_FILE.search(self.file)):
            remedy = "Give a path inside the trial's folder, such as scores.json."
            raise ConfigError("metrics.file", self.file, "is not a file inside the trial's folder", remedy)
        if self.line is not None and not _compile("metrics.line", self.line).groupindex:
            remedy = r"Name what it finds, such as 'score (?P<score>\S+)'."
            raise ConfigError("metrics.line", self.line, "names no figure", remedy)
        return self

    @property
    def places(self) -> dict[str, str | None]:
        """The places that it names, for messages."""
        return {"file": self.file, "line": self.line}


class TrainerSpec(Frozen):
    """The program that trains.

    Texts of `command`, `flags`, `values`, `files` and `environment` may hold names in braces, see
    `conf.plan.trainer_call`. Every value is one word of the command, whatever is in it: no shell reads it.

    Attributes:
        kind: `trisweep`: the trainer of this package, for which `practice` alone counts too; `command`: a program that
            trains; `program`: one that does not, so that no steps are looked for in its log.
        name: what the program is called in reports.
        costs_of: the trainer whose costs the prediction takes.
        practice: how well its runs are tuned, which decides how wide predictions are; null: `recipe` for this package's
            own trainer on GPUs, `first-run` for any other.
        start: who starts the processes: `torchrun` once on every node, `srun` one for every device, or the program
            itself, `once` on the first node.
        command: the words before the flags: a list, or a text that is split as a shell would.
        flags: `name: value` becomes `--name value`, true alone `--name`; false and null leave it out. A mapping puts
            its name and a dot before the names in it.
        values: further names, each looked up by a value of the plan.
        params: further names with their values, which a sweep varies as `trainer.params.NAME`; null: an axis gives it.
        files: to be written into the trial's folder before the start: texts, or mappings as JSON.
        environment: variables of the program, beside those of the job.
        log: how its log is read.
        prefix: words before everything, such as those that start a container.
        python: for `{python}`, and to start torchrun; null takes the one that runs the job.
        working_dir: where the program is started; null takes the folder in which the sweep was.
        limits_of: the trainer of `trainer_limits.yaml` that cannot run the same plans; null: `refuses` says all.
        refuses: plans that the program cannot carry out, beside those.
        differs: plans that it carries out otherwise than they are predicted.
        measuring: names of the flags that serve a measurement and no training, which `--as` prints apart.
        unsaid: what the program has and a plan does not say, which `--as` prints as comments.
        flavors: models that the program has under names of its own: by each name, the values of its shape.
        parser: the program whose own parser checks flags before anything is submitted; null: none does.
        metrics: where the figures of a `program` are found; null: it has none.
    """

    kind: Literal["trisweep", "command", "program"]
    name: Name = "trisweep"
    costs_of: CostsOf = "trisweep"
    practice: Practice | None = None
    start: Start = "torchrun"
    command: Annotated[tuple[str, ...], Field(strict=False)] = ()
    flags: dict[str, JsonValue] = Field(default_factory=dict)
    values: dict[str, LookUp] = Field(default_factory=dict)
    params: dict[Param, Value] = Field(default_factory=dict)
    files: dict[str, JsonValue] = Field(default_factory=dict)
    prefix: Annotated[tuple[str, ...], Field(strict=False)] = ()
    python: str | None = None
    working_dir: str | None = None
    environment: dict[str, Printed] = Field(default_factory=dict)
    log: LogSpec = LogSpec()
    limits_of: CostsOf | None = None
    refuses: Annotated[tuple[Limit, ...], Field(strict=False)] = ()
    differs: Annotated[tuple[Limit, ...], Field(strict=False)] = ()
    measuring: Annotated[tuple[str, ...], Field(strict=False)] = ()
    unsaid: Annotated[tuple[Limit, ...], Field(strict=False)] = ()
    flavors: dict[str, dict[str, Value]] = Field(default_factory=dict)
    parser: Parser | None = None
    metrics: MetricsSpec | None = None

    @property
    def is_own(self) -> bool:
        return self.kind == "trisweep"

    @property
    def trains(self) -> bool:
        """True if it makes steps, whose time is measured."""
        return self.kind != "program"

    def is_told(self, name: str) -> bool:
        """True if the value of a name in braces reaches the program; this package's own knows all of them."""
        texts = str((self.command, self.flags, self.values, self.files, self.environment))
        return self.is_own or f"{{{name}}}" in texts or any(look_up.of == name for look_up in self.values.values())

    @property
    def knows_model(self) -> bool:
        """True if the program is told something of the model or its layout, so that FLOPs and memory may be its own."""
        texts = str((self.command, self.flags, self.values, self.files, self.environment))
        return self.is_own or (not self.is_script and ("{model." in texts or "{parallel." in texts))

    @property
    def is_script(self) -> bool:
        """True of a program that is judged by what it prints alone: no time of its steps is read."""
        return self.log.figures

    @property
    def program(self) -> str:
        """The program's name."""
        return program_name(self.command)

    @model_serializer(mode="wrap")
    def _in_short(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What counts alone of this package's own trainer, since thousands of trials are stored."""
        if not self.is_own:
            return whole(self)
        return {"kind": self.kind} | ({} if self.practice is None else {"practice": self.practice})

    def identity(self) -> dict[str, Any]:
        """The values that set a measurement with this program apart: all but words about plans, and how it is read."""
        values = self.model_dump(mode="json", exclude={*ABOUT_PLANS, "log"})
        for name in ("metrics", "params"):
            if not values[name]:
                del values[name]
        return values

    @field_validator("command", "prefix", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        return split_words(value, "trainer.command")

    @model_validator(mode="after")
    def _is_complete(self) -> TrainerSpec:
        if self.is_own:
            return self
        if not self.command:
            remedy = "Give trainer.command=[python,train.py], or the command in the sweep's file."
            raise ConfigError("trainer.command", [], "names no program", remedy)
        if self.trains and not self.log.figures:
            self.log.require("a step", ("step",))
        self._require_known_ranks()
        for name in self.files:
            if not name or NOT_A_FILE.search(name):
                remedy = "Give a path inside the trial's folder, such as config.json."
                raise ConfigError("trainer.files", name, "is not a file inside the trial's folder", remedy)
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                remedy = "Use letters, digits and underscores, and begin with no digit."
                raise ConfigError("trainer.environment", name, "cannot name a variable", remedy)
        return self

    def _require_known_ranks(self) -> None:
        for name in OF_A_RANK if self.start != "srun" else ():
            if self.is_told(name):
                problem = (
                    f"does not start a process for every rank, and {{{name}}} is known only with trainer.start=srun"
                )
                raise ConfigError("trainer.start", self.start, problem, "Read it from the environment, or use srun.")


TRISWEEP = TrainerSpec(kind="trisweep")


def program_name(words: Sequence[str]) -> str:
    """The name of the script, without its ending, or of the module, else that of the program; as of a folder."""
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    module = next((word for before, word in pairwise(words) if before == "-m"), None)
    name = Path(script).stem if script else module or Path(*words[:1]).name
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-") or "script"


def split_words(value: object, key: str) -> list[Any]:
    """The words of a command. A text is split before any value is put in, so that values stay single words."""
    if isinstance(value, list | tuple):
        return [value_text(word) if isinstance(word, int | float) else word for word in value]
    if not isinstance(value, str):
        raise ConfigError(key, value, "is not a command", "Give a list of words, or a text.")
    try:
        return shlex.split(value)
    except ValueError as error:
        remedy = "Close the quotation, or give a list of words."
        raise ConfigError(key, value, f"cannot be split into words ({error})", remedy) from None


def _compile(key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(key, pattern, f"is not a regular expression ({error})", "Correct it.") from None
