"""Facts about the world, with their units: models, devices, links and clusters. Nothing here is a choice."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.remedies import nearest_divisor
from conf.schema import Count, Dtype, Family, Fraction, Frozen, MatmulRecipe, Name, NonNegative, Positive

MatmulDtype = Literal[Dtype, "fp8", "fp4"]


def narrow_dtype(recipe: MatmulRecipe) -> Literal["fp8", "fp4"]:
    """The type that products of a recipe are in, as devices name their peaks."""
    return "fp4" if recipe == "nvfp4" else "fp8"


class RotaryScaling(Frozen):
    """How rotary positions are stretched for sequences longer than those of pretraining: Hugging Face's type `llama3`.

    An angle that turns around less than `low_freq_factor` times in `original_max_position_embeddings` tokens grows
    `factor` times more slowly, one that turns more than `high_freq_factor` times stays, and between the two the speeds
    are blended. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.

    Attributes:
        factor: how many times more slowly the slow angles grow.
        low_freq_factor: turns in the original length below which an angle is slow.
        high_freq_factor: turns above which an angle stays as it is.
        original_max_position_embeddings: tokens of the sequences that the model was pretrained on.
    """

    factor: Annotated[float, Field(ge=1)]
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count

    @model_validator(mode="after")
    def _bounds_are_apart(self) -> RotaryScaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                "model.rotary_scaling.high_freq_factor",
                self.high_freq_factor,
                f"is not above low_freq_factor = {self.low_freq_factor}",
                "Llama 3.1 has 1.0 and 4.0.",
            )
        return self


class ExpertsSpec(Frozen):
    """Feed-forward layers of which each token passes through a few: a mixture of experts.

    Attributes:
        num_experts: in every such layer.
        top_k: experts that one token passes through.
        ffn_hidden_size: width of one expert.
        shared_ffn_hidden_size: width of the expert that every token passes through; 0 where there is none.
        num_dense_layers: first layers that have an ordinary feed-forward layer instead.
        capacity_factor: tokens that an expert takes at most, relative to an even share. What is above is dropped, and
            experts with fewer are padded. Null drops and pads none.
        imbalance: tokens of the rank whose experts take most, relative to an even share. Benchmarks force routing to be
            even, which is 1; how much more a training has, only its own logs say.
    """

    num_experts: Count
    top_k: Count
    ffn_hidden_size: Count
    shared_ffn_hidden_size: Annotated[int, Field(ge=0)] = 0
    num_dense_layers: Annotated[int, Field(ge=0)] = 0
    capacity_factor: Positive | None = None
    imbalance: Annotated[float, Field(ge=1)] = 1.0

    @model_validator(mode="after")
    def _tokens_find_experts(self) -> ExpertsSpec:
        if self.top_k > self.num_experts:
            raise ConfigError(
                "model.experts.top_k",
                self.top_k,
                f"is more than model.experts.num_experts = {self.num_experts}",
                f"Use model.experts.top_k={self.num_experts} or less.",
            )
        return self


class LatentAttentionSpec(Frozen):
    """Attention whose queries, keys and values are made from short vectors (multi-head latent attention).

    Source: arXiv 2405.04434, section 2.1.

    Attributes:
        query_rank: width of the vector that queries are made from; null makes them from the hidden state.
        key_value_rank: the same of keys and values.
        rotary_head_size: part of a query head that has rotary positions; all heads share such a part of the key.
        value_head_size: width of one value head.
    """

    query_rank: Count | None
    key_value_rank: Count
    rotary_head_size: Count
    value_head_size: Count


class ModelSpec(Frozen):
    """A transformer decoder.

    Attributes:
        name: the name of its file; it changes no measurement.
        family: `gpt` has learned positions, LayerNorm and biases; `llama` rotary positions, RMSNorm and no biases.
        num_layers: transformer layers.
        hidden_size: width of the hidden state.
        ffn_hidden_size: width of the feed-forward layer (the papers' GPTs use 4 x hidden_size).
        num_attention_heads: heads of queries in every layer.
        num_query_groups: heads of keys and values, each shared by as many query heads (grouped-query attention).
        head_size: width of one head; null means hidden_size / num_attention_heads.
        rotary_base: base of the frequencies of rotary positions; null means 10,000.
        rotary_scaling: how rotary positions are stretched; null leaves them as they are, as do folders written before
            there was a choice.
        gated_mlp: SwiGLU, with a third matrix, instead of GELU.
        tied_embeddings: the output head is the token embedding.
        vocab_size: rows of the token embedding, padding included.
        seq_length: tokens per sequence; also the number of learned positions.
        experts: null where every layer has one ordinary feed-forward layer.
        latent_attention: null where queries, keys and values are made from the hidden state.
    """

    name: Name
    family: Family
    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    num_attention_heads: Count
    num_query_groups: Count
    head_size: Count | None
    rotary_base: Annotated[float, Field(gt=1)] | None
    rotary_scaling: RotaryScaling | None = None
    gated_mlp: bool
    tied_embeddings: bool
    vocab_size: Count
    seq_length: Count
    experts: ExpertsSpec | None = None
    latent_attention: LatentAttentionSpec | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * (self.head_size or self.hidden_size // self.num_attention_heads)

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together, which is also the width of all value heads."""
        # By way of query_size, since only that knows which width of a head applies.
        return self.query_size // self.num_attention_heads * self.num_query_groups

    @property
    def value_size(self) -> int:
        """Width of all value heads together."""
        latent = self.latent_attention
        return self.key_value_size if latent is None else self.num_query_groups * latent.value_head_size

    @property
    def attended_size(self) -> int:
        """Width of what the attention core puts out: a head of values for every head of queries."""
        latent = self.latent_attention
        return self.query_size if latent is None else self.num_attention_heads * latent.value_head_size

    @property
    def num_dense_layers(self) -> int:
        """First layers that have an ordinary feed-forward layer; all of them where there are no experts."""
        return self.num_layers if self.experts is None else self.experts.num_dense_layers

    @model_validator(mode="after")
    def _experts_fit(self) -> ModelSpec:
        if self.experts is not None and self.experts.num_dense_layers >= self.num_layers:
            raise ConfigError(
                "model.experts.num_dense_layers",
                self.experts.num_dense_layers,
                f"leaves none of model.num_layers = {self.num_layers} layers with experts",
                "Use fewer dense layers, or model.experts=null.",
            )
        return self

    @model_validator(mode="after")
    def _short_vectors_fit(self) -> ModelSpec:
        latent, size = self.latent_attention, self.query_size // self.num_attention_heads
        if latent is None:
            return self
        if self.family == "gpt":
            problem = "has learned positions, and model.latent_attention rotary ones"
            remedy = "Use model.family=llama, or model.latent_attention=null."
            raise ConfigError("model.family", "gpt", problem, remedy)
        if latent.rotary_head_size >= size:
            raise ConfigError(
                "model.latent_attention.rotary_head_size",
                latent.rotary_head_size,
                f"leaves nothing of a query head of model.head_size = {size}",
                "Give model.head_size both parts together: DeepSeek has 128 + 64 = 192.",
            )
        if self.num_query_groups != self.num_attention_heads:
            raise ConfigError(
                "model.num_query_groups",
                self.num_query_groups,
                f"differs from model.num_attention_heads = {self.num_attention_heads}, and latent attention makes keys"
                " and values for every head",
                f"Use model.num_query_groups={self.num_attention_heads}.",
            )
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSpec:
        if self.head_size is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "model.num_attention_heads",
                self.num_attention_heads,
                f"does not divide model.hidden_size = {self.hidden_size}",
                f"Use model.num_attention_heads={nearest_divisor(self.num_attention_heads, self.hidden_size)}, or give"
                " model.head_size.",
            )
        if self.num_attention_heads % self.num_query_groups:
            raise ConfigError(
                "model.num_query_groups",
                self.num_query_groups,
                f"does not divide model.num_attention_heads = {self.num_attention_heads}",
                f"Use model.num_query_groups={nearest_divisor(self.num_query_groups, self.num_attention_heads)}.",
            )
        if self.family == "llama" and self.query_size // self.num_attention_heads % 2:
            raise ConfigError(
                "model.head_size",
                self.query_size // self.num_attention_heads,
                "is odd, and rotary positions turn pairs of its elements",
                "Choose an even model.head_size, or fewer or more heads.",
            )
        if self.family == "gpt" and self.rotary_scaling is not None:
            raise ConfigError(
                "model.rotary_scaling",
                self.rotary_scaling.model_dump(),
                "stretches rotary positions, and model.family = gpt has learned ones",
                "Use model.rotary_scaling=null, or model.family=llama.",
            )
        return self


