"""Gradients of the first and second order, by finite differences, and which ones are computed."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from cases import Case, draw
from layouts import COMMON, expanded_value, transposed
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import hvp
from torch.utils.checkpoint import checkpoint

import conv2d_ext

D = torch.float64
CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}

# Tiny, since finite differences move every element.
TINY = [
    Case("plain", (2, 2, 4, 3), (3, 2, 2, 2), padding=(1, 1)),
    Case("everything", (1, 4, 5, 4), (2, 2, 2, 3), (2, 1), (1, 0, 2, 1), (2, 1), 2),
    Case("depthwise_multiplier", (1, 2, 4, 4), (4, 1, 2, 2), (1, 2), (1, 1), (2, 1), 2),
    Case("one_by_one", (2, 3, 2, 3), (2, 3, 1, 1)),
    Case("unread_pixels", (1, 1, 5, 5), (2, 1, 1, 2), stride=(3, 3)),
    Case("kernel_larger_than_image", (1, 2, 2, 2), (1, 2, 3, 4), padding=(2, 2)),
]


def leaves(case: Case, device: str = "cpu") -> list[torch.Tensor]:
    return [t.requires_grad_() for t in case.tensors(D, device) if t is not None]


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("case", TINY, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_gradcheck_and_gradgradcheck(conv, case, layout, device):
    x, w, b = leaves(case, device)
    x, w = (layout.x(t.detach()).requires_grad_() for t in (x, w))

    def run(x, w, b):
        return conv(x, w, b, **case.geometry)

    assert gradcheck(run, (x, w, b), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(run, (x, w, b), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_backward_op_is_differentiable(case, device):
    x, w, _ = leaves(case, device)
    y = case.grad_output(D, device).requires_grad_()
    arguments = (*(case.geometry.values()), [True, True, True])

    def run(y, x, w):
        return torch.ops.convx.conv2d_backward(y, x, w, *arguments)

    assert gradcheck(run, (y, x, w), check_forward_ad=True)
    assert gradgradcheck(run, (y, x, w))


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3))[1:], ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_only_the_gradients_asked_for(conv, needs, device):
    case = TINY[1]
    mine = [
        t.detach().requires_grad_(need) for t, need in zip(leaves(case, device), needs, strict=True)
    ]
    theirs = [t.detach().clone().requires_grad_(need) for t, need in zip(mine, needs, strict=True)]
    padded = F.pad(theirs[0], (2, 1, 1, 0))
    conv(*mine, **case.geometry).square().sum().backward()
    F.conv2d(
        padded, *theirs[1:], case.stride, 0, case.dilation, case.groups
    ).square().sum().backward()
    for one, other, need in zip(mine, theirs, needs, strict=True):
        assert (one.grad is not None) == need
        if need:
            torch.testing.assert_close(one.grad, other.grad)


def test_what_is_not_needed_is_not_kept():
    """A frozen layer keeps no input alive, as in PyTorch."""
    kept = []
    x, w = draw((2, 3, 5, 5)).requires_grad_(), draw((4, 3, 3, 3))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        conv2d_ext.conv2d(x, w)
    assert [t.shape for t in kept] == [w.shape]


@pytest.mark.parametrize("make", [expanded_value, transposed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_grad_output_of_any_layout(conv, make, device):
    case = TINY[0]
    mine = leaves(case, device)
    grad_output = make(case.grad_output(D, device))
    assert not grad_output.is_contiguous()
    got = torch.autograd.grad(conv(*mine, **case.geometry), mine, grad_output)
    want = torch.autograd.grad(F.conv2d(*mine, **case.geometry), mine, grad_output)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", COMMON, ids=str)
def test_gradients_keep_the_memory_format(layout, device):
    x, w = draw((2, 4, 5, 6), device=device), draw((3, 4, 3, 3), device=device)
    x, w = layout.x(x).requires_grad_(), layout.w(w).requires_grad_()
    conv2d_ext.conv2d(x, w).square().sum().backward()
    assert x.grad.stride() == x.stride()
    assert w.grad.stride() == w.stride()


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_third_order(conv):
    def loss(conv, x, w):
        return conv(conv(x, w, padding=1).tanh(), w, padding=1).square().sum()

    def third(conv):
        x = draw((1, 2, 4, 4), D).requires_grad_()
        w = draw((2, 2, 3, 3), D, seed=1).requires_grad_()
        value = loss(conv, x, w)
        for _ in range(3):
            value = sum(
                g.sin().sum() for g in torch.autograd.grad(value, (x, w), create_graph=True)
            )
        return value

    torch.testing.assert_close(third(conv), third(F.conv2d))


def test_hessian_vector_product():
    x, w = draw((1, 2, 4, 4), D), draw((2, 2, 3, 3), D)
    got = hvp(lambda w: conv2d_ext.conv2d(x, w).tanh().sum(), w, w.cos())
    want = hvp(lambda w: F.conv2d(x, w).tanh().sum(), w, w.cos())
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    x, w = (t.requires_grad_() for t in (draw((2, 3, 5, 5), D), draw((4, 3, 3, 3), D)))
    checkpoint(conv2d_ext.conv2d, x, w, use_reentrant=use_reentrant).square().sum().backward()
    want = torch.autograd.grad(F.conv2d(x, w).square().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), want)


def test_in_place_change_of_a_saved_tensor_is_noticed():
    x, w = draw((1, 2, 4, 4)), draw((3, 2, 3, 3)).requires_grad_()
    y = conv2d_ext.conv2d(x, w)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_no_graph_without_gradients(conv, mode):
    x, w = draw((1, 2, 4, 4)).requires_grad_(), draw((3, 2, 3, 3)).requires_grad_()
    with mode():
        y = conv(x, w)
    assert not y.requires_grad
    torch.testing.assert_close(y, F.conv2d(x, w).detach())
