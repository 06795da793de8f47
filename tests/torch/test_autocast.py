"""Autocast: the dtypes that F.conv2d gives, for the function, the op, and compiled code."""

from __future__ import annotations

import functools
import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

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


@pytest.fixture(params=[torch.nn.Parameter, torch.Tensor.requires_grad_], ids=["layer", "leaves"])
def parameters(request):
    """Makes leaves: the parameters of a layer, whose casts are not recorded, or other tensors."""

    def make(device="cpu"):
        x, w, b = operands(device=device)
        return x.requires_grad_(), request.param(w), request.param(b)

    return make


def test_parameters_are_cast_once_per_region(device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        first = cast_of(conv2d_ext.conv2d(x, w, b))
        with torch.autocast(device, dtype=torch.bfloat16):
            assert cast_of(conv2d_ext.conv2d(x, w, b)) is first
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is first
    with torch.autocast(device, dtype=torch.bfloat16):
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is not first


def test_casts_are_dropped_when_the_region_ends(device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = weakref.ref(cast_of(conv2d_ext.conv2d(x, w, b)))
        assert cast() is not None
    assert cast() is None


def test_a_parameter_that_changes_within_a_region_is_cast_again(device, parameters):
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
def test_a_cast_without_gradients_is_not_used_where_they_are_asked_for(first, device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with first():
            conv2d_ext.conv2d(x, w, b)
        y = conv2d_ext.conv2d(x, w, b)
    y.float().sum().backward()
    assert w.grad is not None


def test_no_cast_is_kept_where_the_cache_is_off(device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        first = cast_of(conv2d_ext.conv2d(x, w, b))
        assert cast_of(conv2d_ext.conv2d(x, w, b)) is not first


def test_only_leaves_that_require_gradients_are_kept(device, parameters):
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


def test_a_kept_cast_is_as_good_under_transforms(device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        conv2d_ext.conv2d(x, w, b)
        grad = torch.func.grad(lambda w: conv2d_ext.conv2d(x, w, b).float().sum())(w)
        want = torch.autograd.grad(conv2d_ext.conv2d(x, w, b).float().sum(), w)[0]
    torch.testing.assert_close(grad, want)


def gradients(conv, tensors, low):
    """First and second gradients of one call under autocast."""
    x, w, b = tensors
    with torch.autocast(x.device.type, dtype=low):
        y = conv(x, w, b, padding=1)
    first = torch.autograd.grad(y.float().square().mean(), tensors, create_graph=True)
    total = sum(gradient.float().square().mean() for gradient in first)
    return [*first, *torch.autograd.grad(total, tensors)]


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("x_dtype", [None, torch.float32], ids=["low", "float32"])
def test_gradients_of_gradients(low, x_dtype, device, parameters):
    x, w, b = parameters(device)
    x = x.detach().to(x_dtype or low).requires_grad_()
    got, want = gradients(conv2d_ext.conv2d, (x, w, b), low), gradients(F.conv2d, (x, w, b), low)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        scale = theirs.float().abs().max()
        torch.testing.assert_close(
            mine.float() / scale, theirs.float() / scale, rtol=0.03, atol=0.03
        )


def test_gradients_of_gradients_use_the_cast_of_the_call(device, parameters):
    """The parameter changes in place between the passes, which F.conv2d allows under autocast."""
    x, w, b = parameters(device)
    kept = w.detach().clone()
    results = []
    for conv in (conv2d_ext.conv2d, F.conv2d):
        with torch.no_grad():
            w.copy_(kept)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = conv(x, w, b)
        with torch.no_grad():
            w.mul_(2)
        (first,) = torch.autograd.grad(y.float().square().sum(), [x], create_graph=True)
        (second,) = torch.autograd.grad(first.float().square().sum(), [w])
        results.append((first.detach(), second))
    for mine, theirs in zip(*results, strict=True):
        scale = theirs.float().abs().max()
        torch.testing.assert_close(
            mine.float() / scale, theirs.float() / scale, rtol=0.03, atol=0.03
        )


def test_only_the_gradients_that_are_asked_for(device, parameters):
    tensors = parameters(device)
    for count in range(1, 4):
        for some in itertools.combinations(tensors, count):
            pair = []
            for conv in (conv2d_ext.conv2d, F.conv2d):
                with torch.autocast(device, dtype=torch.bfloat16):
                    y = conv(*tensors)
                pair.append(torch.autograd.grad(y.float().sum(), some))
            torch.testing.assert_close(*pair, rtol=0.02, atol=0.1)


def test_frozen_inputs_and_biases(device, parameters):
    for frozen in ((0,), (2,), (0, 2), (1,), (0, 1)):
        tensors = parameters(device)
        for i in frozen:
            tensors[i].requires_grad_(False)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = conv2d_ext.conv2d(*tensors)
        y.float().sum().backward()
        for i, tensor in enumerate(tensors):
            assert (tensor.grad is None) == (i in frozen)
            assert tensor.grad is None or tensor.grad.dtype == torch.float32


def test_a_weight_that_two_calls_share(device, parameters):
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        both = conv2d_ext.conv2d(x, w, b).float().sum() + conv2d_ext.conv2d(2 * x, w).float().sum()
    got = torch.autograd.grad(both, w)[0]
    separate = []
    for factor in (1, 2):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = conv2d_ext.conv2d(factor * x, w)
        separate.append(torch.autograd.grad(y.float().sum(), w)[0])
    torch.testing.assert_close(got, sum(separate), rtol=0.02, atol=0.1)


def test_many_gradients_at_once(device, parameters):
    """vmap over the backward pass."""
    x, w, b = parameters(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = conv2d_ext.conv2d(x, w, b)
    g = torch.stack([torch.ones_like(y), torch.full_like(y, 2)])
    got = torch.autograd.grad(y, (x, w, b), g, is_grads_batched=True, retain_graph=True)
    want = [torch.autograd.grad(y, (x, w, b), one, retain_graph=True) for one in g]
    for mine, *theirs in zip(got, *want, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, torch.stack(theirs), rtol=0.02, atol=0.1)


def test_forward_mode(device, parameters):
    x, w, b = parameters(device)
    tangents = []
    for conv in (conv2d_ext.conv2d, F.conv2d):
        with forward_ad.dual_level(), torch.autocast(device, dtype=torch.bfloat16):
            y = conv(forward_ad.make_dual(x.detach(), torch.ones_like(x)), w, b)
            tangents.append(forward_ad.unpack_dual(y).tangent.detach().float())
    torch.testing.assert_close(*tangents, rtol=0.02, atol=0.1)


def test_dispatch_modes_see_the_casts(parameters):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    x, w, b = parameters()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        conv2d_ext.conv2d(x, w, b)
        names: list[str] = []
        with Names():
            y = conv2d_ext.conv2d(x, w, b)
    assert names.count("aten::_to_copy") == 3
    y.float().sum().backward()
    assert w.grad.dtype == torch.float32


def test_hooks_of_a_parameter_see_float32(device, parameters):
    x, w, b = parameters(device)
    seen = []
    w.register_hook(lambda gradient: seen.append(gradient.dtype))
    with torch.autocast(device, dtype=torch.bfloat16):
        y = conv2d_ext.conv2d(x, w, b)
    y.float().sum().backward()
    assert seen == [torch.float32]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant, device, parameters):
    x, w, b = parameters(device)
    got = []
    for run in (
        conv2d_ext.conv2d,
        functools.partial(checkpoint, conv2d_ext.conv2d, use_reentrant=reentrant),
    ):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = run(x, w, b)
        y.float().square().sum().backward()
        got.append([t.grad for t in (x, w, b)])
        x.grad = w.grad = b.grad = None
    torch.testing.assert_close(*got)
