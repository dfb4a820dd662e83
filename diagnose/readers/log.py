"""A log, read line by line: where a start begins, and what each line says of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from diagnose.readers.bars import BAR_WORDS, LOSSES, BarReader
from diagnose.readers.beside import BESIDE_WORDS, Reads, read_beside, read_timers, readers_of
from diagnose.readers.blocks import BEFORE_YAML, FENCE, OF_YAML, OPENING_WORDS, OPENS_YAML, QUOTED, read_block
from diagnose.readers.book import StepBook
from diagnose.readers.commands import FRONT_ENDS, LAUNCHERS, read_script
from diagnose.readers.formats import FORMATS, StepFormat
from diagnose.readers.general import GeneralReader
from diagnose.readers.printed import DUMP_BEGINS, DUMP_ENDS, REPR_OPENS, read_dumped, read_listed
from diagnose.readers.records import record_of
from diagnose.readers.said import says
from diagnose.readers.steps import FigureReader, named_slots, number_of_step
from diagnose.readers.text import at, rank_of, without_speaker
from diagnose.readers.trees import printed_tree, read_tree
from diagnose.readers.unknown import USUAL, patterns_of, step_in
from diagnose.runs import SaidBy, UserRun

STARTS = ("using world size", "arguments -----", "Starting job", "***** Running training")
UTILIZATION = re.compile(r"GPU utilization: ([\d.]+) ?MODEL_TFLOP/s/GPU")
OPENS = re.compile(r"(?:^|[\s=:'\"(])\{\s*$")
PROMPT = re.compile(r"^\s*(?:\++ |\$ |> |\S+@\S+[$#] |cmd ?= ?)*")
COMMAND = re.compile(
    rf"(?:[A-Za-z_]+=\S+ +)*(?:\S*/)?(?:(?:{LAUNCHERS}|python[\d.]*) .*"
    rf"|(?:{FRONT_ENDS}) (?:train|sft|pt|run|launch|pretrain|finetune\w*|\S+\.(?:py|ya?ml))\b.*)|^\S+\.py +--?\w.*"
)
OF_COMMANDS = (".py ", " --", "llamafactory-cli ", "axolotl ")
ALL_WORDS = {
    *(*(each.opening for each in FORMATS), *BESIDE_WORDS, *STARTS, *BAR_WORDS, *OF_COMMANDS, *OPENING_WORDS),
    *(
        FENCE,
        "{'loss'",
        "..",
        ":print]",
        "GPU utilization",
        "Train ",
        "tep",
        "iter",
        "ter ",
        "Effective Tera",
        "throughput/",
    ),
    *(
        "memory: ",
        " sec: ",
        "Loss=",
        "CE loss",
        '"iter',
        "atch",
        "pdate",
        "poch",
        "oss",
        "it=",
        "chritt",
        "\u6b65",
        "\u8fed\u4ee3",
    ),
}
WORDS = tuple(sorted(word for word in ALL_WORDS if not any(other in word for other in ALL_WORDS - {word})))
"""A line without any of these says nothing here. None has a digit in it, so that all with the same words agree."""
RANK = re.compile(r"^\d{1,5}: ")
RAW_RANK = re.compile(rb"\[?(?:rank|default|trainer)?(\d+)[\]:|]")
RAW_NUMBER = re.compile(rb" *(\d+)(?![\d,])")
ENOUGH_OF_A_RANK = 16
OF_A_SCRIPT = re.compile(rb"\s*(?:$|#|export |set |source |module |cd |[A-Za-z_]\w*\+?=|--?[A-Za-z]|[\"')\\])")
"""How a line of a launch script begins."""
MOST_SHAPES, LEAST_IDLE = 50_000, 4
MOST_BARS, EVERY_BAR, ENDS_OF_BARS = 5_000, 8, tuple(f"{word}]" for word in BAR_WORDS)
"""Of more bars than this, whose rates are smoothed over many steps, every eighth is read."""
MOST_COLLECTED, MOST_COMMAND, MOST_STARTS = 4000, 400, 64

Hearer = Callable[[int, str, str], bool]


@dataclass
class LogStart:
    """One start of the run in a log, while it is read; `unknown` has the steps of a program that nobody here knows."""

    run: UserRun
    book: StepBook = field(default_factory=StepBook)
    speaker: int | None = None
    unknown: StepBook = field(default_factory=StepBook)

    def __post_init__(self) -> None:
        self.bars = BarReader(self.run, self.book)


@dataclass
class LinesTogether:
    """Lines that belong together: a dictionary or a class over many lines, or a command with its continuations."""

    first: int
    rank: int | None
    lines: list[str]
    depth: int = 1
    closing: str = "}"

    @property
    def is_block(self) -> bool:
        """True of what a fence holds, and of YAML, which may turn out to be something else."""
        return self.closing in (FENCE, ":")


class LogReader:
    """Hears the lines of one log, in order; `starts` are what it has told of so far."""

    def __init__(self, source: str, name: str, trainer: str = USUAL) -> None:
        """Begin to read a log.

        Args:
            trainer: a file of group trainer, whose patterns find the steps of a program that is not known here.
        """
        self.source, self.name = source, name
        self._patterns = None if trainer == USUAL else patterns_of(trainer)
        self.starts = [LogStart(UserRun(name))]
        self._format: StepFormat | None = None
        self._figures, self._general = FigureReader(named_slots), GeneralReader()
        self._in_dump = self._in_fence = self._is_again = False
        self._tree: LinesTogether | None = None
        self._command: LinesTogether | None = None
        self._pending: dict[str, float] = {}
        self._dull, self._idle = set[bytes](), dict[bytes, int]()
        self._shape, self._says_something = b"", True
        self._hearers: dict[bytes, Hearer] = {}
        self._beside: dict[bytes, tuple[Reads, ...]] = {}
        self._num_bars = 0
        self._timers: dict[bytes, bytes] = {}  # of each kind of such lines the last one, which alone counts
        self._recent: deque[bytes] = deque(maxlen=MOST_COMMAND)
        self._ranks, self._told = set[int](), dict[bytes, int]()

    @property
    def start(self) -> LogStart:
        return self.starts[-1]

    def is_dull(self, raw: bytes) -> bool:
        """True of a line that says nothing here. Talkative programs repeat few lines with other numbers in them."""
        self._recent.append(raw)
        if self._in_dump or self._tree is not None or self._command is not None:
            self._shape = b""  # what is read later as a part of something has none
            return False
        if not self._says_something:  # the line before had a word that counts, and said nothing all the same
            self._idle[self._shape] = idle = self._idle.get(self._shape, 0) + 1
            if idle >= LEAST_IDLE and self._shape:
                self._dull.add(self._shape)
        if self._is_copy(raw):
            return True
        self._shape, self._says_something = raw.translate(None, b"0123456789"), True
        if self._shape in self._dull:
            return True
        if self._shape in self._timers:
            self._timers[self._shape] = raw
            return True
        if self._shape in self._hearers:
            return False
        text = self._shape.decode("utf-8", "replace")
        if any(map(text.__contains__, WORDS)):
            self._says_something = False  # until it has been heard
            return False
        if len(self._dull) + len(self._idle) + len(self._hearers) >= MOST_SHAPES:
            self._dull.clear()
            self._idle.clear()
            self._hearers.clear()
        self._dull.add(self._shape)
        return True

    def _is_copy(self, raw: bytes) -> bool:
        """True of a step that another rank has told of, once this one has told its memory often enough."""
        if self._format is None or not self._ranks or (number := self._raw_number(raw)) is None:
            return False
        prefix = RAW_RANK.match(raw)
        if prefix is None or prefix[1].decode() == self.start.book.speaker:
            return False
        told = self._told.get(prefix[1], 0)
        self._told[prefix[1]] = told + 1
        return told > ENOUGH_OF_A_RANK and self.start.book.has(number)

    def _raw_number(self, raw: bytes) -> int | None:
        assert self._format is not None
        place = raw.find(self._format.opening.encode())
        digits = RAW_NUMBER.match(raw, place + len(self._format.opening)) if place >= 0 else None
        return int(digits[1]) + 1 - self._format.first if digits else None

    def hear(self, number: int, text: str) -> None:
        """Take one line."""
        if self._num_bars >= MOST_BARS and text.endswith(ENDS_OF_BARS):
            self._num_bars += 1
            if self._num_bars % EVERY_BAR:
                return
        if text.startswith(">"):
            text = QUOTED.sub("", text)
        if self._tree is not None and self._goes_on(self._tree, text):
            return
        if self._command is not None:
            self._command.lines.append(text)
            if not _is_continued(text) or len(self._command.lines) > MOST_COMMAND:
                self._end_command()
            return
        known = None if self._in_dump else self._hearers.get(self._shape)
        if known is not None and known(number, text, without_speaker(text)):
            return
        is_start = any(word in text for word in STARTS)
        if is_start and DUMP_ENDS.search(text) is None:
            self._begin(text)
        plain = without_speaker(text)
        if self._in_dump or ".." in text or ":print]" in text:
            self._in_dump = (self._in_dump or DUMP_BEGINS.search(text) is not None) and DUMP_ENDS.search(text) is None
            if read_dumped(self.start.run, plain, at(self.source, number, plain)):
                self._says_something = True
                return
        hearers = (
            self._hear_step,
            self._hear_bar,
            self._hear_record,
            self._opens,
            self._hear_unknown,
            self._hear_beside,
        )
        hearer = next((each for each in hearers if each(number, text, plain)), None)
        self._says_something |= hearer is not None
        if self._shape and hearer is not None and not is_start and hearer != self._opens:
            self._hearers[self._shape] = hearer

    def end(self) -> list[LogStart]:
        """Every start, once the log has ended, wherever it was cut."""
        for _ in range(2):  # what was taken for a block may hold a command or a dictionary that is cut
            if self._command is not None:
                self._end_command()
            if self._tree is not None:
                self._end_tree()
        self._end_timers()
        for start in self.starts:
            if not start.book.steps:
                start.book.steps = start.unknown.steps
        return self.starts

    def _begin(self, text: str) -> None:
        """Open another start where a line says that one begins, and the one before has stepped or failed."""
        start, rank = self.start, rank_of(text)
        has_run = bool(start.book.steps) or bool({"out_of_memory", "error"} & start.run.marks.keys())
        if has_run and start.speaker in (None, rank):
            self._open(rank)
        elif start.speaker is None:
            start.speaker = rank

    def _open(self, rank: int | None, keeps_settings: bool = False) -> None:
        if len(self.starts) >= MOST_STARTS:
            return
        self._end_timers()
        before = self.start.run
        run = UserRun(f"{self.name}, start {len(self.starts) + 1}", before.program)
        run.settings |= {name: fact for name, fact in before.settings.items() if keeps_settings or _is_of_machine(name)}
        self.starts.append(LogStart(run, StepBook(averages=self.start.book.averages), rank))

    def _hear_step(self, number: int, text: str, plain: str) -> bool:
        """Take a line about a step, or what stands beside one; False where it is none."""
        if "GPU utilization" in text and (match := UTILIZATION.search(text)):
            self._pending = {"tflops": float(match[1])}
            return True
        step_format, match = self._step_format(text)
        if step_format is None or match is None:
            return self._hear_behind(text, plain)
        self._format = step_format
        steps = self.start.book.steps
        counted = steps[-1].number + 1 if steps else 1
        step = number_of_step(match) + 1 - step_format.first if match.re.groups else counted
        rank = self._take(step, self._pending | self._figures.figures(text, step_format), number, text, plain)
        run, book = self.start.run, self.start.book
        if run.program in (None, "deepspeed"):  # whose engine prints beside a trainer
            run.program = step_format.program
        book.averages = step_format.averages
        self._pending = {}
        self._note_rank(rank, number, plain)
        return True

    def _take(
        self, step: int, found: dict[str, float], number: int, text: str, plain: str, is_unknown: bool = False
    ) -> int | None:
        """Take a step down, in another start where it can only be of one; returns the rank that tells of it."""
        rank = rank_of(text)
        speaker = "" if rank is None else str(rank)
        book = self.start.unknown if is_unknown else self.start.book
        if book.is_restart(step, found, speaker):
            self._open(rank, keeps_settings=True)
            book = self.start.unknown if is_unknown else self.start.book
        book.add(step, found, at(self.source, number, plain), speaker, text)
        return rank

    def _hear_behind(self, text: str, plain: str) -> bool:
        """Take a line that says more of the step before; False where it does not."""
        behind = self._format.behind if self._format is not None else None
        if self._format is None or not (behind.search(text) if behind else "Effective Tera" in text):
            return False
        found = self._figures.figures(plain, self._format)
        self.start.book.add_to_last(found)
        return bool(found)

    def _step_format(self, text: str) -> tuple[StepFormat | None, re.Match[str] | None]:
        """The format of a line about a step, and where its number stands; most are as the one before."""
        last = self._format
        if last is not None and last.opening in text and (match := last.number.search(text)) is not None:
            return last, match
        found = ((each, each.number.search(text)) for each in FORMATS if each.opening in text)
        return next(((each, match) for each, match in found if match), (None, None))

    def _hear_bar(self, number: int, text: str, plain: str) -> bool:
        if not any(word in text for word in BAR_WORDS) and not LOSSES.search(text):
            return False
        self._num_bars += 1
        heard = self.start.bars.steps_in(plain)
        for step, found in heard:
            if step is None:
                self.start.book.add_to_last(found)
            else:
                self._take(step, found, number, text, plain)
        if heard and (self.start.bars.is_bare or "{'loss'" in plain):
            self.start.run.program = self.start.run.program or "hf-trainer"
        return bool(heard)

    def _hear_beside(self, number: int, text: str, plain: str) -> bool:
        readers = self._beside.get(self._shape) if self._shape else readers_of(text)
        if readers is None:
            if len(self._beside) > MOST_SHAPES:
                self._beside.clear()
            readers = self._beside[self._shape] = readers_of(text)
        is_heard = bool(readers) and read_beside(self.start.run, text, at(self.source, number, plain), readers)
        if is_heard and readers == (read_timers,) and self._shape:
            self._timers[self._shape] = self._recent[-1]
        return is_heard

    def _end_timers(self) -> None:
        for raw in self._timers.values():
            text = raw.decode("utf-8", "replace").rstrip()
            read_timers(self.start.run, text, at(self.source, None, without_speaker(text)))
        self._timers.clear()

    def _hear_record(self, number: int, text: str, plain: str) -> bool:
        """Take a line that is a dictionary with the number of a step in it and a time or a rate."""
        if not plain.startswith("{") or not plain.rstrip().endswith("}") or (content := printed_tree(plain)) is None:
            return False
        step, found = record_of(content)
        if step is None or not found:
            return False
        self.start.book.averages |= "elapsed" in found
        self._take(step, found, number, plain, plain)
        return True

    def _hear_unknown(self, number: int, text: str, plain: str) -> bool:
        """Take a line by what it calls its figures, or by chosen patterns, while none of a known program has come."""
        if self.start.book.steps:
            return False
        step, found = step_in(plain, self._patterns) if self._patterns else self._general.step_in(plain)
        if step is None or not found:
            return False
        self._take(step, found, number, text, plain, is_unknown=True)
        return True

    def _note_rank(self, rank: int | None, number: int, plain: str) -> None:
        """Keep how many ranks speak, as long as none is left out: logs often are of some of them alone."""
        if rank is None or rank in self._ranks:
            return
        self._ranks.add(rank)
        if 1 < len(self._ranks) == max(self._ranks) + 1:
            says(self.start.run, "ranks_heard", len(self._ranks), SaidBy.COMPUTED, at(self.source, number, plain))
        else:
            self.start.run.settings.pop("ranks_heard", None)

    def _opens(self, number: int, text: str, plain: str) -> bool:
        """True if a dictionary of many lines, a block or a command begins in a line."""
        if self._tree is not None:
            return False
        if not self._is_again and self._opens_block(number, text):
            return True
        if text.rstrip().endswith("(") and REPR_OPENS.search(text):
            self._tree = LinesTogether(number, rank_of(text), [text], closing=")")
            return True
        if text.rstrip().endswith("{") and OPENS.search(text):
            self._tree = LinesTogether(number, rank_of(text), [text])
            return True
        if not any(word in text for word in OF_COMMANDS):
            return False
        command = PROMPT.sub("", plain)
        if COMMAND.match(command) is None:
            return False
        self._command = LinesTogether(number, rank_of(text), [command])
        if not _is_continued(text):
            self._end_command()
        return True

    def _opens_block(self, number: int, text: str) -> bool:
        """True of a fence, and of a line with which YAML begins."""
        if text.lstrip().startswith(FENCE) and text.count(FENCE) == 1:
            if not self._in_fence:
                self._tree = LinesTogether(number + 1, None, [], closing=FENCE)
            self._in_fence = not self._in_fence
            return True
        if BEFORE_YAML.search(text):
            self._tree = LinesTogether(number + 1, rank_of(text), [], closing=":")
            return True
        if OPENS_YAML.match(text):
            self._tree = LinesTogether(number, rank_of(text), [RANK.sub("", text)], closing=":")
            return True
        return False

    def _goes_on(self, tree: LinesTogether, text: str) -> bool:
        """Add a line to what began on a line before; lines of other ranks are left out."""
        if rank_of(text) not in (tree.rank, None) and tree.closing != FENCE:
            return False
        if tree.is_block:
            is_fence = text.lstrip().startswith(FENCE)
            if is_fence and tree.closing != FENCE:  # which opens or closes another block
                self._end_tree()
                return False
            self._in_fence &= not is_fence
            line = text if tree.closing == FENCE else RANK.sub("", text)
            if is_fence or len(tree.lines) > MOST_COMMAND or not (tree.closing == FENCE or OF_YAML.match(line)):
                self._end_tree()
                return is_fence
            tree.lines.append(line)
            return True
        tree.lines.append(text)
        tree.depth += text.count("{" if tree.closing == "}" else "(") - text.count(tree.closing)
        if tree.depth <= 0 or len(tree.lines) > MOST_COLLECTED:
            self._end_tree()
        return True

    def _end_tree(self) -> None:
        tree, self._tree, self._shape = self._tree, None, b""
        assert tree is not None
        if tree.is_block:
            if not read_block(self.start.run, self.source, tree.lines, tree.first):
                self._is_again = True
                for offset, line in enumerate(tree.lines):
                    self.hear(tree.first + offset, line)
                self._is_again = False
            return
        plain = [without_speaker(line) for line in tree.lines]
        if tree.closing == ")" and tree.depth <= 0:
            read_listed(self.start.run, plain, at(self.source, tree.first))
            return
        if tree.closing == "}" and (content := printed_tree("\n".join(plain))) is not None:
            read_tree(self.start.run, content, self.source, plain, SaidBy.RESOLVED, tree.first)
            return
        for offset, line in enumerate(tree.lines[1:], 1):  # it was none, or is cut: each line for itself
            self.hear(tree.first + offset, line.replace("{", " ").replace("(\n", " "))

    def _end_command(self) -> None:
        command, self._command = self._command, None
        assert command is not None
        before = self._script_before(len(command.lines)) if any("$" in line for line in command.lines) else []
        text = "\n".join([*before, *command.lines])
        read_script(self.start.run, self.source, text, command.first - len(before))

    def _script_before(self, num_lines: int) -> list[str]:
        """The lines of a script that stand before its command, where somebody pasted it beside the log."""
        lines: list[str] = []
        for raw in list(self._recent)[-num_lines - 1 :: -1]:
            if OF_A_SCRIPT.match(raw) is None:
                break
            lines.insert(0, raw.decode("utf-8", "replace").rstrip("\r\n"))
        return lines


def _is_continued(text: str) -> bool:
    return text.rstrip().endswith("\\")


def _is_of_machine(name: str) -> bool:
    """True of what another start of the same job on the same devices keeps."""
    return name.isupper() or name.startswith(("device_", "sbatch.", "nccl_", "ranks_"))
