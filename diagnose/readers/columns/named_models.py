"""Models that people name and whose sizes no file of theirs says: by the name alone, and marked so.

Source: config.json of each model at huggingface.co.
"""

from __future__ import annotations

import re

from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

NAMES = (
    *("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model", "model_name", "model_id", "load"),
    *(
        "actor_rollout_ref.model.path",
        "model.pretrained_model_name_or_path",
        "model.path",
        "model._component_",
        "model.name",
    ),
    *("recipe", "pretrain", "model.partial_pretrain"),
    *("_name_or_path", "name_or_path", "checkpoint_dir", "tokenizer_name_or_path", "tokenizer_model"),
)
FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "tied_embeddings", "gated_mlp", "head_dim")
SHAPES = """
tinyllama-1-1b                        22 2048 32  4  5632  32000 no  yes
llama-?3-?2-1b                        16 2048 32  8  8192 128256 yes yes
llama-?3-?2-3b                        28 3072 24  8  8192 128256 yes yes
llama-?3(?:-?[01])?-8b                32 4096 32  8 14336 128256 no  yes
llama-?3(?:-?[0-3])?-70b              80 8192 64  8 28672 128256 no  yes
llama-?3-?1-405b                     126 16384 128 8 53248 128256 no yes
llama-?2-70b                          80 8192 64  8 28672  32000 no  yes
(?:llama(?:-?2)?|vicuna|alpaca)-7b    32 4096 32 32 11008  32000 no  yes
(?:llama(?:-?2)?|vicuna|alpaca)-13b   40 5120 40 40 13824  32000 no  yes
(?:llama|vicuna|alpaca)-3[03]b        60 6656 52 52 17920  32000 no  yes
llama-65b                             80 8192 64 64 22016  32000 no  yes
mistral-7b                            32 4096 32  8 14336  32000 no  yes
qwen-?2(?:-?5)?-0-5b                  24  896 14  2  4864 151936 yes yes
qwen-?2(?:-?5)?-1-5b                  28 1536 12  2  8960 151936 yes yes
qwen-?2-?5-3b                         36 2048 16  2 11008 151936 yes yes
qwen-?2(?:-?5)?-7b                    28 3584 28  4 18944 152064 no  yes
qwen-?2-?5-14b                        48 5120 40  8 13824 152064 no  yes
(?:qwen-?2-?5|qwq)-32b                64 5120 40  8 27648 152064 no  yes
qwen-?2(?:-?5)?-72b                   80 8192 64  8 29568 152064 no  yes
qwen-?3-0-6b                          28 1024 16  8  3072 151936 yes yes 128
qwen-?3-1-7b                          28 2048 16  8  6144 151936 yes yes
qwen-?3-4b                            36 2560 32  8  9728 151936 yes yes 128
qwen-?3-8b                            36 4096 32  8 12288 151936 no  yes
qwen-?3-14b                           40 5120 40  8 17408 151936 no  yes
qwen-?3-32b                           64 5120 64  8 25600 151936 no  yes 128
yi(?:-1-5)?-34b                       60 7168 56  8 20480  64000 no  yes
baichuan-13b                          40 5120 40 40 13696  64000 no  yes
mpt-7b                                32 4096 32 32 16384  50432 yes no
gpt-?neox-20b                         44 6144 64 64 24576  50432 no  no
gpt-?2-xl                             48 1600 25 25  6400  50257 yes no
gpt-?2-large                          36 1280 20 20  5120  50257 yes no
gpt-?2-medium                         24 1024 16 16  4096  50257 yes no
"""
"""What a name has in it, its signs as dashes, and the sizes in the order of `FIELDS`."""
OTHERS = re.compile(r"(?:^|-)(?:vl|vision|omni|audio|vla|next|moe)(?:-|$)|mixtral|a\d+b(?:-|$)")
"""Parts of the names of models that have more than a decoder of dense layers."""
ROWS = tuple(
    (re.compile(rf"(?:^|-|[a-z](?=llama))({pattern})(?![\d.a-z]|-\d+b)"), sizes)
    for pattern, *sizes in map(str.split, SHAPES.strip().splitlines())
)


def fill_named(columns: Columns) -> None:
    """Put the sizes of the model that a run names, where nobody says any of them."""
    if any(column in columns.run.columns for column in FIELDS[:3]):
        return
    for fact in filter(None, (columns.settings.fact(name) for name in NAMES)):
        name = re.sub(r"[^a-z0-9]+", "-", fact.value.strip("'\"").lower())
        found = next(((match[1], sizes) for row, sizes in ROWS if (match := row.search(name))), None)
        if found is None or OTHERS.search(name):
            continue
        note = f"{found[0]}, by its name alone"
        for column, size in zip(FIELDS, found[1], strict=False):
            known = columns.run.columns.get(column)
            if known is None or known.said_by is SaidBy.ASSUMED:
                columns.run.columns[column] = Fact(size, SaidBy.ASSUMED, fact.at, note)
        return
