"""`trisweep export`: the weights of a checkpoint as Hugging Face files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from cli.output.console import print_unwrapped
from conf.errors import ConfigError
from conf.private_files import shared_as_usual
from conf.types.schema import Dtype
from conf.units import count_of


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A trial's folder, or one of its checkpoints.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet.", show_default=False)],
    dtype: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
) -> None:
    """Write a checkpoint's weights as safetensors, in GPT-2's or Llama's layout, for `transformers` and others."""
    if dtype not in get_args(Dtype):
        raise ConfigError("--dtype", dtype, "is not known", f"Use one of {', '.join(get_args(Dtype))}.")
    # Imported only now, so that a wrong option is refused before torch has been waited for.
    from train_core.checkpoints.export import checkpoint_in
    from train_core.checkpoints.export import export as write

    found = checkpoint_in(checkpoint)
    with shared_as_usual():
        files = write(found, out, cast(Dtype, dtype))
    print_unwrapped(f"{found}: {count_of(len(files), 'file')} in {out}")
