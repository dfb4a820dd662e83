"""Launch scripts and command lines: the flags that a program got, the launcher's, Slurm's lines and variables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from conf.errors import ConfigError
from diagnose.readers.branches import Word
from diagnose.readers.said import says
from diagnose.readers.shell import Script, filled_text, script_of
from diagnose.readers.text import STDIN, at, text_beside
from diagnose.readers.trees import TREES, printed_tree, read_tree, tree_of
from diagnose.runs import LogLine, SaidBy, UserRun

FLAG = re.compile(r"--?([A-Za-z][\w./-]*)(?:=(.*))?", re.DOTALL)
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.-]*(?:/[\w.-]+)?(?:@[\w.:]+)?)=(.*)", re.DOTALL)
OWN_TRAINERS = "llamafactory-cli|swift|megatron|axolotl|xtuner|litgpt|composer|tune"
FRONT_ENDS = f"{OWN_TRAINERS}|colossalai|accelerate"
"""Programs that start a training, theirs as in `llamafactory-cli train x.yaml`, or somebody's script."""
LAUNCHERS = "torchrun|srun|deepspeed|mpirun|mpiexec|aprun|jsrun"
LAUNCHES = re.compile(rf"(?:\S*/)?(?:{LAUNCHERS}|{FRONT_ENDS}|python[\d.]*|nemo|bash|\S+\.py)$")
PROGRAM = re.compile(rf"\S+\.py$|(?:\S*/)?(?:torchrun|deepspeed|{FRONT_ENDS})$")
NAMED_PROGRAM = re.compile(rf"(?:\S*/)?(?:{OWN_TRAINERS})$")
SCHEDULED = re.compile(r"^#(?:SBATCH|PBS|BSUB)\s+(?:-l\s+)?(.+)$")
SHORT_OF_SLURM = {"N": "nodes", "n": "ntasks", "G": "gpus", "np": "np", "ppn": "ppn"}
GLUED = re.compile(r"(?<!\S)-([NnG])(\d+)(?!\S)")
"""A short flag with its value in one word, as in `-N4`."""
SHORT_OF_MPI = {"n": "np", "np": "np", "N": "ntasks_per_node", "ppn": "ntasks_per_node", "npernode": "ntasks_per_node"}
SHORT_OF = {"srun": SHORT_OF_SLURM, **dict.fromkeys(("mpirun", "mpiexec", "aprun"), SHORT_OF_MPI)}
"""What launchers mean by short flags, which a program behind them may mean otherwise."""
ENVIRONMENT = re.compile(
    r"(?:CUDA|NCCL|TORCH|PYTORCH|NVTE|UCX|OMP|XLA|HSA|RCCL|ROCR|HIP|FI|DS|TOKENIZERS|ACCELERATE|SLURM|GPU_MAX|LOGLEVEL|FORCE_TORCHRUN)_?\w*"
    r"|N(?:UM_)?NODES|N(?:UM_)?GPUS?|NPROC_PER_NODE|(?:NUM_)?GPUS_PER_NODE|WORLD_SIZE"
)
"""Variables that change how fast a training is, or say where it ran."""
LISTED = re.compile(r"[a-z_]+=[\w.]+(?:,[a-z_]+=[\w.]+)+")
HERE_DOCUMENT = re.compile(
    r"<<-?[ ]*['\"]?(\w+)['\"]?[^\n]*\n(\s*\{.*?\n|(?:[ \t]*(?:#.*|- .+|[\w./@-]+:(?: .*)?)?\n)+?)\s*\1[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
"""JSON or YAML that a script writes."""
REST = re.compile(r"\d?[<>]|\$\{?\w*(?:ARGS|OPTS|FLAGS|EXTRA|OVERRIDES)|\$[@*\d]|\$\{\w+\[@\]\}", re.IGNORECASE)
"""What stands behind a flag and is not its value: a redirection, or a variable of further flags that nobody sets."""
ENDS_PROGRAM = re.compile(r"\S+\.py$|(?:\S*/)?(?:torchrun|deepspeed|accelerate|tune|litgpt|composer)$")
ENDS_VALUES = (re.compile(FLAG.pattern + "$", re.DOTALL), ENDS_PROGRAM, OVERRIDE, REST)
NAMED_FILE, OF_DATA = re.compile(r"\.(?:ya?ml|toml|json)$", re.IGNORECASE), re.compile(r"data|vocab|token|merge|split")
PROGRAM_NAME = "program"
MOST_OF_A_VALUE, MOST_VALUES = 400, 64


def read_script(run: UserRun, source: str, text: str, first_line: int = 1) -> None:
    """Take down what a launch script, or a command that a log repeats, says of a run."""
    scheduled, documents = _scheduled(run, source, text, first_line), list(HERE_DOCUMENT.finditer(text))
    lines = text.split("\n")
    for document in documents:  # a configuration that the script writes; commands in one are left where they are
        text = text.replace(document[2], "\n" * document[2].count("\n"))
    script = script_of(text, scheduled, first_line, lambda name: text_beside(source, name) if source != STDIN else None)
    for document in documents:
        content = _document(filled_text(document[2], script.variables))
        if isinstance(content, dict):
            above = first_line + document.string[: document.start(2)].count("\n")
            read_tree(run, content, source, document[2].split("\n"), SaidBy.FILE, above)

    def shown(word: Word) -> str:
        place = word.line - first_line
        return lines[place] if 0 <= place < len(lines) else word.text

    for name, words in script.variables.items():
        if ENVIRONMENT.fullmatch(name) and words and name not in scheduled:
            says(
                run,
                name,
                " ".join(word.text for word in words),
                SaidBy.FLAG,
                at(source, words[0].line, shown(words[0])),
            )
    for words in _launching(script):
        _read_named(run, source, words)
        read_flags(run, [(word.text, at(source, word.line, shown(word))) for word in words])


def _document(text: str) -> object:
    if text.lstrip().startswith("{"):
        return printed_tree(text)
    try:
        return tree_of(textwrap.dedent(text), "", "yaml")
    except ConfigError:
        return None


def _read_named(run: UserRun, source: str, words: list[Word]) -> None:
    """Take down the configurations that a command names, where they lie beside the file that has it."""
    for word in words:
        name = word.text.rpartition("=")[2].strip("\"'")
        if source == STDIN or NAMED_FILE.search(name) is None or OF_DATA.search(name) is not None:
            continue
        text = text_beside(source, name)
        try:
            content = tree_of(text, name, TREES[Path(name).suffix.lower()]) if text else None
        except ConfigError:
            continue
        if isinstance(content, dict):
            read_tree(
                run, content, f"{Path(name).name} beside {Path(source).name}", (text or "").splitlines(), SaidBy.FILE
            )


def _launching(script: Script) -> Iterable[list[Word]]:
    """The commands that start something; all that look like flags where none does, as in a part of a script."""
    found = [words for words in script.commands if any(PROGRAM.match(word.text) for word in words)]
    found = found or [words for words in script.commands if LAUNCHES.match(words[0].text)]
    if found or any(word.text.startswith("--") for words in script.commands for word in words):
        return found or script.commands
    return [words for words in script.variables.values() if any(word.text.startswith("--") for word in words)]


def _scheduled(run: UserRun, source: str, text: str, first_line: int) -> dict[str, str]:
    """Take down what `#SBATCH` lines ask for; returns the variables that Slurm makes of it."""
    found: dict[str, str] = {}
    for offset, line in enumerate(text.split("\n")):
        if (match := SCHEDULED.match(line.strip())) is None:
            continue
        words = GLUED.sub(r"-\1 \2", re.sub(r"\s#.*", "", match[1]))
        for name, value in re.findall(r"--?([A-Za-z][\w-]*)[ =]*([^\s-][^\s]*)?", words):
            key = SHORT_OF_SLURM.get(name, name).replace("-", "_")
            found[key] = value
            says(run, f"sbatch.{key}", value, SaidBy.FLAG, at(source, first_line + offset, line))
    nodes, tasks = found.get("nodes", ""), found.get("ntasks_per_node", "")
    made = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": found.get("ntasks", "")}
    made |= {
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_GPUS_ON_NODE": gpus_of(found.get("gpus_per_node") or found.get("gres", "")),
    }
    made |= {"SLURM_GPUS_PER_NODE": made["SLURM_GPUS_ON_NODE"]}
    return {name: value for name, value in made.items() if value.isdigit()}


def gpus_of(text: str) -> str:
    """The count in Slurm's `gpu:h100:8`, `h100:8` or `8`; empty where it has none."""
    match = re.search(r"(?:^|:)(\d+)(?:\(|,|$)", text)
    return match[1] if match else ""


def read_flags(run: UserRun, words: list[tuple[str, LogLine]], said_by: SaidBy = SaidBy.FLAG) -> None:
    """Take down the flags of one command, each with what follows it, and Hydra's `key=value`."""
    rest, short = iter(range(len(words))), dict[str, str]()
    for place in rest:
        text, line = words[place]
        if LAUNCHES.match(text):
            short = SHORT_OF.get(text.rpartition("/")[2], {})
        if (flag := FLAG.fullmatch(text)) is not None:
            values = (
                [flag[2]] if flag[2] is not None else _values([word for word, _ in words[place + 1 :][:MOST_VALUES]])
            )
            if flag[2] is None:
                for _ in values:
                    next(rest)
            value = " ".join(values)[:MOST_OF_A_VALUE] or "True"
            if (glued := GLUED.fullmatch(text)) is not None and glued[1] in short:
                says(run, short[glued[1]], glued[2], said_by, line)
            says(run, short.get(flag[1]) or _name(flag[1]), value, said_by, line)
            if flag[1] == "config_overrides":  # of run_clm.py: "n_embd=1024,n_layer=24"
                read_flags(run, [(each, line) for each in value.split(",")], said_by)
        elif (override := OVERRIDE.fullmatch(text)) is not None:
            says(run, override[1], override[2][:MOST_OF_A_VALUE].replace("\\", "").strip("\"'"), said_by, line)
        elif text.endswith(".py") or NAMED_PROGRAM.match(text):
            says(run, PROGRAM_NAME, text, said_by, line)


def _values(words: list[str]) -> list[str]:
    """The words that belong to a flag: one number, or texts up to the next flag, program or `key=value`."""
    if words and (words[0].replace(".", "", 1).isdigit() or LISTED.fullmatch(words[0])):
        return words[:1]
    ends = (place for place, word in enumerate(words) if any(end.match(word) for end in ENDS_VALUES))
    return words[: next(ends, len(words))]


def _name(flag: str) -> str:
    return PROGRAM_NAME if flag == "m" else flag.replace("-", "_")
