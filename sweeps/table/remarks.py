"""Remarks become columns: what a row's words, and scripts that its source keeps beside the table, say of its price.

Everything that prices a row reads columns only. A cell that the row fills itself is never replaced. What changes the
price and nothing here reads is refused: priced without it, the row would be priced as something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from conf.errors import ConfigError
from sweeps.table.cells import REMARK_COLUMNS, Row, match_in, text_of

SINCE_26_06 = r"megatron-bridge.*\(26\.(?:0[6-9]|1\d)|megatron-bridge.*\((?:2[7-9]|[3-9]\d)\."
SINCE_APRIL_2025 = r"(?<!\d)20(?:25[-_]?(?:0[4-9]|1[0-2])|2[6-9])"
WITH_A_CHOICE = r"^(?!0|1(?:\.0)?$)\d"
NO_16_OR_32_BITS = r"^(?!(?:amp_)?(?:fp|float)(?:16|32)|half)"
NOTES = ("notes",)

UNREAD_COLUMNS = (
    *("cpu_offload", "cross_attention", "encoder_layers", "frozen_layers", "local_attention", "lora", "lora_rank"),
    *("mamba_layers", "moe_every", "moe_frequency", "moe_layer_freq", "mtp", "mtp_layers", "num_mamba_layers"),
    *("offload", "offload_optimizer", "optimizer_offload", "activation_offload", "ulysses", "vision_layers"),
)
NAMED_OTHERWISE = {
    "activated_experts": "top_k",
    "activation_checkpointing": "recompute",
    "context_parallel": "cp",
    "context_parallel_size": "cp",
    "dtype": "precision",
    "expert_parallel": "ep",
    "expert_parallel_size": "ep",
    "experts": "num_experts",
    "experts_per_token": "top_k",
    "gradient_checkpointing": "recompute",
    "head_size": "head_dim",
    "intermediate_size": "ffn_hidden",
    "n_experts": "num_experts",
    "n_kv_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    "num_kv_heads": "kv_heads",
    "num_query_groups": "kv_heads",
    "recomputation": "recompute",
    "seq_parallel": "sequence_parallel",
    "sliding_window": "attention_window",
    "virtual_pipeline": "vpp",
    "virtual_pipeline_size": "vpp",
    "vocab_size": "vocab",
    "vp": "vpp",
    "window": "attention_window",
    "window_size": "attention_window",
    "zero": "zero_stage",
    "zero_optimization": "zero_stage",
}
"""Columns of other people's tables, and what they are called here."""
UNREAD_MODELS = (
    (
        r"nemotron-?h\b|\bmamba|\bjamba|\bzamba|\bhymba|\brwkv|qwen3-?next|minimax(?!-?m2)|[- ]hybrid\b|falcon-?h1|"
        r"granite-?4",
        "layers without attention",
    ),
    (r"\bq?lora\b|\bpeft\b", "weights that are not trained"),
    (r"gemma[- ]?[23]", "attention within a window in a part of its layers, and scores that are capped or normed"),
    (r"\b(?:bert|t5|vit|whisper|llava|vlm|vl)\b", "parts that are no decoder of text"),
)
"""Names of models whose rows say nothing else of what makes them different."""
BY_TURNS = r"maverick"
"""Models with experts in every other layer alone."""
WITH_EXPERTS = (
    r"mixtral|\dx\d+b\b|-a\d+b\b|\bmoe\b|\bgrok|\bdbrx\b|deepseek[-_ ]?(?:v[23]|r1)|kimi[-_ ]?k2|minimax|llama-?4|"
    r"glm-?4\.5|gpt[-_ ]?oss"
)
UNKNOWN_TRAINERS = r"\b(?:maxtext|levanter|colossal-?ai|axlearn|jax|nanotron|picotron|litgpt|olmo-core)\b"
EXTRA_PREDICTIONS = r"(?<!no )(?<!without )\bmtp\b(?!:? ?(?:off|disabled|none|0))"
"""Heads that predict tokens further ahead (multi-token prediction)."""
WAITING_HOST = r"(?:cuda[_ ])?launch[_ ]blocking"
"""A switch for debugging: the host waits for every kernel before it launches the next one."""
NOTHING = ("", "0", "no", "none", "false")
USUALLY_ONE = ("cp", "ep", "num_experts", "top_k", "vpp")
"""Columns in which 1 is what an empty cell means."""


