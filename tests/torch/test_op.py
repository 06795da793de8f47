"""The operators as PyTorch sees them: schemas, opcheck, memory formats, masks."""

from __future__ import annotations

import itertools

import pytest
import reference
import torch
import torch.nn.functional as F
from cases import SAMPLER, Case, draw, named
from layouts import COMMON, LAYOUTS, Layout
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import conv2d_ext

OPS = torch.ops.convx
OPCHECK_CASES = named("four_sided_padding_strided", "empty_batch", "single_channel_and_filter")


def public_arguments(case: Case) -> tuple:
    return (list(case.stride), list(case.padding), list(case.dilation), case.groups)


@pytest.mark.parametrize(
    ("op", "schema"),
    [
        (
            "conv2d",
            "convx::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
            "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, *, "
            'str precision="ieee", str algorithm="auto") -> Tensor',
        ),
        (
            "conv2d_backward",
            "convx::conv2d_backward(Tensor grad_output, Tensor input, Tensor weight, "
            "SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, SymInt groups, "
            'bool[3] output_mask, *, str precision="ieee", str algorithm="auto") '
            "-> (Tensor, Tensor, Tensor)",
        ),
    ],
)
def test_schema(op, schema):
    assert getattr(OPS, op).default._schema == torch._C.parse_schema(schema)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "requires_grad"])
@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("case", OPCHECK_CASES, ids=str)
def test_opcheck_public(case, layout, requires_grad, device):
    x, w, b = case.tensors(torch.float32, device)
    x, w = layout.x(x).requires_grad_(requires_grad), layout.w(w).requires_grad_(requires_grad)
    if b is not None:
        b.requires_grad_(requires_grad)
    y = layout.y(case.grad_output(torch.float32, device)).requires_grad_(requires_grad)
    opcheck(OPS.conv2d.default, (x, w, b, *public_arguments(case)))
    for mask in ([True, True, True], [False, True, False]):
        opcheck(OPS.conv2d_backward.default, (y, x, w, *public_arguments(case), mask))


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("case", OPCHECK_CASES, ids=str)
def test_opcheck_private(case, layout, device):
    x, w, b = case.tensors(torch.float32, device)
    x, w, y = layout.x(x), layout.w(w), layout.y(case.grad_output(torch.float32, device))
    rest = (*case.scalars, "ieee", "auto")
    into = layout.result_channels_last
    opcheck(OPS._conv2d.default, (x, w, b, *rest))
    opcheck(OPS._conv2d_fused.default, (x, w, b, y, "relu", 0.01, *rest))
    opcheck(OPS._conv2d_input_grad.default, (y, w, *case.x[2:], into, *rest))
    opcheck(OPS._conv2d_weight_grad.default, (y, x, *case.w[2:], into, *rest))
    opcheck(OPS._conv2d_bias_grad.default, (y,))
    for mask in ((True, True, True), (False, True, False)):
        opcheck(OPS._conv2d_gradients.default, (y, x, w, *mask, *rest))


def test_opcheck_covers_every_op():
    """An op that is added later must be added above too, or to test_fused.py or
    test_transposed.py."""
    names = {
        name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if "convx::" in name
    }
    checked = {"conv2d", "conv2d_act", "conv2d_backward", "conv_transpose2d"} | {
        "_conv2d",
        "_conv2d_fused",
        "_conv2d_input_grad",
        "_conv2d_weight_grad",
        "_conv2d_bias_grad",
        "_conv2d_gradients",
    }
    no_tensors = {"_torch_allows_tf32", "_set_cuda_workspace_limit", "_measure"}
    for name in ("_autotune", "_engines", "_explain", "_prefer", "_record"):
        no_tensors |= {f"{name}_cpu", f"{name}_cuda"}
    overloads = {"conv2d.int", "conv2d_act.int", "conv_transpose2d.int"}
    assert names - no_tensors == checked | overloads


