"""A training written anew, to hold the trainer against: plain tensors, one process, the whole global batch at once.

It shares no code with the trainer but what both start from: the first weights, and the order in which sequences are
drawn from a text. Model, loss, gradient norm, clipping, AdamW, learning rate and the cutting of the tokens are its own.
It runs in fp32 and in fp64; the fp64 run stands for the exact result.

Parameters have the trainer's names and order of rows (docs/trainer.md). Shapes: b sequences, s their length, h hidden.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from conf.types.schema import TrainingPlan
from train_core.data.tokens import hash_of, place_in_permutation
from train_core.model.initialize import initial_value

Weights = dict[str, Tensor]


class Trained(NamedTuple):
    """The loss and the gradient's norm before clipping of every step, and the weights after the last."""

    losses: list[float]
    gradient_norms: list[float]
    weights: dict[str, np.ndarray]


def train(experiment: Experiment, dtype: torch.dtype, rounding: int = 0) -> Trained:
    """Train on one rank in fp32 or fp64, whatever layout the experiment names.

    Args:
        rounding: the higher numbers let fp32 round otherwise, each in its own way: they start from weights of other
            last bits, and add up the sequences of a batch in another order and in more parts.
    """
    random = np.random.default_rng(rounding)
    weights = {name: value.to(dtype) for name, value in first_weights(experiment).items()}
    if rounding:
        weights = {name: with_other_last_bits(value, random) for name, value in weights.items()}
    for weight in weights.values():
        weight.requires_grad_()
    adam = Update(weights, experiment)
    routing = Routing(experiment.model, experiment.training.z_loss)
    losses, norms = [], []
    for step in range(1, experiment.training.num_steps + 1):
        ids = random.permutation(global_batch(experiment, step))
        parts = np.array_split(ids, min(rounding + 1, len(ids)))
        in_parts = [torch.from_numpy(part) for part in parts]
        loss, gradients = loss_and_gradients(in_parts, weights, experiment.model, routing)
        losses.append(loss)
        norms.append(adam.step(step, gradients))
        routing.move_biases()
    trained = {name: weight.detach() for name, weight in weights.items()} | routing.named_biases()
    return Trained(losses, norms, {name: weight.numpy() for name, weight in trained.items()})


class Routing:
    """By layer, what is added to the scores of experts where tokens choose, and how many chose each in this step.

    Beside them the factor of a loss that is not reported either.
    """

    def __init__(self, model: ModelSpec, z_loss: float = 0.0) -> None:
        self.z_loss = z_loss
        experts = model.experts
        self.step, count = (experts.balance_bias, experts.num_experts) if experts is not None else (0.0, 0)
        self.biases: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(count))
        self.choices: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(count))

    def move_biases(self) -> None:
        """Up for experts with fewer tokens than the mean, down for those with more. Source: arXiv 2408.15664."""
        for prefix, choices in self.choices.items():
            self.biases[prefix] = self.biases[prefix] + self.step * torch.sign(choices.mean() - choices)
        self.choices.clear()

    def named_biases(self) -> Weights:
        return {f"{prefix}.router.bias": bias for prefix, bias in self.biases.items()} if self.step else {}


def with_other_last_bits(values: Tensor, random: np.random.Generator) -> Tensor:
    """Each value in fp32 or one of its neighbours, drawn at random."""
    steps = torch.from_numpy(random.integers(-1, 2, size=tuple(values.shape)))
    return torch.nextafter(values, values + steps)


def loss_and_gradients(
    parts: Sequence[Tensor], weights: Weights, model: ModelSpec, routing: Routing | None = None
) -> tuple[float, Weights]:
    """Of the mean over a batch, which comes in parts: the ids of some sequences each, (b, s + 1)."""
    loss, gradients = 0.0, {name: torch.zeros_like(weight) for name, weight in weights.items()}
    num_sequences = sum(len(part) for part in parts)
    for part in parts:
        share, balance = losses_of(part[:, :-1], part[:, 1:], weights, model, routing)
        of_part = torch.autograd.grad((share + balance) * len(part) / num_sequences, list(weights.values()))
        loss += float(share.detach()) * len(part) / num_sequences
        gradients = {name: gradients[name] + gradient for name, gradient in zip(weights, of_part, strict=True)}
    return loss, gradients


