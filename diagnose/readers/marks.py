"""Lines that tell what happened beside the steps, and why a run may be slow or have ended."""

from __future__ import annotations

import re

from diagnose.runs import LogLine, UserRun

KINDS: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    "saving": (
        ("aving", "checkpoint at"),
        re.compile(r"\b(?:[Ss]aving (?:model |the )?(?:a |final )?(?:full )?checkpoint|successfully saved checkpoint)"),
    ),
    "evaluation": (
        ("valuat", "alidat", "eval_"),
        re.compile(
            r"\*+ Running Evaluation|\bvalidation loss at|\bvalidate step:|\bRunning (?:valid|eval)ation|'eval_loss'"
        ),
    ),
    "out_of_memory": (
        ("emory",),
        re.compile(r"\bout of memory\b|OutOfMemoryError|HIP out of memory|Out of memory", re.IGNORECASE),
    ),
    "recompilation": (
        ("ecompil", "cache_size_limit"),
        re.compile(r"\b[Rr]ecompil(?:ing|es? limit|ation)|torch\._dynamo hit config\.(?:cache_size|recompile)_limit"),
    ),
    "socket": (("NET/Socket", "NET/sockets"), re.compile(r"NET/[Ss]ockets?")),
    "infiniband": (("NET/IB",), re.compile(r"NET/IB(?! : No device)")),
    "other_network": (("NET/",), re.compile(r"NET/(?!IB|[Ss]ocket|Plugin|P2P)\w+|NET/OFI")),
    "no_nvlink": (
        ("PIX", "PXB", "PHB", "NODE", "SYS"),
        re.compile(r"^\s*GPU[1-9]\d*\s(?!.*\bNV\d).*\s(?:PIX|PXB|PHB|NODE|SYS)\s"),
    ),
    "shared_memory": (("via SHM",), re.compile(r"via SHM")),
    "fragmentation": (
        ("memory pressure", "alloc retries"),
        re.compile(r"memory pressure|[1-9]\d* (?:CUDA )?memory alloc(?:ation)? retries"),
    ),
    "unfused_softmax": (("fused softmax",), re.compile(r"fused softmax.*\bnot met")),
    "error": (
        ("Error", "Traceback"),
        re.compile(r"^Traceback|\b(?:RuntimeError|ChildFailedError|NCCL error|ValueError|AssertionError)\b"),
    ),
    "skipped": (("skipping step", "OVERFLOW"), re.compile(r"OVERFLOW!|[Ss]kipping step")),
}
"""What each kind of line has in it, looked for first, and the pattern that decides."""
MOST_OF_A_KIND = 1000
WORDS = tuple(dict.fromkeys(word for words, _ in KINDS.values() for word in words))


def kinds_of(text: str) -> list[str]:
    return [
        kind for kind, (words, pattern) in KINDS.items() if any(word in text for word in words) and pattern.search(text)
    ]


def mark(run: UserRun, kind: str, line: LogLine) -> bool:
    """Take a line down, copies of other ranks once; False where there are enough of its kind."""
    lines = run.marks.setdefault(kind, [])
    if len(lines) >= MOST_OF_A_KIND:
        return False
    if not any(known.text == line.text for known in lines[-16:]):
        lines.append(line)
    return True