@pytest.mark.parametrize("case", SAMPLER, ids=str)
def test_op_and_function_agree_with_the_reference(case, device):
    x, w, b = case.tensors(torch.float32, device)
    for conv in (OPS.conv2d, lambda *a, **k: conv2d_ext.conv2d(*a, **k, precision="ieee")):
        reference.run_and_check(conv, case, x, w, b)


def test_spellings_of_the_arguments(device):
    x, w, b = draw((2, 3, 8, 9)).to(device), draw((4, 3, 3, 3)).to(device), draw((4,)).to(device)
    want = OPS.conv2d(x, w, b, (2, 2), (1, 1), (2, 2), 1)
    assert torch.equal(OPS.conv2d(x, w, b, 2, 1, 2), want)
    assert torch.equal(OPS.conv2d(x, w, b, stride=2, padding=1, dilation=2), want)
    assert torch.equal(OPS.conv2d(x, w, b, [2], [1], [2]), want)
    assert torch.equal(OPS.conv2d(x, w, b, 2, (1, 1, 1, 1), 2), want)
    assert torch.equal(OPS.conv2d.int(x, w, b, 2, 1, 2), want)
    assert torch.equal(OPS.conv2d(x, w), OPS.conv2d(x, w, None, (1, 1), (0, 0), (1, 1), 1))
    same = {"precision": "ieee"}
    assert torch.equal(conv2d_ext.conv2d(x, w, b, 2, 1, 2, **same), want)
    assert torch.equal(conv2d_ext.conv2d(x, w, b, (2,), [1], (2, 2), **same), want)
    assert torch.equal(conv2d_ext.conv2d(x, w, b, torch.Size([2, 2]), 1, 2, **same), want)


def test_int_overload_is_differentiable():
    x, w = draw((1, 2, 5, 5), torch.float64), draw((3, 2, 3, 3), torch.float64)
    x, w = x.requires_grad_(), w.requires_grad_()
    got = torch.autograd.grad(OPS.conv2d(x, w, padding=1).sum(), (x, w))
    want = torch.autograd.grad(F.conv2d(x, w, padding=1).sum(), (x, w))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (4, 4), (3, 6)])
