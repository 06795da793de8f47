"""torch.ops.convx takes one image without a batch, as F.conv2d and conv2d_ext.conv2d do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch.func import vmap
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import conv2d_ext

OPS = torch.ops.convx
LISTS = ([2, 1], [1, 2], [1, 2], 2)
MASK = [True, True, True]


def operands(device: str = "cpu") -> list[torch.Tensor]:
    sizes = (4, 7, 8), (6, 2, 3, 2), (6,)
    return [draw(size, torch.float64, seed=i).to(device) for i, size in enumerate(sizes)]


def test_forward_and_backward(device):
    tensors = operands(device)
    ours, theirs = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
    y, want = OPS.conv2d(*ours, *LISTS), F.conv2d(*theirs, *LISTS)
    torch.testing.assert_close(y, want)
    assert torch.equal(conv2d_ext.conv2d(*tensors, *LISTS), y)
    g = draw(tuple(want.shape), torch.float64, seed=3).to(device)
    grads = torch.autograd.grad(want, theirs, g)
    torch.testing.assert_close(torch.autograd.grad(y, ours, g), grads)
    torch.testing.assert_close(OPS.conv2d_backward(g, *ours[:2], *LISTS, MASK), grads)
    with torch.inference_mode():
        torch.testing.assert_close(OPS.conv2d(*tensors, *LISTS), want)
        torch.testing.assert_close(OPS.conv2d_backward(g, *tensors[:2], *LISTS, MASK), grads)
        only_bias = OPS.conv2d_backward(g, *tensors[:2], *LISTS, [False, False, True])
    assert only_bias[:2] == (None, None)


def test_the_overload_for_plain_ints():
    x, w, b = operands()
    torch.testing.assert_close(
        OPS.conv2d(x, w, b, padding=1, groups=2), F.conv2d(x, w, b, padding=1, groups=2)
    )


@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "requires_grad"])
def test_opcheck(requires_grad, device):
    x, w, b = (t.requires_grad_(requires_grad) for t in operands(device))
    opcheck(OPS.conv2d.default, (x, w, b, *LISTS))
    g = torch.randn_like(F.conv2d(x, w, b, *LISTS)).requires_grad_(requires_grad)
    opcheck(OPS.conv2d_backward.default, (g, x, w, *LISTS, MASK))


def test_vmap():
    x, w, b = operands()
    many = torch.stack([x, 2 * x])
    want = vmap(lambda x: F.conv2d(x, w, b, *LISTS))(many)
    torch.testing.assert_close(vmap(lambda x: OPS.conv2d(x, w, b, *LISTS))(many), want)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled():
    x, w, b = operands()
    compiled = torch.compile(lambda *a: OPS.conv2d(*a, *LISTS), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, b), F.conv2d(x, w, b, *LISTS))


def test_flops_are_counted():
    x, w, b = operands()
    counts = []
    for conv in (OPS.conv2d, F.conv2d):
        with torch.inference_mode(), FlopCounterMode(display=False) as mode:
            conv(x, w, b, *LISTS)
        counts.append(mode.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device_type", ["cpu", "meta"])
def test_a_batch_for_one_of_two(device_type):
    x, w, b = (t.to(device_type) for t in operands())
    g = torch.empty_like(OPS.conv2d(x, w, b, *LISTS))
    for pair in ((g.unsqueeze(0), x), (g, x.unsqueeze(0))):
        with pytest.raises(RuntimeError, match="grad_output"):
            OPS.conv2d_backward(*pair, w, *LISTS, MASK)