class Update:
    """Clipping of the global norm, then Adam with decoupled weight decay of matrices. Source: arXiv 1711.05101.

    With Muon the matrices of layers take the orthogonal part of their momentum. Source: arXiv 2502.16982.
    """

    def __init__(self, weights: Weights, experiment: Experiment) -> None:
        self.weights, self.plan, self.model = weights, experiment.training, experiment.model
        self.first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def step(self, step: int, gradients: Weights) -> float:
        """Update the weights; returns the norm of the gradient before clipping."""
        plan, base = self.plan, learning_rate(step, self.plan)
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
        factor = 1.0 if plan.clip_gradient_norm is None else min(1.0, plan.clip_gradient_norm / (norm + 1e-6))
        for name, weight in self.weights.items():
            is_hidden = weight.dim() > 1 and name.startswith("layers.")
            change = self._muon if is_hidden and plan.optimizer == "muon" else self._adam
            rate = base * self._rate_factor(name, is_hidden)
            decay = plan.weight_decay if weight.dim() > 1 else 0.0
            weight.sub_(rate * (decay * weight + change(step, name, gradients[name] * factor)))
        return norm

    def _rate_factor(self, name: str, is_hidden: bool) -> float:
        if name.startswith("embedding."):
            return self.plan.embedding_rate_factor
        if self.plan.mup_base_width and (is_hidden or name == "head.weight"):
            return self.plan.mup_base_width / self.model.hidden_size
        return 1.0

    def _adam(self, step: int, name: str, gradient: Tensor) -> Tensor:
        plan, first, second = self.plan, self.first[name], self.second[name]
        first.mul_(plan.adam_beta1).add_((1 - plan.adam_beta1) * gradient)
        second.mul_(plan.adam_beta2).add_((1 - plan.adam_beta2) * gradient**2)
        mean, variance = first / (1 - plan.adam_beta1**step), second / (1 - plan.adam_beta2**step)
        return mean / (variance.sqrt() + plan.adam_epsilon)

    def _muon(self, _: int, name: str, gradient: Tensor) -> Tensor:
        momentum, share = self.first[name], self.plan.muon_momentum
        momentum.mul_(share).add_(gradient)
        whole, experts = gradient + share * momentum, self.model.experts
        count = experts.num_experts if experts is not None and ".experts." in name else 1
        return torch.cat([self._made_orthogonal(part) for part in whole.chunk(count)])

    def _made_orthogonal(self, x: Tensor) -> Tensor:
        """By the eigenvectors of x x^T, whose eigenvalues are the squares of singular values."""
        size = 0.2 * math.sqrt(max(x.shape))
        if x.size(0) > x.size(1):
            return self._made_orthogonal(x.T).T
        values, vectors = torch.linalg.eigh(x.double() @ x.double().T)
        singular = values.clamp(min=0).sqrt() / (values.clamp(min=0).sum().sqrt() + 1e-7)
        grown = torch.ones_like(singular)
        for _ in range(5):
            square = (singular * grown) ** 2
            grown = grown * (3.4445 - 4.7750 * square + 2.0315 * square**2)
        return size * ((vectors * (grown / (values.clamp(min=0).sum().sqrt() + 1e-7))) @ vectors.T @ x.double()).to(x)


def learning_rate(step: int, plan: TrainingPlan) -> float:
    """A straight line up to the end of the warm-up, then what the schedule says."""
    top, bottom, warmup, last = (
        plan.learning_rate,
        plan.min_learning_rate,
        plan.learning_rate_warmup_steps,
        plan.num_steps,
    )
    if step <= warmup:
        return top * step / warmup
    match plan.schedule:
        case "constant":
            return top
        case "linear":
            return bottom + (top - bottom) * (last - step) / (last - warmup)
        case "wsd":
            falling = last // 10 or 1 if plan.learning_rate_decay_steps is None else plan.learning_rate_decay_steps
            return bottom + (top - bottom) * min(1.0, (last - step) / falling)
        case "inverse-square-root":
            return max(bottom, top / math.sqrt(step) * math.sqrt(max(warmup, 1)))
    return bottom + (top - bottom) * (1 + math.cos(math.pi * (step - warmup) / (last - warmup))) / 2


