"""Autocast: the dtypes that F.conv2d gives, for the function, the op, and compiled code."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from cases import draw

import conv2d_ext

CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}
LOW = [torch.bfloat16, torch.float16]
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def operands(x=torch.float32, w=torch.float32, b=torch.float32, device="cpu"):
    sizes = ((2, 3, 6, 7), (4, 3, 3, 3), (4,))
    return [draw(size, dtype, device) for size, dtype in zip(sizes, (x, w, b), strict=True)]


def outcome(conv, *arguments):
    """The result's dtype, or the type of the exception."""
    try:
        return conv(*arguments, padding=1).dtype
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_dtype_rules_are_pytorchs(conv, low, device):
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    with torch.autocast(device, dtype=low):
        for mix in itertools.product(dtypes, repeat=3):
            arguments = operands(*mix, device=device)
            assert outcome(conv, *arguments) == outcome(F.conv2d, *arguments), mix
            assert outcome(conv, *arguments[:2]) == outcome(F.conv2d, *arguments[:2]), mix


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_values_are_those_of_cast_operands(conv, low, device):
    x, w, b = operands(device=device)
    with torch.autocast(device, dtype=low):
        got = conv(x, w, b, padding=1)
    assert got.dtype == low
    assert torch.equal(got, conv(x.to(low), w.to(low), b.to(low), padding=1))


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_gradients_have_the_parameters_dtype(conv, device):
    x, w, b = (t.requires_grad_() for t in operands(device=device))
    with torch.autocast(device, dtype=torch.bfloat16):
        y = conv(x, w, b, padding=1)
    y.float().square().sum().backward()
    want = [t.detach().bfloat16().requires_grad_() for t in (x, w, b)]
    conv(*want, padding=1).float().square().sum().backward()
    for mine, theirs in zip((x, w, b), want, strict=True):
        assert mine.grad.dtype == torch.float32
        assert torch.equal(mine.grad, theirs.grad.float())


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_disabled_inside(conv, device):
    x, w, b = operands(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with torch.autocast(device, enabled=False):
            assert conv(x, w, b).dtype == torch.float32
        assert conv(x, w, b).dtype == torch.bfloat16
    assert conv(x, w, b).dtype == torch.float32


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_autocast_of_another_device_does_nothing(conv):
    with torch.autocast("xpu", dtype=torch.bfloat16):
        assert conv(*operands()).dtype == torch.float32


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_float64_is_exempt(conv, device):
    x, w, b = operands(torch.float64, torch.float64, torch.float64, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert conv(x, w, b).dtype == torch.float64


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_compiled(conv, low, device):
    x, w, b = (t.requires_grad_() for t in operands(device=device))

    def run(x, w, b):
        return conv(x, w, b, padding=1)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, dtype=low):
        got, want = compiled(x, w, b), run(x, w, b)
    assert got.dtype == want.dtype == low
    assert torch.equal(got, want)
    grads = [torch.autograd.grad(y.float().sum(), (x, w, b)) for y in (got, want)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_autocast_inside_a_compiled_function(conv):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x, w, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return conv(x, w, b)

    assert run(*operands()).dtype == torch.bfloat16


def cast_of(y):
    """The weight that a call has read, as its graph keeps it."""
    return y.grad_fn.saved_tensors[1]


def parameters(device="cpu"):
    x, w, b = operands(device=device)
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_()


def test_parameters_are_cast_once_per_region(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        first = cast_of(conv2d_ext.conv2d(x, w, b))
        with torch.autocast(device, dtype=torch.bfloat16):
            assert cast_of(conv2d_ext.conv2d(x, w, b)) is first
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is first
    with torch.autocast(device, dtype=torch.bfloat16):
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is not first


def test_casts_are_dropped_when_the_region_ends(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = weakref.ref(cast_of(conv2d_ext.conv2d(x, w, b)))
        assert cast() is not None
    assert cast() is None


def test_a_parameter_that_changes_within_a_region_is_cast_again(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        conv2d_ext.conv2d(x, w, b)
        with torch.no_grad():
            w.mul_(2)
        got = conv2d_ext.conv2d(x, w, b)
        with torch.autocast(device, dtype=torch.float16):
            other = conv2d_ext.conv2d(x, w, b)
    assert torch.equal(got, conv2d_ext.conv2d(*(t.bfloat16() for t in (x, w, b))))
    assert torch.equal(other, conv2d_ext.conv2d(*(t.half() for t in (x, w, b))))


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_a_cast_without_gradients_is_not_used_where_they_are_asked_for(first, device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with first():
            conv2d_ext.conv2d(x, w, b)
        y = conv2d_ext.conv2d(x, w, b)
    y.float().sum().backward()
    assert w.grad is not None


def test_no_cast_is_kept_where_the_cache_is_off(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        first = cast_of(conv2d_ext.conv2d(x, w, b))
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is not first


def test_only_leaves_that_require_gradients_are_kept(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        doubled = w * 2
        first = cast_of(conv2d_ext.conv2d(x, doubled, b))
        assert cast_of(conv2d_ext.conv2d(x, doubled, b)) is not first
        frozen = w.detach()
        first = cast_of(conv2d_ext.conv2d(x, frozen, b))
        assert cast_of(conv2d_ext.conv2d(x, frozen, b)) is not first
    with torch.inference_mode():
        made_here = torch.nn.Parameter(w.detach().clone())
        with torch.autocast(device, dtype=torch.bfloat16):
            assert conv2d_ext.conv2d(x, made_here).dtype == torch.bfloat16


def test_a_kept_cast_is_as_good_under_transforms(device):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        conv2d_ext.conv2d(x, w, b)
        grad = torch.func.grad(lambda w: conv2d_ext.conv2d(x, w, b).float().sum())(w)
        want = torch.autograd.grad(conv2d_ext.conv2d(x, w, b).float().sum(), w)[0]
    torch.testing.assert_close(grad, want)
