"""conv_transpose2d and conv1d: F.conv_transpose2d and F.conv1d in everything but the engine."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch import Tensor
from torch.library import opcheck

import conv2d_ext
from conv2d_ext import _transposed
from conv2d_ext._arguments import ConvParams

CONVS = {"function": conv2d_ext.conv_transpose2d, "op": torch.ops.convx.conv_transpose2d}
# (input, weight, keyword arguments)
CASES = {
    "plain": ((2, 4, 5, 6), (4, 3, 3, 2), {}),
    "upsampling": ((2, 6, 5, 7), (6, 4, 2, 2), dict(stride=2)),
    "decoder": ((2, 6, 5, 4), (6, 4, 4, 4), dict(stride=2, padding=1)),
    "output_padding": ((2, 6, 5, 4), (6, 4, 3, 3), dict(stride=2, padding=1, output_padding=1)),
    "odd": ((1, 3, 4, 3), (3, 5, 3, 2), dict(stride=(3, 2), padding=(1, 0), output_padding=(2, 1))),
    "groups": ((2, 6, 4, 5), (6, 2, 3, 3), dict(stride=2, padding=1, groups=3)),
    "depthwise": ((2, 6, 4, 5), (6, 1, 3, 3), dict(stride=2, padding=1, groups=6)),
    "dilated": ((2, 4, 4, 5), (4, 3, 3, 2), dict(dilation=(2, 3), padding=(2, 1))),
    # More rows and columns than the stride, of which some are cropped.
    "output_padding_by_dilation": (
        (2, 4, 4, 5),
        (4, 3, 3, 2),
        dict(dilation=(4, 3), output_padding=(3, 2), padding=(1, 0)),
    ),
    # All that the kernel reaches is cropped, and what the output padding adds is left.
    "output_padding_alone": (
        (2, 4, 7, 1),
        (4, 3, 2, 1),
        dict(dilation=(2, 4), output_padding=(1, 3), padding=(1, 1)),
    ),
    "stride_above_kernel": ((2, 4, 3, 3), (4, 3, 1, 2), dict(stride=3, output_padding=2)),
    "empty_batch": ((0, 4, 3, 3), (4, 3, 3, 3), dict(stride=2)),
}
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def operands(case: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Any]:
    x, w, numbers = CASES[case]
    bias = (w[1] * numbers.get("groups", 1),)
    return [draw(size, dtype, device, seed=i) for i, size in enumerate((x, w, bias))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS)
def test_values_gradients_and_memory_format(conv, case, has_bias, layout, device) -> None:
    x, w, b = operands(case)
    numbers = CASES[case][2]
    tensors = [x.contiguous(memory_format=layout), w, *([b] if has_bias else [])]
    want_of = [t.clone().requires_grad_() for t in tensors]
    got_of = [t.to(device, copy=True).requires_grad_() for t in tensors]
    want, got = F.conv_transpose2d(*want_of, **numbers), conv(*got_of, **numbers)
    torch.testing.assert_close(got.cpu(), want)
    if x.shape[0] != 0:
        assert got.stride() == want.stride()
    g = torch.randn_like(want)
    torch.testing.assert_close(
        [t.cpu() for t in torch.autograd.grad(got, got_of, g.to(device))],
        list(torch.autograd.grad(want, want_of, g)),
    )
    with torch.inference_mode():
        torch.testing.assert_close(conv(*got_of, **numbers).cpu(), want)


def test_random_arguments() -> None:
    """Whatever F.conv_transpose2d takes has the same result, and the rest is refused by both."""
    draw_int = random.Random(0).randint
    refused = 0
    for i in range(300):
        groups = draw_int(1, 3)
        k, c = groups * draw_int(1, 3), draw_int(1, 3)
        stride, dilation = (draw_int(1, 3), draw_int(1, 3)), (draw_int(1, 4), draw_int(1, 3))
        padding = draw_int(0, 3), draw_int(0, 3)
        more = draw_int(0, 3), draw_int(0, 2)
        x = draw((draw_int(1, 2), k, draw_int(1, 6), draw_int(1, 6)), torch.float64, seed=i)
        w = draw((k, c, draw_int(1, 4), draw_int(1, 4)), torch.float64, seed=i)
        arguments = (x, w, None, stride, padding, more, groups, dilation)
        try:
            want = F.conv_transpose2d(*arguments)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError, match=r"convx\.conv_transpose2d: "):
                conv2d_ext.conv_transpose2d(*arguments)
        else:
            torch.testing.assert_close(conv2d_ext.conv_transpose2d(*arguments), want)
    assert 0 < refused < 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["decoder", "groups", "output_padding"])
def test_dtypes(case, dtype, device) -> None:
    x, w, b = operands(case, dtype)
    want = F.conv_transpose2d(x.double(), w.double(), b.double(), **CASES[case][2])
    got = conv2d_ext.conv_transpose2d(*(t.to(device) for t in (x, w, b)), **CASES[case][2])
    assert got.dtype == dtype
    error = 2e-2 if dtype == torch.bfloat16 else 3e-3
    torch.testing.assert_close(got.cpu().double(), want, rtol=error, atol=error)


def test_unbatched(device) -> None:
    x, w, b = (t.to(device) for t in operands("decoder"))
    want = F.conv_transpose2d(x[0].cpu(), w.cpu(), b.cpu(), 2, 1)
    for conv in CONVS.values():
        torch.testing.assert_close(conv(x[0], w, b, 2, 1).cpu(), want)


def test_four_sides() -> None:
    x, w, b = operands("decoder")
    whole = F.conv_transpose2d(x, w, b, 2)
    got = conv2d_ext.conv_transpose2d(x, w, b, 2, (1, 2, 0, 3))
    torch.testing.assert_close(got, whole[:, :, 1:-2, : whole.shape[3] - 3])


@pytest.mark.parametrize(
    "case", ["odd", "groups", "output_padding_by_dilation", "output_padding_alone"]
)
def test_gradients_of_gradients(case) -> None:
    tensors = [t.requires_grad_() for t in operands(case)]

    def conv(*tensors: Tensor) -> Tensor:
        return conv2d_ext.conv_transpose2d(*tensors, **CASES[case][2])

    assert torch.autograd.gradcheck(conv, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(conv, tensors, fast_mode=True)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "case", ["groups", "output_padding_by_dilation", "output_padding_alone", "empty_batch"]
)
def test_opcheck(case, requires_grad) -> None:
    tensors = [t.requires_grad_(requires_grad) for t in operands(case)]
    numbers = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    numbers |= CASES[case][2]
    lists = [
        value if name == "groups" else list(value) if isinstance(value, tuple) else [value, value]
        for name, value in numbers.items()
    ]
    opcheck(torch.ops.convx.conv_transpose2d.default, (*tensors, *lists))


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS)
def test_compile(conv, backend) -> None:
    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return conv(x.sin(), w, b, [2, 2], [1, 1], [1, 1]).relu()

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=backend)
    for height in (5, 6, 9):
        tensors = operands("decoder")
        tensors[0] = draw((2, 6, height, 4), torch.float64)
        outcomes = []
        for f in (compiled, run):
            leaves = [t.clone().requires_grad_() for t in tensors]
            y = f(*leaves)
            outcomes.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
        torch.testing.assert_close(*outcomes)


def test_torch_func() -> None:
    x, w, _ = operands("decoder")

    def gradient(conv: Any) -> Tensor:
        def loss(w: Tensor, x: Tensor) -> Tensor:
            return conv(x[None], w, None, 2, 1).sin().sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)

    want = gradient(F.conv_transpose2d)
    for conv in CONVS.values():
        torch.testing.assert_close(gradient(conv), want)


def test_autocast() -> None:
    x, w, b = operands("decoder", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for conv in CONVS.values():
            assert conv(x, w, b, 2, 1).dtype == torch.bfloat16
        assert conv2d_ext.conv1d(draw((2, 4, 9)), draw((6, 4, 3))).dtype == torch.bfloat16


REFUSED = {
    "weight.size(0)=4 channels, but got input.size(1)=6": dict(weight=(4, 4, 4, 4)),
    "bias of size [3]": dict(bias=(3,)),
    "output_padding=(2, 2), stride=(2, 2)": dict(output_padding=2),
    "output_padding=(0, -1)": dict(output_padding=(0, -1)),
    "stride=(0, 0)": dict(stride=0),
    "stride=[1, 2, 3]": dict(stride=(1, 2, 3)),
    "padding=(top 30, bottom 30, left 30, right 30)": dict(padding=30),
    "groups=4": dict(groups=4),
    "dtype of input (float64), but got weight.dtype=float32": dict(dtype=torch.float32),
    "input of size [6, 5]": dict(input=(6, 5)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_messages(message) -> None:
    changed = {"stride": 2, "padding": 1} | REFUSED[message]
    x, w, b = operands("decoder")
    x = draw(changed.pop("input"), torch.float64) if "input" in changed else x
    w = draw(changed.pop("weight"), torch.float64) if "weight" in changed else w
    b = draw(changed.pop("bias"), torch.float64) if "bias" in changed else b
    w = w.to(changed.pop("dtype", torch.float64))
    with pytest.raises(RuntimeError) as raised:
        conv2d_ext.conv_transpose2d(x, w, b, **changed)
    assert str(raised.value).startswith("convx.conv_transpose2d: ")
    assert message in str(raised.value)


def test_the_quick_check_agrees_with_the_messages(monkeypatch) -> None:
    """Calls with up to two wrong numbers, and some with none."""
    is_valid = _transposed.is_valid
    monkeypatch.setattr(_transposed, "is_valid", lambda *call: False)
    rng = random.Random(3)
    found = {True: 0, False: 0}
    for _ in range(2000):
        x, w, b = [2, 4, 5, 3], [4, 3, 3, 2], [6]
        numbers = [2, 1, 1, 0, 0, 1, 1, 2, 2]  # stride, padding, dilation, groups
        more = [1, 0]
        for _ in range(rng.choice([0, 0, 1, 2])):
            numbers_of = rng.choice([x, w, b, numbers, more])
            numbers_of[rng.randrange(len(numbers_of))] = rng.choice([-1, 0, 1, 2, 7, 1 << 41])
        if min(*x, *w, *b) < 0 or max(*x, *w, *b) > 7:
            continue
        bias = rng.choice([None, torch.zeros(b), torch.zeros(b, dtype=torch.float64)])
        words = rng.choice(["ieee", "ieee", "ieee", "half"]), "auto"
        call = torch.zeros(x), torch.zeros(w), bias, more, ConvParams(*numbers, *words)
        try:
            _transposed.check_arguments(*call)
            passes = True
        except RuntimeError:
            passes = False
        assert is_valid(*call) == passes, call
        found[passes] += 1
    assert min(found.values()) > 200


@pytest.mark.parametrize("name", ["stride", "padding", "output_padding", "dilation", "groups"])
def test_types(name) -> None:
    x, w, b = operands("decoder")
    for conv in (conv2d_ext.conv_transpose2d, F.conv_transpose2d):
        with pytest.raises(TypeError, match=name if conv is not F.conv_transpose2d else ""):
            conv(x, w, b, **{name: "same"})


CONV1D_CASES = {
    "plain": ((2, 4, 17), (6, 4, 5), {}),
    "strided": ((2, 4, 17), (6, 4, 5), dict(stride=2, padding=2)),
    "same": ((2, 4, 17), (6, 4, 4), dict(padding="same", dilation=2)),
    "groups": ((2, 4, 17), (6, 2, 3), dict(groups=2, padding=1, stride=(3,))),
    "depthwise": ((2, 4, 17), (4, 1, 7), dict(groups=4, padding=3)),
    "pixel": ((2, 4, 17), (6, 4, 1), {}),
    "empty_batch": ((0, 4, 17), (6, 4, 3), {}),
}


@pytest.mark.parametrize("case", CONV1D_CASES)
def test_conv1d(case, device) -> None:
    x_size, w_size, numbers = CONV1D_CASES[case]
    sizes = (x_size, w_size, w_size[:1])
    tensors = [draw(size, torch.float64, seed=i) for i, size in enumerate(sizes)]
    want_of = [t.clone().requires_grad_() for t in tensors]
    got_of = [t.to(device, copy=True).requires_grad_() for t in tensors]
    want, got = F.conv1d(*want_of, **numbers), conv2d_ext.conv1d(*got_of, **numbers)
    torch.testing.assert_close(got.cpu(), want)
    g = torch.randn_like(want)
    torch.testing.assert_close(
        [t.cpu() for t in torch.autograd.grad(got, got_of, g.to(device))],
        list(torch.autograd.grad(want, want_of, g)),
    )
    if x_size[0] != 0:
        with torch.no_grad():
            x, *others = got_of
            torch.testing.assert_close(
                conv2d_ext.conv1d(x[0], *others, **numbers).cpu(), want[0].detach()
            )


def test_conv1d_is_contiguous_for_innermost_channels() -> None:
    """As PyTorch's: users call .view() on it."""
    x, w = draw((2, 17, 4)).mT, draw((6, 4, 3))
    assert conv2d_ext.conv1d(x, w).is_contiguous()
    torch.testing.assert_close(conv2d_ext.conv1d(x, w), F.conv1d(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("convx.conv1d: stride must have 1 value, but got stride=[1, 2]", dict(stride=(1, 2))),
        ("convx.conv1d: expected weight to have 3 dimensions", dict(weight=(6, 4, 1, 3))),
        ("convx.conv1d: expected input to have 3 dimensions", dict(input=(2, 4, 1, 17))),
        ("channels, but got input.size(1)=4", dict(weight=(6, 3, 3))),
    ],
)
def test_conv1d_messages(message, changed) -> None:
    x, w = draw(changed.pop("input", (2, 4, 17))), draw(changed.pop("weight", (6, 4, 3)))
    with pytest.raises(RuntimeError) as raised:
        conv2d_ext.conv1d(x, w, **changed)
    assert message in str(raised.value)
