"""Backward computes the gradients that are asked for, and no others: each pass is counted."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch import Tensor
from torch.autograd import forward_ad

import conv2d_ext
from conv2d_ext import _ops

D = torch.float64
CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}
SUBSETS = list(itertools.product([False, True], repeat=3))[1:]
GRADIENTS = ["input_grad", "weight_grad", "bias_grad"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the private operators, in the order of their calls; of the operator that
    computes several gradients, theirs."""
    called: list[str] = []

    def count(name: str) -> None:
        operator = getattr(_ops, name)

        def counted(*args):
            called.append(name)
            return operator(*args)

        monkeypatch.setattr(_ops, name, counted)

    for name in ("forward", *GRADIENTS):
        count(name)
    gradients = _ops.gradients

    def counted_gradients(grad_output, input, weight, *rest):
        called.extend(chosen(rest[:3], GRADIENTS))
        return gradients(grad_output, input, weight, *rest)

    monkeypatch.setattr(_ops, "gradients", counted_gradients)
    return called


def operands() -> tuple[Tensor, Tensor, Tensor]:
    return draw((2, 3, 6, 5), D), draw((4, 3, 3, 2), D, seed=1), draw((4,), D, seed=2)


def chosen(subset, values) -> list:
    return [value for value, wanted in zip(values, subset, strict=True) if wanted]


def leaves() -> list[Tensor]:
    return [t.requires_grad_() for t in operands()]


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_frozen_tensors(conv, subset, calls):
    x, w, b = (t.requires_grad_(need) for t, need in zip(operands(), subset, strict=True))
    y = conv(x, w, b)
    calls.clear()
    y.sum().backward()
    assert calls == chosen(subset, GRADIENTS)


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
@pytest.mark.parametrize("are_leaves", [True, False], ids=["leaves", "inner"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_some_of_the_tensors_that_require_gradients(conv, are_leaves, subset, calls):
    tensors = leaves()
    if not are_leaves:
        tensors = [t * 1 for t in tensors]
    wanted = chosen(subset, tensors)
    y = conv(*tensors)
    calls.clear()
    got = torch.autograd.grad(y.square().sum(), wanted)
    assert calls == chosen(subset, GRADIENTS)
    torch.testing.assert_close(got, torch.autograd.grad(F.conv2d(*tensors).square().sum(), wanted))


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_backward_with_inputs(subset, calls):
    tensors = leaves()
    y = conv2d_ext.conv2d(*tensors)
    calls.clear()
    y.sum().backward(inputs=chosen(subset, tensors))
    assert calls == chosen(subset, GRADIENTS)
    assert [t.grad is not None for t in tensors] == list(subset)


def test_what_lies_behind_a_tensor_counts(calls):
    """The gradient of x passes through both layers; the weights' gradients are not asked for."""
    x, w, _ = leaves()
    v = draw((2, 4, 3, 2), D).requires_grad_()
    y = conv2d_ext.conv2d(conv2d_ext.conv2d(x, w).tanh(), v)
    calls.clear()
    torch.autograd.grad(y.sum(), [x], retain_graph=True)
    assert calls == ["input_grad", "input_grad"]
    calls.clear()
    torch.autograd.grad(y.sum(), [w], retain_graph=True)
    assert calls == ["input_grad", "weight_grad"]
    calls.clear()
    torch.autograd.grad(y.sum(), [v])
    assert calls == ["weight_grad"]


# The gradient that is differentiated, the operands it depends on, and the pass of each.
SECOND = [
    ("x", {"g": "forward", "w": "weight_grad"}),
    ("w", {"g": "forward", "x": "input_grad"}),
    ("b", {"g": None}),
]


def second_order_cases() -> list:
    return [
        (first, depends, wanted)
        for first, depends in SECOND
        for count in range(1, len(depends) + 1)
        for wanted in itertools.combinations(depends, count)
    ]


@pytest.mark.parametrize(("first", "depends", "wanted"), second_order_cases())
@pytest.mark.parametrize("frozen", [False, True], ids=["asked_for", "frozen"])
def test_double_backward(first, depends, wanted, frozen, calls):
    """frozen: unwanted tensors require no gradient. Otherwise they do, and nobody asks for it."""
    tensors = dict(zip("xwbg", (*operands(), draw((2, 4, 4, 4), D, seed=3)), strict=True))
    for name, tensor in tensors.items():
        tensor.requires_grad_(not frozen or name == first or name in wanted)
    got = []
    for conv in (conv2d_ext.conv2d, F.conv2d):
        y = conv(tensors["x"], tensors["w"], tensors["b"])
        calls.clear()
        (gradient,) = torch.autograd.grad(y, [tensors[first]], tensors["g"], create_graph=True)
        if conv is conv2d_ext.conv2d:
            assert calls == [GRADIENTS["xwb".index(first)]]
        calls.clear()
        got.append(torch.autograd.grad(gradient.square().sum(), [tensors[n] for n in wanted]))
        if conv is conv2d_ext.conv2d:
            assert calls == [depends[name] for name in depends if name in wanted and depends[name]]
    torch.testing.assert_close(*got)


@pytest.mark.parametrize("mask", [(False, False, False), *SUBSETS], ids=str)
def test_output_mask(mask, calls):
    x, w, _ = operands()
    g = draw((2, 4, 4, 4), D)
    for requires_grad in (False, True):
        g.requires_grad_(requires_grad)
        calls.clear()
        got = torch.ops.convx.conv2d_backward(g, x, w, [1], [0], [1], 1, list(mask))
        assert calls == chosen(mask, GRADIENTS)
        assert [t is not None for t in got] == list(mask)


@pytest.mark.parametrize("mask", [(False, False, False), *SUBSETS], ids=str)
def test_output_mask_without_autograd(mask):
    """In inference mode the operator's own kernel runs; the library lists its plans."""
    x, w, _ = operands()
    g = draw((2, 4, 4, 4), D)
    torch.ops.convx._record_cpu(True)
    with torch.inference_mode():
        got = torch.ops.convx.conv2d_backward(g, x, w, [1], [0], [1], 1, list(mask))
    planned = json.loads(torch.ops.convx._record_cpu(False))
    passes = [call["problem"]["direction"] for call in planned]
    assert sorted(passes) == chosen(mask[:2], GRADIENTS[:2])
    assert [t is not None and t.numel() > 0 for t in got] == list(mask)


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_tangents(subset, calls):
    """Forward mode: a product for each operand that has a tangent; the bias needs none."""
    tensors = operands()
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(t, torch.ones_like(t)) if has else t
            for t, has in zip(tensors, subset, strict=True)
        ]
        conv2d_ext.conv2d(*duals)
    assert calls == ["forward"] * (1 + sum(subset[:2]))


class NoGradient(torch.autograd.Function):
    """Passes a tensor on, and no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_no_gradient_of_the_output(calls):
    tensors = leaves()
    y = NoGradient.apply(conv2d_ext.conv2d(*tensors))
    calls.clear()
    y.sum().backward()
    assert calls == []
    assert [t.grad for t in tensors] == [None] * 3


@pytest.mark.parametrize("first", range(3))
def test_no_gradient_of_a_gradient(first, calls):
    tensors = leaves()
    g = draw((2, 4, 4, 4), D).requires_grad_()
    y = conv2d_ext.conv2d(*tensors)
    (gradient,) = torch.autograd.grad(y, [tensors[first]], g, create_graph=True)
    calls.clear()
    NoGradient.apply(gradient).sum().backward()
    assert calls == []
    assert g.grad is None