@dataclass(frozen=True)
class Remark:
    """A rule that fills the blank cells of one column from a remark in another.

    Attributes:
        value: the cell; `{0}` stands for the whole match, `{1}` for its first group.
        pattern: what one of the columns `read` has to say, in lower case; a column that is not there is blank.
        where: patterns that other columns have to match, in lower case.
    """

    column: str
    value: str
    pattern: str = ""
    read: tuple[str, ...] = NOTES
    where: dict[str, str] = field(default_factory=dict)

    def cell(self, row: Row) -> str:
        """The cell for a row; empty where the row does not say this."""
        found = match_in(row, self.pattern, self.read)
        if found is None or not all(match_in(row, pattern, (column,)) for column, pattern in self.where.items()):
            return ""
        return self.value.format(found.group(), *found.groups(default=""))


BLACKWELL_NEMO = {"source": r"dgxc-benchmarking @v25\.05", "gpu": r"gb200|b200", "model": r"^(?:nemotron4|grok1)"}
GPT3_NEMO = {"source": r"dgxc-benchmarking @v24\.11", "model": r"^gpt3"}
ONE_GRAPH = {"source": SINCE_26_06, "num_experts": WITH_A_CHOICE, "precision": "mxfp8"}
DEEPEP_BRIDGE = {
    "source": "megatron-bridge",
    "gpu": r"^b200",
    "model": r"deepseek-v3",
    "vpp": r"^[2-9]",
    "precision": "mxfp8",
}
BRIDGE_GPT_OSS = {"source": "megatron-bridge", "model": r"gpt[-_ ]?oss"}
WITHOUT_GRAPHS = r"\b(?:no|without) cuda[- ]graphs?|\bcuda[- ]graphs? (?:is |are )?(?:off|disabled|not used)\b"
GRAPHED_LAYERS = {
    "source": "megatron-bridge",
    "num_experts": WITH_A_CHOICE,
    "gpu": "^gb",
    "model": r"qwen|deepseek|kimi",
}
FUSED_GPT_OSS = {**BRIDGE_GPT_OSS, **ONE_GRAPH, "gpu": "^gb"}
REMARKS = (
    Remark("vpp", "2", r"\binterleaved\b(?! data)", ("model", "schedule")),
    Remark("zero_group_size", "{1}", r"\bzero[123] ?= ?(\d+)", ("series", "notes")),
    # FSDP2 keeps what it has gathered for all micro-batches of a step beside a pipeline (torchtitan, its `default`).
    Remark("reshard_after_forward", "no", r"fsdp", ("zero_stage", "notes")),
    Remark("local_batch", "{1}", r"local batch (?:size )?(?:of )?(\d+)"),
    Remark("grad_reduce_excluded", "yes", r"all-reduce excluded"),
    Remark(
        "recompute", "unknown", r"(?:recompute|offload)[^;]*not (?:in the table|stated|printed)", ("assumed", "notes")
    ),
    Remark("optimizer", "{0}", r"adafactor|\bmuon\b|\blion\b|\bsgd\b"),
    Remark("out_of_memory", "yes", r"out of memory|\boom\b"),
    Remark("capacity_factor", "{1}", r"capacity factor (\d+(?:\.\d+)?)", where={"num_experts": WITH_A_CHOICE}),
    # DeepSeek-V2 and V3, arXiv 2405.04434, section 3.1.2 and appendix B. V2-Lite makes queries from the hidden state.
    Remark("mla", "{0}", r"\bmla \d+ ?\+ ?\d+ ?/ ?v \d+(?:, ?q_lora \d+)?, ?kv_lora \d+"),
    Remark("mla", "128+64 / v 128, kv_lora 512", r"deepseek[-_ ]?v2[-_ ]?lite|moonlight", ("model",)),
    Remark("mla", "128+64 / v 128, q_lora 1536, kv_lora 512", r"deepseek[-_ ]?(?:v[23]|r1)|kimi[-_ ]?k2", ("model",)),
    # openai/gpt-oss-120b and -20b, config.json: sliding_window and layer_types.
    Remark("attention_window", "128, full every 2", r"gpt[-_ ]?oss", ("model",)),
    # Rows of JUPITER say bf16, the type of the weights, and that their peak is that of fp8. Their rate is 1.33 times
    # that of the runs which the same page compares with fp8, so they are taken to be fp8's, which is an inference.
    Remark("matmul_precision", "fp8", r"\bpeak column\b[^;]*\bfp8\b"),
    Remark("gradient_dtype", "fp32", r"fp32 grad", ("precision", "notes")),
    # NVIDIA's recipes say `grad_reduce_in_fp32: false` for NeMo (nemo/collections/llm/recipes/precision/
    # mixed_precision.py) and for the performance scripts of Megatron-Bridge. V100 has no bf16.
    Remark(
        "gradient_dtype",
        "bf16",
        r"\bnemo\b|internevo|megatron-bridge|dgxc-benchmarking|\bmlcommons\b|grad[^;]* in bf16",
        ("source", "notes"),
        {"precision": NO_16_OR_32_BITS, "gpu": r"^(?!.*v100)", "cluster": r"^(?!.*v100)"},
    ),
    # torchtitan compiles nothing by itself. Tensor-parallel collectives in pieces need it, and so do those that they
    # are compared with.
    Remark("compile", "no", r"\b(?:no|without) (?:torch\.)?compile"),
    Remark("compile", "yes", r"compile|async ?-?tp|vanilla tp", ("model", "table")),
    Remark("compile", "yes", r"torch\.compile|async ?-?tp"),
    Remark("compile_loss", "yes", SINCE_APRIL_2025, ("source", "table")),
    # `4 x 100 Gb/s RoCE per node`. A cluster that is named is believed before the row's remarks.
    Remark(
        "network_gbits_per_node",
        "{1} x {2}",
        r"(\d+) ?x ?(\d+) ?gb(?:/s|it/s|ps)?\b[^;.]{0,40}\bper node",
        ("assumed", "notes"),
        {"cluster": r"^$"},
    ),
    Remark(
        "power_limit_watts",
        "{1}{2}",
        r"\b(\d{3,4}) ?w(?:atts?)?[- ](?:power[- ])?(?:cap|limit)"
        r"|\bpower[- ](?:cap|limit)\w*(?: \w+)? (\d{3,4}) ?w(?:atts?)?\b",
        ("gpu", "notes", "assumed"),
    ),
    # Rows that say no more than that their power was limited are taken to mean the set point that the user guide of DGX
    # B200 shows as the default one, in an example (power capping).
    Remark("power_limit_watts", "700", r"\bpower[- ]limited\b(?! (?:to|at)\b)", where={"gpu": r"^(?!.*gb200).*\bb200"}),
    # SimuMax published how fast the products of its machine are (conf/cluster/simumax-b200.yaml).
    Remark("cluster", "simumax-b200", where={"source": r"moorethreads/simumax", "gpu": r"^b200"}),
    # NeMo and Megatron-Bridge overlap by themselves; Megatron-LM's own script has to be told, and InternEvo cannot.
    Remark("async_tp", "no", r"(?:no|without) tp[- ]?comm\w* overlap|vanilla tp", REMARK_COLUMNS),
    Remark("async_tp", "yes", r"async[- ]?tp|tp[- ]?comm\w* overlap|user ?buffers", REMARK_COLUMNS),
    Remark("async_tp", "no", r"megatron-lm|oellm|internevo", ("source", "implementation")),
    Remark("grouped_gemm", "no", r"no grouped[- ]?gemm"),
    # Megatron-Core's --overlap-moe-expert-parallel-comm, which recipes of Megatron-Bridge turn on
    # (_enable_hybridep_full_iteration_mxfp8, DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_MX_V2).
    Remark("overlap_moe", "yes", r"1f1b (?:all-to-all|a2a|ep) overlap|overlap_moe_expert_parallel_comm"),
    # gpt_oss_workload_base_configs.py of v0.4.2 and v0.5.0, those of 120B: beside another micro-batch on GB200; on B200
    # and B300 neither that nor a graph of the whole step.
    Remark("overlap_moe", "yes", where={**BRIDGE_GPT_OSS, "source": r"megatron-bridge(?!.*\(26\.02)", "gpu": "^gb200"}),
    Remark("overlap_moe", "no", where={**BRIDGE_GPT_OSS, "gpu": "^b[23]00"}),
    Remark("cuda_graphs", "no", where={**BRIDGE_GPT_OSS, "gpu": "^b[23]00"}),
    Remark("overlap_moe", "yes", where=DEEPEP_BRIDGE),
    Remark("overlap_moe", "yes", where=ONE_GRAPH),
    # moe_flex_dispatcher_backend of the recipes for GPUs from Blackwell on; those of gpt-oss 120B name none in 26.02,
    # since 26.04.01 one for B300, and where experts are fused (the same file of v0.3.0, v0.4.2 and v0.5.0).
    Remark("dispatcher", "{0}", r"\b(?:deepep|hybridep)\b"),
    Remark("dispatcher", "alltoall", r"\ball-?to-?all dispatcher\b|\bdispatcher all-?to-?all\b"),
    Remark("dispatcher", "deepep", where=DEEPEP_BRIDGE),
    Remark("dispatcher", "alltoall", where={**BRIDGE_GPT_OSS, "source": r"megatron-bridge.*\(26\.02"}),
    Remark("dispatcher", "hybridep", where=FUSED_GPT_OSS),
    Remark("dispatcher", "alltoall", where={**BRIDGE_GPT_OSS, "gpu": "^(?!b300)"}),
    Remark("dispatcher", "hybridep", where={"source": "megatron-bridge", "num_experts": WITH_A_CHOICE}),
    Remark("cuda_graphs", "no", WITHOUT_GRAPHS),
    Remark("cuda_graphs", "yes", r"\bcuda[- ]graphs?\b(?! (?:not|of (?!the whole)))"),
    Remark("graphs_layers", "yes", r"\bcuda[- ]graphs? of (?:attention|(?:the )?router)"),
    Remark("graphs_layers", "no", WITHOUT_GRAPHS),
    Remark("graphs_layers", "yes", where=GRAPHED_LAYERS),
    # nemotron/launch.sh and grok1/launch.sh: --cuda_graphs true.
    Remark("cuda_graphs", "yes", where=BLACKWELL_NEMO),
    Remark("cuda_graphs", "yes", where=ONE_GRAPH),
    # Megatron-LM reduces beside the gradients of weights since September 2021 (commit 16c90445), the paper is of April.
    Remark("overlap_weight_gradient", "no", where={"arxiv": r"^2104\.04473"}),
    # InternEvo's HybridZeroOptimizer (`_step`) and the torch.optim.AdamW of torch 1.13, v0.2.1dev20231121.
    Remark("unfused_adam", "yes", where={"source": r"internevo"}),
    # The same file, 120B: Transformer Engine's fused experts in MXFP8 on GB200 and GB300, since 26.06.
    Remark("unfused_expert_biases", "no", where=FUSED_GPT_OSS),
    Remark("unfused_expert_biases", "yes", where=BRIDGE_GPT_OSS),
    # nemo_megatron/launch.sh turns cuDNN's attention off, which leaves FlashAttention 2, and gpt3_175b_hydra.yaml drops
    # one value in ten; the sources' other models do neither.
    Remark("dropout", "yes", where=GPT3_NEMO),
    Remark("cudnn_attention", "no", where=GPT3_NEMO),
    # Notes may name a trainer in passing, so that the source speaks first. InternEvo runs eager layers around flash
    # attention and shares its optimizer out as DeepSpeed does. Plain DDP is priced as FSDP that shares nothing out.
    *(
        Remark("usual_implementation", name, pattern, read)
        for read in (("source", "series"), ("zero_stage", "notes"))
        for name, pattern in (
            ("torchtitan", r"torchtitan"),
            ("megatron-deepspeed", r"megatron-?deepspeed"),
            ("megatron-core", r"megatron-(?:core|bridge)|\bnemo\b|\bprimus\b|transformer engine|simumax"),
            ("deepspeed", r"internevo"),
            ("fsdp", r"llm-foundry|\bfsdp"),
            ("fsdp", r"\bddp\b"),
        )
    ),
    Remark("usual_implementation", "deepspeed", r"\bdeepspeed\b", ("source",)),
)
"""Of two remarks that fill the same column the first one does."""


