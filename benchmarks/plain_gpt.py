"""The yardstick of the trainer's speed: a GPT and its training loop as plain PyTorch, for one process."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.plan.experiment import Experiment


class PlainBlock(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv, self.projection = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
        self.up, self.down = nn.Linear(hidden_size, 4 * hidden_size), nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        # One product for q, k and v, and fused kernels wherever torch has them: the opponent must not be a weak one.
        q, k, v = self.qkv(self.norm_1(x)).view(b, s, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """Maps token ids and targets (b, s) to the mean loss. The head shares its weights with the token embedding."""

    def __init__(self, vocab_size: int, seq_length: int, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, hidden_size), nn.Embedding(seq_length, hidden_size)
        self.blocks = nn.Sequential(*(PlainBlock(hidden_size, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        logits = functional.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plain_steps(experiment: Experiment, dtype: torch.dtype) -> Iterator[float]:
    """Train on random tokens for ever, and yield the loss after each optimizer step."""
    spec, batch = experiment.model, experiment.batch
    torch.manual_seed(experiment.training.seed)
    sizes = (spec.vocab_size, spec.seq_length, spec.hidden_size, spec.num_attention_heads, spec.num_layers)
    model = PlainGPT(*sizes).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=experiment.training.learning_rate, fused=True)
    num_micro_batches = batch.global_batch_size // batch.micro_batch_size
    while True:
        optimizer.zero_grad()
        loss = 0.0
        for _ in range(num_micro_batches):
            ids = torch.randint(spec.vocab_size, (batch.micro_batch_size, spec.seq_length + 1))
            part = model(ids[:, :-1], ids[:, 1:]) / num_micro_batches
            part.backward()
            loss += part.item()
        if experiment.training.clip_gradient_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), experiment.training.clip_gradient_norm)
        optimizer.step()
        yield loss
