"""Parts of a log or of a report that are a configuration or a script: in fences, or as YAML that is printed."""

from __future__ import annotations

import re
import textwrap
import tomllib

from conf.errors import ConfigError
from conf.yaml_text import yaml_content
from diagnose.readers.commands import FRONT_ENDS, LAUNCHERS, read_script
from diagnose.readers.text import KEY
from diagnose.readers.trees import printed_tree, read_tree
from diagnose.runs import SaidBy, UserRun

FENCE = "```"
QUOTED = re.compile(r"^(?:> ?)+")
"""What answers on the web put in front of each line that they quote."""
OPENS_YAML = re.compile(
    r"^(?:\d{1,5}: )?\s*(?:(?:trainer|model|parallelism|fsdp_config|data|train):\s*$|- (?:trainer|model):\s*$"
    r"|(?:base_model|model_name_or_path|compute_environment|max_seq_len): ?\S)"
)
BEFORE_YAML = re.compile(r"(?i)\bconfig(?:uration)?(?: values| parameters)?:\s*$")
"""How a line ends behind which a program prints its configuration."""
OPENING_WORDS = (
    "onfig:",
    "onfiguration:",
    "trainer:",
    "model:",
    "parallelism:",
    "fsdp_config:",
    "train:",
    "base_model:",
    "_or_path:",
    "_environment:",
)
OF_YAML = re.compile(r"^\s*(?:#.*|- .+|[\w./@-]+:(?: .*)?)?$")
TABLE = re.compile(r"^\s*\[[\w.]+\]\s*$", re.MULTILINE)
OF_A_SCRIPT = re.compile(
    r"^\s*(?:#!|#SBATCH|export \w+=|[A-Z_]+=\S+ ?\\?$)"
    rf"|^\s*(?:\w+=\S+ +)*(?:\S*/)?(?:{LAUNCHERS}|{FRONT_ENDS}|python[\d.]*) ",
    re.MULTILINE,
)
LEAST_KEYS = 3


def read_block(run: UserRun, source: str, lines: list[str], first_line: int) -> bool:
    """Take down a block that is a tree or a script; False where it is neither, such as a log."""
    text = "\n".join(lines)
    content = _tree_in(text)
    if content is not None:
        read_tree(run, content, source, lines, SaidBy.FILE, first_line)
        return True
    if OF_A_SCRIPT.search(text) is not None and not _is_a_log(text):
        read_script(run, source, text, first_line)
        return True
    return False


def _tree_in(text: str) -> dict[str, object] | None:
    """The content of a text that is JSON, TOML or YAML; None of any other, or of one that is cut."""
    if text.lstrip().startswith("{"):
        return printed_tree(text)
    try:
        if TABLE.search(text) is not None:
            return tomllib.loads(text)
        if all(OF_YAML.match(line) for line in text.split("\n")):
            content = yaml_content(textwrap.dedent(text).expandtabs(2), "", KEY)
            return content if isinstance(content, dict) and len(content) >= LEAST_KEYS else None
    except (ConfigError, ValueError, RecursionError):
        return None
    return None


def _is_a_log(text: str) -> bool:
    """True of a text in which programs talk: times, bars and ranks stand in no script."""
    return re.search(r"^\s*\[?(?:rank ?\d+|\d{4}-\d\d-\d\d)|\d+%\|| iteration +\d+/", text, re.MULTILINE) is not None
