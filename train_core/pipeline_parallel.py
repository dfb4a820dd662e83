"""Pipeline parallelism: a schedule is a list of actions, and one executor runs any list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.collectives import Pending
from train_core.mesh import Channel, Mesh
from train_core.model import GPT


class Action(NamedTuple):
    """The forward or the backward pass of one micro-batch through this rank's stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


class MicroBatch(NamedTuple):
    """Token ids and the ids that follow them, each (s, b)."""

    tokens: Tensor
    targets: Tensor


def one_forward_one_backward(num_stages: int, stage: int, num_micro_batches: int) -> list[Action]:
    """1F1B: fill the pipeline, then alternate, then drain; at most num_stages - stage micro-batches in flight.

    Source: arXiv 2104.04473, section 2.2.1.
    """
    warmup = min(num_micro_batches, num_stages - stage - 1)
    actions = [Action("forward", index) for index in range(warmup)]
    for index in range(num_micro_batches - warmup):
        actions += [Action("forward", index + warmup), Action("backward", index)]
    return actions + [Action("backward", index) for index in range(num_micro_batches - warmup, num_micro_batches)]


class PipelineExecutor:
    """Runs one stage's actions, exchanging activations and their gradients with the neighbouring stages.

    The input of the next action is asked for before the present one is computed, so that it travels meanwhile. Inputs
    arrive in the order in which the neighbour computes them, so neighbouring stages must run matching lists.
    """

    def __init__(self, model: GPT, mesh: Mesh, activation_shape: Sequence[int], dtype: torch.dtype) -> None:
        """`activation_shape` is what passes between stages: (s, b, h), or (s/t, b, h) with sequence parallelism."""
        self.model, self.mesh = model, mesh
        self.activation_shape, self.dtype = tuple(activation_shape), dtype
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._arriving: dict[Action, Pending] = {}
        self._sending: list[Pending] = []

    def run(self, actions: Sequence[Action], batch: Callable[[int], MicroBatch], gradient_scale: float) -> Tensor:
        """One step's forward and backward passes.

        Args:
            batch: the micro-batch with an index.
            gradient_scale: factor of every micro-batch's loss before backward.

        Returns:
            The sum of the micro-batches' losses, a scalar in fp32, on the last stage; 0 elsewhere.
        """
        device = next(self.model.parameters()).device
        losses = torch.zeros((), device=device)
        for action, following in zip(actions, [*actions[1:], None], strict=True):
            self._ask_for(action, device)
            if following is not None:
                self._ask_for(following, device)
            if action.kind == "forward":
                losses += self._forward(action, batch, gradient_scale)
            else:
                self._backward(action)
        for sending in self._sending:
            sending.wait()
        self._sending.clear()
        return losses

    def _forward(self, action: Action, batch: Callable[[int], MicroBatch], gradient_scale: float) -> Tensor | float:
        at_an_end = self.mesh.is_first_stage or self.mesh.is_last_stage
        tokens, targets = batch(action.micro_batch) if at_an_end else (None, None)
        x = tokens if self.mesh.is_first_stage else self._arriving.pop(action).wait().requires_grad_()
        assert x is not None
        out: Tensor = self.model(x, targets)
        if self.mesh.is_last_stage:
            self._kept[action.micro_batch] = (x, out * gradient_scale)
            return out.detach()
        self._send(out.detach(), self.mesh.activations_out)
        self._kept[action.micro_batch] = (x, out)
        return 0.0

    def _backward(self, action: Action) -> None:
        x, out = self._kept.pop(action.micro_batch)
        gradient = None if self.mesh.is_last_stage else self._arriving.pop(action).wait()
        torch.autograd.backward(out, gradient)
        if not self.mesh.is_first_stage:
            assert x.grad is not None
            self._send(x.grad, self.mesh.gradients_out)

    def _ask_for(self, action: Action, device: torch.device) -> None:
        channel = self.mesh.activations_in if action.kind == "forward" else self.mesh.gradients_in
        if channel is None or action in self._arriving:
            return
        buffer = torch.empty(self.activation_shape, dtype=self.dtype, device=device)
        self._arriving[action] = Pending(buffer, dist.irecv(buffer, channel.peer, group=channel.group))

    def _send(self, tensor: Tensor, channel: Channel | None) -> None:
        assert channel is not None
        self._sending = [sending for sending in self._sending if not sending.is_done()]
        tensor = tensor.contiguous()
        self._sending.append(Pending(tensor, dist.isend(tensor, channel.peer, group=channel.group)))
