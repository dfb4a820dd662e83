"""Pipeline parallelism: one executor runs any list of actions over the model chunks of a stage.

actions of a stage    F0        F1        B0        F2        B1   ...       see `schedules`
asked for before      in 0, 1             in 2      grad 1    in 3           the next action's input, but for grad 0
asked for after                 grad 0
sent after            out 0     out 1     grad of in 0        ...            and travels while the next action runs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.model.documents import Documents
from train_core.model.mixture import Balance
from train_core.parallel.collectives import Pending
from train_core.parallel.context_parallel import own_documents, own_tokens
from train_core.parallel.main_gradient import DeferredProduct, add_products, deferred_products
from train_core.parallel.mesh import Channel, Mesh
from train_core.parallel.parallelize import Stage
from train_core.parallel.schedules import Action


class MicroBatch(NamedTuple):
    """Token ids and the ids that follow them, each (s, b).

    Attributes:
        documents: those that the sequences are packed from; None where a sequence is taken for one document.
    """

    tokens: Tensor
    targets: Tensor
    documents: Documents | None = None


class EndOf(torch.autograd.Function):
    """A scalar whose backward hands a gradient, which is known only then, to a tensor, which need not live until then.

    `out.backward(gradient)` would need it, and imports sympy the first time, for a second of every rank's start.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, gradients: list[Tensor]) -> Tensor:
        ctx.gradients = gradients
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return ctx.gradients.pop(), None


class KeptPass(NamedTuple):
    """The parts of a forward pass that its backward pass begins with.

    Attributes:
        end: a scalar, where backward begins: the scaled loss, or the `EndOf` of an output, which itself is let go when
            it has been sent.
        gradients: takes the gradient of that output.
    """

    input: Tensor
    end: Tensor
    gradients: list[Tensor]


class Transfers:
    """Sends tensors to neighbouring stages and receives theirs; both return before the tensor has travelled."""

    def send(self, tensor: Tensor, channel: Channel) -> Pending:
        # Only contiguous memory can be sent.
        tensor = tensor.contiguous()
        work = dist.isend(tensor, channel.peer, group=channel.group)
        return Pending(tensor, work, "send", channel.line)

    def receive(self, buffer: Tensor, channel: Channel) -> Pending:
        work = dist.irecv(buffer, channel.peer, group=channel.group)
        return Pending(buffer, work, "receive", channel.line)


TRANSFERS = Transfers()


