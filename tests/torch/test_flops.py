"""FlopCounterMode counts convx as it counts F.conv2d."""

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, Case, named
from torch.utils.flop_counter import FlopCounterMode

import conv2d_ext

CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}


def count(conv, case: Case, backward: bool) -> int:
    x, w, b = case.tensors()
    x, w = x.requires_grad_(backward), w.requires_grad_(backward)
    with FlopCounterMode(display=False) as counter:
        y = conv(x, w, b, **case.geometry)
        if backward:
            y.sum().backward()
    return counter.get_total_flops()


def exact(case: Case) -> int:
    """Two operations per product, padding included."""
    n, k, p, q = case.y
    return 2 * n * k * p * q * case.w[1] * case.w[2] * case.w[3]


@pytest.mark.parametrize("case", [c for c in CASES if len(c.padding) == 2 and c.x[0]], ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_forward(conv, case):
    assert count(conv, case, False) == count(F.conv2d, case, False) == exact(case)


@pytest.mark.parametrize("case", named("odd_channels", "stride_per_axis", "seed80"), ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_backward(conv, case):
    assert count(conv, case, True) == count(F.conv2d, case, True) == 3 * exact(case)


@pytest.mark.parametrize("case", named("groups", "depthwise_multiplier"), ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_grouped_backward_is_not_overcounted(conv, case):
    """PyTorch's own formula ignores groups in the weight gradient; this one does not."""
    assert count(conv, case, True) == 3 * exact(case)


@pytest.mark.parametrize(
    ("mask", "times"),
    [([True, True, True], 2), ([True, False, True], 1), ([False, False, True], 0)],
)
def test_backward_op(mask, times):
    (case,) = named("groups")
    x, w, _ = case.tensors()
    with FlopCounterMode(display=False) as counter:
        torch.ops.convx.conv2d_backward(case.grad_output(), x, w, *case.geometry.values(), mask)
    assert counter.get_total_flops() == times * exact(case)


def test_four_sided_padding():
    (case,) = named("four_sided_padding")
    assert count(conv2d_ext.conv2d, case, True) == 3 * exact(case)