class DeviceSpec(Frozen):
    """One schedulable accelerator (one MI250X GCD, not the card), or one CPU rank: what its maker states.

    Attributes:
        name: what people call it, in reports too.
        kind: what the trainer runs on; `cpu` means gloo, `gpu` NCCL or RCCL.
        peak_flops_per_second: dense peak by precision; `fp8` and `fp4` are types of matrix products alone.
        peak_source: where the peak comes from; the word `measured` means that the trainer measures a matmul peak in the
            same run and utilization is stated against that, while the numbers given here serve only the prediction.
        memory_bytes: what one device has.
        memory_bandwidth_bytes_per_second: the highest that its maker states.
        memory_source: where both come from.
        num_multiprocessors: units that each compute one tile of a matrix product at a time (SMs, CUs; 1 on a CPU rank).
        watts: design power of one device.
        watts_source: where they come from.
        price_per_hour: US dollars for one device-hour; null if no price is known.
        price_source: where and when it was listed.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    peak_flops_per_second: dict[MatmulDtype, Positive]
    peak_source: str
    memory_bytes: Count
    memory_bandwidth_bytes_per_second: Positive
    memory_source: str
    num_multiprocessors: Count
    watts: Positive
    watts_source: str
    price_per_hour: Positive | None
    price_source: str

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Types of weights and activations that the device computes in, sorted."""
        known: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
        return tuple(dtype for dtype in known if dtype in self.peak_flops_per_second)