@pytest.mark.parametrize("dilation", [1, (2, 3)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_string_padding(kernel, dilation, padding, device):
    x, w = draw((2, 3, 14, 19), torch.float64), draw((4, 3, *kernel), torch.float64)
    got = conv2d_ext.conv2d(x.to(device), w.to(device), padding=padding, dilation=dilation)
    torch.testing.assert_close(got.cpu(), F.conv2d(x, w, padding=padding, dilation=dilation))


def test_unbatched(device):
    x, w, b = draw((3, 8, 9), torch.float64), draw((4, 3, 3, 3), torch.float64), draw((4,))
    got = conv2d_ext.conv2d(x.to(device), w.to(device), b.double().to(device), stride=2)
    torch.testing.assert_close(got.cpu(), F.conv2d(x, w, b.double(), stride=2))


@pytest.mark.parametrize("make", [lambda b: b.repeat(2)[::2], lambda b: b[:1].expand(b.shape)])
def test_bias_of_any_stride(make, device):
    (case,) = named("groups")
    x, w, b = case.tensors(torch.float32, device)
    b = make(b)
    assert b.stride() != (1,)
    reference.check_forward(OPS.conv2d(x, w, b, **case.geometry), case, x, w, b)


# Sizes whose strides say little: one channel, one pixel, one filter, no image.
AMBIGUOUS = [
    Case("plain", (2, 4, 5, 6), (3, 4, 3, 3)),
    Case("one_channel", (2, 1, 5, 6), (3, 1, 3, 3)),
    Case("one_filter", (2, 4, 5, 6), (1, 4, 3, 3)),
    Case("one_of_each", (2, 1, 5, 6), (1, 1, 3, 3)),
    Case("one_by_one", (2, 4, 5, 6), (3, 4, 1, 1)),
    Case("one_pixel_in", (2, 4, 1, 1), (3, 4, 1, 1)),
    Case("one_pixel_out", (2, 4, 3, 3), (3, 4, 3, 3)),
    Case("one_row", (2, 4, 1, 6), (3, 4, 1, 3)),
    Case("one_image", (1, 4, 5, 6), (3, 4, 3, 3)),
    Case("single_everything", (1, 1, 1, 1), (1, 1, 1, 1)),
    Case("no_image", (0, 4, 5, 6), (3, 4, 3, 3)),
    Case("no_image_one_channel", (0, 1, 5, 6), (3, 1, 1, 1)),
    Case("depthwise", (2, 4, 5, 6), (8, 1, 3, 3), groups=4),
]


@pytest.mark.parametrize("w_layout", COMMON, ids=lambda layout: f"w_{layout}")
@pytest.mark.parametrize("x_layout", COMMON, ids=lambda layout: f"x_{layout}")
@pytest.mark.parametrize("case", AMBIGUOUS, ids=str)
def test_memory_format_is_pytorchs(case, x_layout, w_layout):
    """oneDNN's float32 convolution follows the rule: channels_last if input or weight is."""
    x, w, b = case.tensors()
    x, w = x_layout.x(x), w_layout.w(w)
    want = F.conv2d(x, w, b, groups=case.groups)
    for conv in (OPS.conv2d, conv2d_ext.conv2d):
        assert conv(x, w, b, groups=case.groups).stride() == want.stride()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", AMBIGUOUS, ids=str)
def test_fake_strides_are_the_real_ones(case, layout: Layout, device):
    x, w, b = case.tensors(torch.float32, device)
    x, w, y = layout.x(x), layout.w(w), layout.y(case.grad_output(torch.float32, device))
    rest = (*public_arguments(case), [True, True, True])
    real = [OPS.conv2d(x, w, b, *public_arguments(case)), *OPS.conv2d_backward(y, x, w, *rest)]
    with FakeTensorMode() as mode:
        x, w, b, y = (mode.from_tensor(t) for t in (x, w, b, y))
        fake = [OPS.conv2d(x, w, b, *public_arguments(case)), *OPS.conv2d_backward(y, x, w, *rest)]
    for mine, theirs in zip(fake, real, strict=True):
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride())
        assert (mine.dtype, mine.device) == (theirs.dtype, theirs.device)


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("case", named("groups", "four_sided_padding_strided"), ids=str)
def test_backward_computes_what_the_mask_asks_for(case, mask, device):
    x, w, _ = case.tensors(torch.float32, device)
    y = case.grad_output(torch.float32, device)
    got = OPS.conv2d_backward(y, x, w, *public_arguments(case), list(mask))
    assert [grad is not None for grad in got] == list(mask)
    reference.check_gradients(got, case, x, w, y)


@pytest.mark.parametrize("conv", [OPS.conv2d, conv2d_ext.conv2d], ids=["op", "function"])
def test_meta_tensors(conv):
    x, w, b = draw((2, 3, 8, 9)).to("meta"), draw((4, 3, 3, 3)).to("meta"), draw((4,)).to("meta")
    y = conv(x, w, b, stride=2, padding=1)
    assert (y.shape, y.device.type, y.dtype) == ((2, 4, 4, 5), "meta", torch.float32)


def test_tensor_subclasses_see_the_function():
    class Recording(torch.Tensor):
        called: list[object] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.called.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, w = draw((1, 2, 4, 4)).as_subclass(Recording), draw((3, 2, 3, 3))
    y = conv2d_ext.conv2d(x, w)
    assert conv2d_ext.conv2d in Recording.called
    assert isinstance(y, Recording)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "torch"])
def test_cpu_always_computes_in_full_precision(precision):
    (case,) = named("long_reduction")
    x, w, b = case.tensors()
    y = OPS.conv2d(x, w, b, **case.geometry, precision=precision)
    reference.check_forward(y, case, x, w, b)