def global_batch(experiment: Experiment, step: int) -> np.ndarray:
    """The ids of all sequences of a step, each with the token that follows its last: (b, s + 1)."""
    size = experiment.batch.global_batch_size
    samples = range((step - 1) * size, step * size)
    if experiment.data.source == "synthetic":
        return np.stack([_random_sequence(experiment, sample) for sample in samples])
    assert experiment.data.path is not None
    text = Path(experiment.data.path).read_bytes()[: experiment.data.max_bytes]
    return np.stack([_sequence_of_text(experiment, text, i) for i in samples])


def _random_sequence(experiment: Experiment, sample: int) -> np.ndarray:
    random = np.random.Generator(np.random.Philox(key=experiment.training.seed, counter=[0, 0, 0, sample]))
    return random.integers(experiment.model.vocab_size, size=experiment.model.seq_length + 1)


def _sequence_of_text(experiment: Experiment, text: bytes, sample: int) -> np.ndarray:
    """Sequences overlap by one token; every epoch has them all, in another order."""
    length = experiment.model.seq_length
    starts = range(0, len(text) - length, length)
    epoch, index = divmod(sample, len(starts))
    start = starts[place_in_permutation(index, len(starts), hash_of(experiment.training.seed) ^ epoch)]
    return np.frombuffer(text[start : start + length + 1], dtype=np.uint8).astype(np.int64)


def first_weights(experiment: Experiment) -> Weights:
    seed, num_layers = experiment.training.seed, experiment.model.num_layers
    shapes = parameter_shapes(experiment.model)
    cpu = torch.device("cpu")
    drawn = {name: initial_value(name, torch.Size(shape), num_layers, seed, cpu) for name, shape in shapes.items()}
    if (base := experiment.training.mup_base_width) is not None:
        for name, weight in drawn.items():
            if weight.dim() > 1 and not name.startswith("embedding."):
                narrower = base / experiment.model.hidden_size
                weight.mul_(narrower if name == "head.weight" else math.sqrt(narrower))
    return drawn


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model, in no order that matters."""
    hidden, ffn, has_biases = model.hidden_size, model.ffn_hidden_size, model.family == "gpt"
    head_size = model.head_size or hidden // model.num_attention_heads
    queries = model.num_attention_heads * head_size
    products: dict[str, tuple[int, ...]] = {
        "attention.qkv": (queries + 2 * model.num_query_groups * head_size, hidden),
        "attention.projection": (hidden, queries),
    }
    products = (products if model.latent_attention is None else latent_shapes(model, head_size)) | {
        "feed_forward.up": (ffn * (2 if model.gated_mlp else 1), hidden),
        "feed_forward.down": (hidden, ffn),
    }
    places = ["attention", "feed_forward"]
    places += [f"post_{place}" for place in places if "post_norms" in model.parts]
    if "norms_behind" in model.parts:
        places = [f"post_{place}" for place in places]
    norms = {f"{place}_norm": (hidden,) for place in places}
    if "wide_qk_norm" in model.parts:
        norms |= {"attention.queries_norm": (queries,), "attention.keys_norm": (model.num_query_groups * head_size,)}
    if model.qk_norm:
        norms |= {f"attention.{name}_norm": (head_size,) for name in ("query", "key")}
    dense: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in (products | norms).items()}
    if "sinks" in model.parts:
        dense["attention.sinks.weight"] = (model.num_attention_heads,)
    if not has_biases:
        dense |= {f"{name}.bias": products[name][:1] for name in biased_products(model)}
    sparse = with_experts(dense, model) if model.experts is not None else dense
    layers = [dense if index < model.num_dense_layers else sparse for index in range(model.num_layers)]
    shapes = {f"layers.{index}.{name}": shape for index, layer in enumerate(layers) for name, shape in layer.items()}
    shapes["final_norm.weight"] = (hidden,)
    if has_biases:
        shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items() if "sinks" not in name}
        shapes["embedding.positions.weight"] = (model.seq_length, hidden)
    shapes["embedding.tokens.weight"] = (model.vocab_size, hidden)
    return shapes if model.tied_embeddings else shapes | {"head.weight": (model.vocab_size, hidden)}


def biased_products(model: ModelSpec) -> list[str]:
    """The products of a Llama that have biases."""
    found = ["attention.qkv"] if model.qkv_bias else []
    found += ["attention.projection"] if "output_bias" in model.parts else []
    return found + (["feed_forward.up", "feed_forward.down"] if "mlp_bias" in model.parts else [])


def latent_shapes(model: ModelSpec, head_size: int) -> dict[str, tuple[int, ...]]:
    """The parameters of latent attention, whose names end here before `.weight`."""
    latent, heads = model.latent_attention, model.num_attention_heads
    assert latent is not None
    query, pair, rotary, value = (
        latent.query_rank,
        latent.key_value_rank,
        latent.rotary_head_size,
        latent.value_head_size,
    )
    shapes: dict[str, tuple[int, ...]] = {"down": ((query or 0) + pair + rotary, model.hidden_size)}
    shapes |= {"short_pair_norm": (pair,)} | ({} if query is None else {"short_query_norm": (query,)})
    shapes |= {"query_up": (heads * head_size, query or model.hidden_size)}
    shapes |= {
        "pair_up": (heads * (head_size - rotary + value), pair),
        "projection": (model.hidden_size, heads * value),
    }
    return {f"attention.{name}": shape for name, shape in shapes.items()}


def with_experts(dense: Mapping[str, tuple[int, ...]], model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The parameters of a layer that has experts in the place of its feed-forward network."""
    experts = model.experts
    assert experts is not None
    count, width, shared = experts.num_experts, experts.ffn_hidden_size, experts.shared_ffn_hidden_size
    layer = {name: shape for name, shape in dense.items() if not name.startswith("feed_forward.")}
    layer["feed_forward.router.weight"] = (count, model.hidden_size)
    layer["feed_forward.experts.up.weight"] = (count * 2 * width, model.hidden_size)
    layer["feed_forward.experts.down.weight"] = (count * model.hidden_size, width)
    if "router_bias" in model.parts:
        layer["feed_forward.router.score_bias"] = (count,)
    if "mlp_bias" in model.parts:
        layer["feed_forward.experts.up.bias"] = (count * 2 * width,)
        layer["feed_forward.experts.down.bias"] = (count * model.hidden_size,)
        if shared:
            layer |= {
                "feed_forward.shared.up.bias": (2 * shared,),
                "feed_forward.shared.down.bias": (model.hidden_size,),
            }
    if shared:
        layer["feed_forward.shared.up.weight"] = (2 * shared, model.hidden_size)
        layer["feed_forward.shared.down.weight"] = (model.hidden_size, shared)
    return layer


