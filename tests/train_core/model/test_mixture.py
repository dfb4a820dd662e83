"""The activation of experts whose gates are clamped, and their biases: values and gradients by torch's own."""

from __future__ import annotations

import torch

from train_core.model.elementwise import SIGMOID_GELU
from train_core.model.mixture import Gating, weighted_gated_product
from train_core.parallel.expert_parallel import _WithBiases


def test_a_clamped_gate_and_its_gradients_are_those_that_autograd_makes() -> None:
    torch.manual_seed(0)
    x = (torch.randn(40, 12, dtype=torch.float64) * 6).requires_grad_()
    weights = torch.rand(40, dtype=torch.float64, requires_grad=True)
    assert (x.detach().abs() > 7).any(), "nothing is clamped"
    gate, up = x.chunk(2, -1)
    clamped = gate.clamp(max=7.0)
    expected = clamped * torch.sigmoid(1.702 * clamped) * (up.clamp(-7.0, 7.0) + 1) * weights[:, None]
    grad_out = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, weights), grad_out)
    out = weighted_gated_product(x, weights, Gating(SIGMOID_GELU, 7.0))
    found = torch.autograd.grad(out, (x, weights), grad_out)
    torch.testing.assert_close((out, *found), (expected, *wanted))


def test_biases_of_experts_count_as_much_as_their_rows() -> None:
    torch.manual_seed(0)
    rows, bias, weights = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (9,), (5,))
    )
    sizes, expert = [2, 0, 3], torch.tensor([0, 0, 2, 2, 2])
    for scale in (None, weights):
        biases = bias.view(3, 3)[expert]
        expected = rows * 1 + (biases if scale is None else biases * scale[:, None])
        out = _WithBiases.apply(rows * 1, bias, scale, sizes)
        over = [rows, bias] if scale is None else [rows, bias, scale]
        grad_out = torch.randn_like(expected)
        wanted, found = (torch.autograd.grad(each, over, grad_out) for each in (expected, out))
        torch.testing.assert_close((out, *found), (expected, *wanted))