def with_columns(row: Row) -> Row:
    """The row with the blank cells filled that its remarks speak of."""
    filled: dict[str, str] = {}
    for remark in REMARKS:
        if remark.column not in filled and not text_of(row, remark.column) and (cell := remark.cell(row)):
            filled[remark.column] = cell
    return {**row, **filled}


def require_read(row: Row) -> None:
    """Raises ConfigError for a row that says something about its price which nothing reads."""
    for column in UNREAD_COLUMNS:
        if _says_something(row, column):
            remedy = "Leave the cell empty only if it does not apply."
            raise ConfigError(column, text_of(row, column), "changes the price, and is not modelled", remedy)
    for column, known in NAMED_OTHERWISE.items():
        if _says_something(row, column) and not text_of(row, known):
            raise ConfigError(column, text_of(row, column), f"is called {known} here", "Rename the column.")
    _require_known_model(row)
    if waiting := match_in(row, WAITING_HOST):
        problem = "was run with launch blocking, in which the host waits for every kernel: that is not modelled"
        raise ConfigError("notes", waiting.group(), problem, "Measure without it.")
    if (other := match_in(row, UNKNOWN_TRAINERS, ("source", "series"))) and not text_of(row, "implementation"):
        remedy = "Name in implementation the one that it is to be priced for."
        raise ConfigError("source", other.group(), "is a trainer that is not modelled", remedy)