class PipelineExecutor:
    """Runs one stage's actions, exchanging activations and their gradients with the neighbouring stages.

    The input of the next action is asked for before the present one is worked on, and outputs are sent while the work
    goes on. What is sent has no name: a neighbour receives in the order in which it runs its own list.

    On a GPU a receive is a kernel that spins until the other end sends. Whatever needs the device to be idle meanwhile
    waits for it: freeing memory, loading a kernel, making a communicator. So does work that shares its hardware queue.
    Nothing is therefore asked for before work of this stage from which it follows. One stage may then wait so; two
    neighbours at once may come to wait for each other.
    """

    def __init__(
        self,
        stage: Stage,
        mesh: Mesh,
        activation_shape: Sequence[int],
        dtype: torch.dtype,
        transfers: Transfers = TRANSFERS,
        *,
        separate_documents: bool = False,
    ) -> None:
        """`activation_shape` is what passes between stages: (s, b, h), or (s/t, b, h) with sequence parallelism.

        Args:
            separate_documents: all stages ask for micro-batches, and not only those at the ends.
        """
        self.separate_documents = separate_documents
        self.chunks, self.mesh, self.randomness = stage.chunks, mesh, stage.randomness
        self.balances = [module for chunk in stage.chunks for module in chunk.modules() if isinstance(module, Balance)]
        self.activation_shape, self.dtype, self.transfers = tuple(activation_shape), dtype, transfers
        self.device = next(self.chunks[0].parameters()).device
        # By micro-batch and chunk: forward passes until their backward pass, and products put off.
        self._kept: dict[tuple[int, int], KeptPass] = {}
        self._deferred: dict[tuple[int, int], list[DeferredProduct]] = {}
        # Micro-batches that have not been through all chunks yet, where each asks for them.
        self._parts: dict[int, MicroBatch] = {}
        # Inputs on their way by the action that takes them, and outputs whose memory is still being sent.
        self._arriving: dict[Action, Pending] = {}
        self._sending: list[Pending] = []

    def run(self, actions: Sequence[Action], batch: Callable[[int], MicroBatch], gradient_scale: float = 1.0) -> Tensor:
        """One step's passes; an evaluation where `actions` are `schedules.forward_only` and gradients are disabled.

        Args:
            batch: the micro-batch by its index; only the first and the last stage ask for it, unless documents are
                separate.
            gradient_scale: the factor of every micro-batch's loss before backward.

        Returns:
            The sum of the micro-batches' losses, a scalar in fp32, on the last stage; 0 elsewhere.
        """
        # Summed on the device, because reading a loss in between would make the host wait for it.
        losses = torch.zeros((), device=self.device)
        for balance in self.balances:
            balance.gradient_scale = gradient_scale
        # Micro-batches whose weight gradients have an action of their own, which backward therefore leaves out.
        split = {action[1:] for action in actions if action.kind == "weight"}
        first_backward = next((action for action in actions if action.kind == "backward"), None)
        for action, after in zip_longest(actions, actions[1:]):
            self.mesh.clock.begin_pass(action)
            self._ask_for(action)
            # The first gradient may follow from this very forward pass, and does not come before it in any schedule.
            if after is not None and after != first_backward:
                self._ask_for(after)
            self.mesh.clock.micro_batch = self.randomness.micro_batch = action.micro_batch
            if action.kind == "forward":
                losses += self._forward(action, batch, gradient_scale)
            elif action.kind == "backward":
                self._backward(action, defer=action[1:] in split)
            else:
                add_products(self._deferred.pop(action[1:]))
        self.mesh.clock.begin_pass(None)
        # The step ends when all that was sent has left, so that its time and memory do not fall into the next one.
        for sending in self._sending:
            sending.wait()
        self._sending.clear()
        self.mesh.clock.micro_batch = None
        return losses

    def _forward(self, action: Action, batch: Callable[[int], MicroBatch], gradient_scale: float) -> Tensor | float:
        is_first, is_last = self._is_first(action), self._is_last(action)
        tokens = targets = documents = None
        if is_first or is_last or self.separate_documents:
            tokens, targets, documents = self._part_of(action, batch)
        # Backward is to give the gradient of the input too, which goes back to the stage before.
        x = tokens if is_first else self._arriving.pop(action).wait().requires_grad_()
        assert x is not None
        out: Tensor = self.chunks[action.chunk](x, targets, documents)
        if not is_last:
            # Detached, so that what is being sent does not keep the graph of the pass alive.
            self._send(out.detach(), self.mesh.activations_out)
        if torch.is_grad_enabled():
            gradients = list[Tensor]()
            # The loss is scaled once, where backward begins. Gradients that come from the next stage are scaled
            # already.
            end = out * gradient_scale if is_last else EndOf.apply(out, gradients)  # type: ignore[no-untyped-call]
            self._kept[action[1:]] = KeptPass(x, end, gradients)
        return out.detach() if is_last else 0.0

    def _part_of(self, action: Action, batch: Callable[[int], MicroBatch]) -> MicroBatch:
        """This rank's part of a micro-batch, which is read once for all chunks that ask for it."""
        index = action.micro_batch
        part = self._parts.pop(index) if index in self._parts else self._own_part(batch(index))
        if self.separate_documents and action.chunk < len(self.chunks) - 1:
            self._parts[index] = part
        return part

    def _own_part(self, whole: MicroBatch) -> MicroBatch:
        # Every context rank reads whole sequences, which is cheaper than to send each its tokens.
        axis, documents = self.mesh.axis("context"), whole.documents
        own = own_documents(documents, axis) if documents is not None else None
        return MicroBatch(own_tokens(whole.tokens, axis), own_tokens(whole.targets, axis), own)

    def _backward(self, action: Action, *, defer: bool) -> None:
        x, end, gradients = self._kept.pop(action[1:])
        if not self._is_last(action):
            gradients.append(self._arriving.pop(action).wait())
        if defer:
            with deferred_products() as self._deferred[action[1:]]:
                torch.autograd.backward(end)
        else:
            torch.autograd.backward(end)
        if not self._is_first(action):
            assert x.grad is not None
            self._send(x.grad, self.mesh.gradients_out)

    def _is_first(self, action: Action) -> bool:
        return self.mesh.is_first_stage and action.chunk == 0

    def _is_last(self, action: Action) -> bool:
        return self.mesh.is_last_stage and action.chunk == len(self.chunks) - 1

    def _channel_in(self, action: Action) -> Channel | None:
        """The channel of an action's input; None for token ids, for the loss and for weight gradients."""
        if action.kind == "forward":
            return None if self._is_first(action) else self.mesh.activations_in
        return None if action.kind == "weight" or self._is_last(action) else self.mesh.gradients_in

    def _ask_for(self, action: Action) -> None:
        """Ask for the input of an action, where it has one that has not been asked for."""
        channel = self._channel_in(action)
        if channel is None or action in self._arriving:
            return
        # A receive counts as a part of the micro-batch that it brings, whichever one is worked on meanwhile.
        self.mesh.clock.micro_batch = action.micro_batch
        buffer = torch.empty(self.activation_shape, dtype=self.dtype, device=self.device)
        self._arriving[action] = self.transfers.receive(buffer, channel)

    def _send(self, tensor: Tensor, channel: Channel | None) -> None:
        assert channel is not None
        # What has arrived is let go, and with it the memory of what was sent.
        self._sending = [sending for sending in self._sending if not sending.is_done()]
        self._sending.append(self.transfers.send(tensor, channel))
