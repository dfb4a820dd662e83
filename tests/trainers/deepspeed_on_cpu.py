"""Hugging Face's Trainer with DeepSpeed on CPU ranks, which accelerate knows without DeepSpeed alone.

`deepspeed_on_cpu.py train.py --flags ...`
"""

from __future__ import annotations

import runpy
import sys

from accelerate.state import DistributedType, PartialState  # type: ignore[import-not-found]


def _on_the_cpu(*_: object, **__: object) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_CPU


if __name__ == "__main__":
    PartialState._prepare_backend = _on_the_cpu
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