class LinkSpec(Frozen):
    """What connects blocks of `num_devices` consecutive devices.

    Attributes:
        name: what people call it, such as nvlink.
        num_devices: consecutive devices that it connects.
        bandwidth_bytes_per_second: per device and direction, when all devices of the block communicate, as stated by
            the maker; collectives reach ClusterSpec.efficiency.link of it.
        latency_seconds: of one message.
        mesh: blocks of the tier below are wired to each other in pairs, without a switch, so that a group that fills n
            of the N blocks uses (n-1)/(N-1) of the bandwidth.
    """

    name: str
    num_devices: Count
    bandwidth_bytes_per_second: Positive
    latency_seconds: NonNegative
    mesh: bool = False


class EfficiencySpec(Frozen):
    """The constants of the cost model that no data sheet states; `calibrate` measures or fits them.

    Attributes:
        matmul: share of the peak that large, well-shaped matrix products reach in training.
        attention: share of the peak that a fused (flash) attention kernel reaches.
        memory: share of the memory bandwidth that memory-bound kernels reach.
        link: share of a link's bandwidth that collectives and transfers reach.
        kernel_seconds: what every kernel costs on top of its work: launch, ramp-up and tail.
        source: on what each was fitted or measured; published rows that were fitted are no test of the prediction.
        link_source: the same of `link`.
    """

    matmul: Fraction
    attention: Fraction
    memory: Fraction
    link: Fraction
    kernel_seconds: NonNegative
    source: str
    link_source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _jitter_is_no_more(cls, value: object) -> object:
        """Read old folders: `jitter` was a constant that the waits for the slowest device have replaced."""
        if not isinstance(value, dict) or "jitter" not in value:
            return value
        return {name: constant for name, constant in value.items() if name != "jitter"}


class SiteSpec(Frozen):
    """What electricity means where the cluster stands. Nothing is assumed where nothing is declared.

    Attributes:
        grid_co2_grams_per_kwh: what the grid emits for a kilowatt-hour; null leaves carbon out.
        grid_co2_source: where that is from, and of which year.
        power_usage_effectiveness: what the whole site draws over what its computers draw (PUE); null counts the
            computers alone.
        power_usage_effectiveness_source: where that is from.
    """

    grid_co2_grams_per_kwh: NonNegative | None = None
    grid_co2_source: str = ""
    power_usage_effectiveness: Annotated[float, Field(ge=1)] | None = None
    power_usage_effectiveness_source: str = ""

    def grams_co2(self, kwh: float) -> float | None:
        """For energy that computers draw, with what the site adds where that is declared.

        None where the grid's emission is not declared.
        """
        if self.grid_co2_grams_per_kwh is None:
            return None
        return kwh * (self.power_usage_effectiveness or 1.0) * self.grid_co2_grams_per_kwh


class ClusterSpec(Frozen):
    """Nodes of equal devices. `links` go from the closest tier to the widest, which also spans whatever is wider.

    Attributes:
        name: the name of its file.
        num_nodes: nodes that a job may take.
        devices_per_node: devices of each of them.
        cores_per_node: on a CPU, the cores that the ranks of a node share; null gives every rank a device of its own.
        gpu_names: what tables of configurations call this cluster's device (the `gpu` column of `trisweep estimate`).
        device: what its maker states of one device.
        efficiency: the share of that which programs reach.
        reserved_memory_bytes: bytes that the framework and the collectives library take on each device.
        fragmentation: share of the bytes of activations that is lost to gaps in the allocator.
        reserved_memory_source: where both come from.
        links: what connects the devices, from the closest tier to the widest.
        host_bytes_per_second: what one device's share of the host moves between its memory, its cores and the device,
            while it updates offloaded weights. The usual value is an assumption: a PCIe 4.0 x16 slot, and an eighth of
            the memory of a node with two sockets.
        site: where the cluster stands; folders written before there was such a key say nothing of it.
    """

    name: Name
    num_nodes: Count
    devices_per_node: Count
    cores_per_node: Count | None
    gpu_names: Annotated[tuple[str, ...], Field(strict=False)]
    device: DeviceSpec
    efficiency: EfficiencySpec
    reserved_memory_bytes: Annotated[int, Field(ge=0)]
    fragmentation: NonNegative
    reserved_memory_source: str
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1, strict=False)]
    host_bytes_per_second: Positive = 25e9
    site: SiteSpec = SiteSpec()

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @model_validator(mode="after")
    def _links_widen(self) -> ClusterSpec:
        # The cost model finds a tier by bisection, and takes the last one for the widest.
        extents = [link.num_devices for link in self.links]
        if extents != sorted(set(extents)):
            raise ConfigError(
                "cluster.links", extents, "num_devices must grow from tier to tier", "List the closest tier first."
            )
        return self