def losses_of(
    tokens: Tensor, targets: Tensor, weights: Mapping[str, Tensor], model: ModelSpec, routing: Routing | None = None
) -> tuple[Tensor, Tensor]:
    """Token ids (b, s) and the ids that follow them to the mean cross-entropy, and to what balances experts."""
    x = weights["embedding.tokens.weight"][tokens]
    if "scaled_embedding" in model.parts:
        x = x * math.sqrt(model.hidden_size)
    balance = torch.zeros((), dtype=x.dtype)
    if model.family == "gpt":
        x = x + weights["embedding.positions.weight"][: tokens.size(1)]
    for index in range(model.num_layers):
        layer = f"layers.{index}"
        attended = attention(through(x, weights, f"{layer}.attention_norm"), weights, f"{layer}.attention", model)
        x = x + through(attended, weights, f"{layer}.post_attention_norm")
        normed, network = through(x, weights, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward"
        if index < model.num_dense_layers:
            out = feed_forward(normed, weights, network, model, model.ffn_hidden_size)
        else:
            out, of_layer = mixture(normed, weights, network, model, routing or Routing(model))
            balance = balance + of_layer
        x = x + through(out, weights, f"{layer}.post_feed_forward_norm")
    head = weights["embedding.tokens.weight" if model.tied_embeddings else "head.weight"]
    logits = norm(x, weights, "final_norm") @ head.T
    if model.logits_cap is not None:
        logits = model.logits_cap * (logits / model.logits_cap).tanh()
    if routing is not None and routing.z_loss:
        balance = balance + routing.z_loss * logits.logsumexp(-1).square().mean()
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean(), balance


def mixture(
    x: Tensor, weights: Mapping[str, Tensor], prefix: str, model: ModelSpec, routing: Routing
) -> tuple[Tensor, Tensor]:
    """(b, s, h) through every expert, each times its weight, which is 0 for those that a token does not choose.

    Returns:
        What comes out, and the balance loss: the mean over sequences of E times the sum over experts of the share of
        choices that fell on one, times its mean probability (arXiv 2412.19437, equations 17 to 20).
    """
    experts = model.experts
    assert experts is not None
    count, k = experts.num_experts, experts.top_k
    products = x @ weights[f"{prefix}.router.weight"].T + weights.get(f"{prefix}.router.score_bias", 0)
    scores = products.sigmoid() if experts.scores == "sigmoid" else products.softmax(-1)
    preferences = scores.detach() + routing.biases[prefix]
    in_groups = preferences.unflatten(-1, (experts.num_groups, -1))
    goodness = in_groups.sort(-1, descending=True).values[..., :2].sum(-1, keepdim=True)
    least = goodness.sort(-2, descending=True).values[..., experts.top_groups - 1 : experts.top_groups, :]
    preferences = in_groups.masked_fill(goodness < least, -torch.inf).flatten(-2)
    is_chosen = preferences >= preferences.sort(-1, descending=True).values[..., k - 1 : k]
    routing.choices[prefix] = routing.choices[prefix] + is_chosen.sum((0, 1))
    probabilities = scores / scores.sum(-1, keepdim=True)
    chosen = probabilities * is_chosen
    scales = chosen / chosen.sum(-1, keepdim=True) * experts.routed_scale
    if experts.capacity_factor is not None:  # whoever finds an expert full goes without it
        room = math.ceil(experts.capacity_factor * x.size(1) * k / count)
        scales = scales * (is_chosen.cumsum(1) <= room)
    ups, downs = (
        [dict(zip(("e.weight", "e.bias"), each, strict=False)) for each in zip(*of_experts, strict=True)]
        for of_experts in (
            [
                weights[f"{prefix}.experts.{name}.{leaf}"].chunk(count)
                for leaf in ("weight", "bias")
                if f"{prefix}.experts.{name}.{leaf}" in weights
            ]
            for name in ("up", "down")
        )
    )
    out = torch.zeros_like(x)
    for expert, (up, down) in enumerate(zip(ups, downs, strict=True)):
        gate, value = linear(x, up, "e").chunk(2, -1)
        out = out + scales[..., expert, None] * linear(gated(gate, value, model), down, "e")
    if experts.shared_ffn_hidden_size:
        out = out + feed_forward(x, weights, f"{prefix}.shared", model, experts.shared_ffn_hidden_size)
    shares = is_chosen.to(x.dtype).mean(1) / k
    return out, experts.balance_loss * count * (shares * probabilities.mean(1)).sum(-1).mean()


def attention(x: Tensor, weights: Mapping[str, Tensor], prefix: str, model: ModelSpec) -> Tensor:
    """(b, s, h) -> (b, s, h) with an explicit mask and softmax, every head's keys and values written out."""
    b, s, _ = x.shape
    if model.latent_attention is not None:
        return attended(*latent_heads(x, weights, prefix, model), weights, prefix)
    window, layer = model.attention_window, int(prefix.split(".")[1])
    is_full = window is None or (window.full_every is not None and layer % window.full_every == window.full_every - 1)
    shared = model.num_attention_heads // model.num_query_groups
    groups = linear(x, weights, f"{prefix}.qkv").reshape(b, s, model.num_query_groups, shared + 2, -1)
    groups = groups.permute(0, 2, 3, 1, 4)  # (b, groups, members, s, d)
    q = groups[:, :, :shared].flatten(1, 2)
    k, v = (groups[:, :, shared + part].repeat_interleave(shared, dim=1) for part in range(2))
    if model.qk_norm:
        q, k = (norm(heads, weights, f"{prefix}.{name}_norm") for heads, name in ((q, "query"), (k, "key")))
    if "wide_qk_norm" in model.parts:
        whole = (heads.transpose(1, 2).flatten(2) for heads in (q, k[:, ::shared]))
        q, k = (
            norm(each, weights, f"{prefix}.{name}_norm") for each, name in zip(whole, ("queries", "keys"), strict=True)
        )
        q, k = (each.unflatten(2, (-1, v.size(-1))).transpose(1, 2) for each in (q, k))
        k = k.repeat_interleave(shared, dim=1)
    if model.family == "llama":
        is_local = "local_rotary" in model.parts and not is_full
        q, k = (turned(heads, 10_000.0 if is_local else model.rotary_base or 10_000.0) for heads in (q, k))
    if model.query_pre_attn_scalar is not None:
        q = q * math.sqrt(q.size(-1) / model.query_pre_attn_scalar)
    return attended(q, k, v, weights, prefix, None if window is None or is_full else window.size, model.scores_cap)


def latent_heads(
    x: Tensor, weights: Mapping[str, Tensor], prefix: str, model: ModelSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (b, heads, s, size), each written out. Source: arXiv 2405.04434, equations 9 to 19."""
    latent, heads, base = model.latent_attention, model.num_attention_heads, model.rotary_base or 10_000.0
    assert latent is not None
    sizes = [latent.query_rank or 0, latent.key_value_rank, latent.rotary_head_size]
    short_query, short_pair, shared = linear(x, weights, f"{prefix}.down").split(sizes, -1)
    if latent.query_rank is not None:
        x = norm(short_query, weights, f"{prefix}.short_query_norm")
    q = linear(x, weights, f"{prefix}.query_up").unflatten(-1, (heads, -1)).transpose(1, 2)
    pairs = linear(norm(short_pair, weights, f"{prefix}.short_pair_norm"), weights, f"{prefix}.pair_up")
    pairs = pairs.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = pairs.split([pairs.size(-1) - latent.value_head_size, latent.value_head_size], -1)
    plain, ends = q.split([q.size(-1) - sizes[2], sizes[2]], -1)
    q = torch.cat((plain, turned(ends, base)), -1)
    k = torch.cat((k, turned(shared[:, None], base).expand(-1, heads, -1, -1)), -1)
    return q, k, v


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Mapping[str, Tensor],
    prefix: str,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    b, s = q.size(0), q.size(2)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if cap is not None:
        scores = cap * (scores / cap).tanh()
    is_later = torch.ones(s, s, dtype=torch.bool).triu(1)
    is_too_far = torch.zeros_like(is_later) if window is None else torch.ones_like(is_later).tril(-window)
    scores = scores.masked_fill(is_later | is_too_far, -torch.inf)
    if (sinks := weights.get(f"{prefix}.sinks.weight")) is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(b, -1, s, 1)), -1)
    attended = (scores.softmax(-1)[..., :s] @ v).transpose(1, 2).reshape(b, s, -1)
    return linear(attended, weights, f"{prefix}.projection")


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions of (b, heads, s, d): element i and i + d/2 are one complex number, turned by the position."""
    real, imaginary = x.chunk(2, -1)
    frequencies = base ** -(torch.arange(real.size(-1), dtype=x.dtype) / real.size(-1))
    angles = torch.outer(torch.arange(x.size(-2), dtype=x.dtype), frequencies)
    number = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((number.real, number.imag), -1)


def feed_forward(x: Tensor, weights: Mapping[str, Tensor], prefix: str, model: ModelSpec, width: int) -> Tensor:
    activation = gelu if model.family == "gpt" or "gelu" in model.parts else silu
    x = linear(x, weights, f"{prefix}.up")
    if model.gated_mlp:  # rows of gate and input take turns, in as many blocks as the most tensor ranks
        num_blocks = math.gcd(model.num_query_groups, width)
        gate, x = x.unflatten(-1, (num_blocks, 2, -1)).unbind(-2)
        x = (activation(gate) * x).flatten(-2)
    else:
        x = activation(x)
    return linear(x, weights, f"{prefix}.down")


def gated(gate: Tensor, value: Tensor, model: ModelSpec) -> Tensor:
    """Of an expert."""
    if "capped_activation" not in model.parts:
        return (gelu if "gelu" in model.parts else silu)(gate) * value
    gate, value = gate.minimum(torch.tensor(7.0)), value.maximum(torch.tensor(-7.0)).minimum(torch.tensor(7.0))
    return gate / (1 + (-1.702 * gate).exp()) * (value + 1)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def through(x: Tensor, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    """Through a norm, where the model has it."""
    return norm(x, weights, prefix) if f"{prefix}.weight" in weights else x


def norm(x: Tensor, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    """LayerNorm where there is a bias, else RMSNorm."""
    bias = weights.get(f"{prefix}.bias")
    centred = x if bias is None else x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{prefix}.weight"]
    return scaled if bias is None else scaled + bias


def linear(x: Tensor, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    product, bias = x @ weights[f"{prefix}.weight"].T, weights.get(f"{prefix}.bias")
    return product if bias is None else product + bias