def _require_known_model(row: Row) -> None:
    for pattern, what in UNREAD_MODELS:
        if match_in(row, pattern, ("model", "series")):
            raise ConfigError("model", text_of(row, "model"), f"has {what}, which is not modelled", "Leave it out.")
    # On one stage it makes no difference which layers have none; of several the first ones are taken to have none.
    is_whole = _says_something(row, "dense_layers") and text_of(row, "pp").removesuffix(".0") == "1"
    if match_in(row, BY_TURNS, ("model", "series")) and not is_whole:
        problem = "has experts in every other layer alone, which is modelled on one pipeline stage alone"
        raise ConfigError("model", text_of(row, "model"), problem, "Leave it out; with pp = 1 fill in dense_layers.")
    if match_in(row, WITH_EXPERTS, ("model",)) and not text_of(row, "num_experts"):
        problem = "has experts, and the row does not say how many"
        raise ConfigError("model", text_of(row, "model"), problem, "Fill in num_experts; 1 where it has none.")
    if extra := match_in(row, EXTRA_PREDICTIONS, ("notes",)):
        raise ConfigError("notes", extra.group(), "adds layers that are not modelled", "Leave it out.")


def _says_something(row: Row, column: str) -> bool:
    plain = (*NOTHING, "1") if NAMED_OTHERWISE.get(column) in USUALLY_ONE else NOTHING
    return text_of(row, column).lower().removesuffix(".0") not in plain
