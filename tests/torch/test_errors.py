"""Bad input: an exception of F.conv2d's type, before any work, that names argument and value."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import draw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import conv2d_ext

OPS = torch.ops.convx
CONVS = {"function": conv2d_ext.conv2d, "op": OPS.conv2d}


def x(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return draw(size or (2, 4, 6, 7), dtype)


def w(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return draw(size or (6, 4, 3, 3), dtype)


def huge(*size: int) -> torch.Tensor:
    """One number in memory, any size."""
    return torch.zeros(()).expand(size)


@dataclass(frozen=True)
class Mistake:
    name: str
    tensors: Callable[[], tuple[torch.Tensor, ...]]
    says: tuple[str, ...]  # parts of the message
    arguments: dict[str, Any] = field(default_factory=dict)
    like_torch: bool = True  # F.conv2d fails too, without taking all memory
    fake: bool = True  # fake tensors notice as well

    def __str__(self) -> str:
        return self.name


def plain() -> tuple[torch.Tensor, torch.Tensor]:
    return x(), w()


MISTAKES = [
    Mistake("input_1d", lambda: (x(4), w()), ("input", "[4]")),
    Mistake("input_2d", lambda: (x(4, 4), w()), ("input", "[4, 4]")),
    Mistake("input_5d", lambda: (x(1, 1, 4, 6, 6), w()), ("input", "[1, 1, 4, 6, 6]")),
    Mistake("weight_2d", lambda: (x(), w(6, 4)), ("weight", "[6, 4]")),
    Mistake("weight_3d", lambda: (x(), w(6, 4, 3)), ("weight", "[6, 4, 3]")),
    Mistake("weight_5d", lambda: (x(), w(6, 4, 3, 3, 1)), ("weight", "[6, 4, 3, 3, 1]")),
    Mistake("bias_2d", lambda: (x(), w(), w(6, 1)), ("bias", "[6, 1]")),
    Mistake("bias_scalar", lambda: (x(), w(), torch.zeros(())), ("bias", "[]")),
    Mistake("bias_too_short", lambda: (x(), w(), w(5)), ("bias", "[5]", "6")),
    Mistake("bias_of_one", lambda: (x(), w(), w(1)), ("bias", "[1]", "6")),
    Mistake("channels", lambda: (x(2, 5, 6, 7), w()), ("input", "weight", "4", "5")),
    Mistake("groups_of_channels", plain, ("groups=3", "4"), {"groups": 3}),
    Mistake(
        "groups_of_filters",
        lambda: (x(2, 8, 6, 7), w(6, 2, 3, 3)),
        ("groups=4", "weight", "6"),
        {"groups": 4},
    ),
    Mistake("groups_zero", plain, ("groups=0",), {"groups": 0}),
    Mistake("groups_negative", plain, ("groups=-1",), {"groups": -1}),
    Mistake("stride_zero", plain, ("stride", "0"), {"stride": 0}),
    Mistake("stride_zero_in_one_axis", plain, ("stride", "(1, 0)"), {"stride": (1, 0)}),
    Mistake("stride_negative", plain, ("stride", "(-2, 1)"), {"stride": (-2, 1)}),
    Mistake("dilation_zero", plain, ("dilation", "0"), {"dilation": 0}),
    Mistake("dilation_negative", plain, ("dilation", "(1, -3)"), {"dilation": (1, -3)}),
    Mistake("padding_negative", plain, ("padding", "-1"), {"padding": -1}),
    Mistake("padding_negative_right", plain, ("padding", "-2"), {"padding": (1, 1, 1, -2)}),
    Mistake("stride_of_three", plain, ("stride", "[1, 1, 1]"), {"stride": (1, 1, 1)}),
    Mistake("stride_of_none", plain, ("stride", "[]"), {"stride": ()}),
    Mistake("dilation_of_three", plain, ("dilation", "[1, 1, 1]"), {"dilation": (1, 1, 1)}),
    Mistake("padding_of_three", plain, ("padding", "[1, 1, 1]"), {"padding": (1, 1, 1)}),
    Mistake("padding_of_five", plain, ("padding", "[1, 1, 1, 1, 1]"), {"padding": (1,) * 5}),
    Mistake("padding_of_none", plain, ("padding", "[]"), {"padding": ()}),
    Mistake("kernel_too_high", lambda: (x(), w(6, 4, 7, 3)), ("kernel", "6", "7")),
    Mistake(
        "kernel_too_wide", lambda: (x(), w(6, 4, 3, 10)), ("kernel", "9", "10"), {"padding": 1}
    ),
    Mistake("kernel_too_dilated", plain, ("kernel", "6", "9"), {"dilation": 4}),
    Mistake("no_filters", lambda: (x(), w(0, 4, 3, 3)), ("weight", "0")),
    Mistake("no_taps", lambda: (x(), w(6, 4, 0, 3)), ("weight", "0 x 3")),
    Mistake("no_rows", lambda: (x(2, 4, 0, 7), w()), ("input", "0")),
    Mistake("no_filters_no_channels", lambda: (x(2, 0, 6, 7), w(0, 0, 3, 3)), ("weight", "0")),
    Mistake("no_rows_but_padding", lambda: (x(2, 4, 0, 7), w()), ("input", "0"), {"padding": 2}),
    Mistake("weight_dtype", lambda: (x(), w().double()), ("weight", "dtype", "Double|float64")),
    Mistake("bias_dtype", lambda: (x(), w(), w(6).half()), ("bias", "dtype", "Half|float16")),
    Mistake("half_and_bfloat16", lambda: (x().half(), w().bfloat16()), ("weight", "dtype")),
    Mistake("int", lambda: (x().int(), w().int()), ("input.dtype", "Int|int32"), {}, False),
    Mistake("long", lambda: (x().long(), w().long()), ("input.dtype", "Long|int64"), {}, False),
    Mistake("bool", lambda: (x() > 0, w() > 0), ("input.dtype", "Bool|bool"), {}, False),
    Mistake("complex", lambda: (x().cfloat(), w().cfloat()), ("input.dtype", "omplex"), {}, False),
    Mistake(
        "float8",
        lambda: (x().to(torch.float8_e4m3fn), w().to(torch.float8_e4m3fn)),
        ("input.dtype", "loat8"),
        {},
        False,
    ),
    Mistake("weight_on_meta", lambda: (x(), w().to("meta")), ("weight", "meta"), {}, False, False),
    Mistake("input_on_meta", lambda: (x().to("meta"), w()), ("input", "meta"), {}, False, False),
    Mistake(
        "bias_on_meta", lambda: (x(), w(), w(6).to("meta")), ("bias", "meta"), {}, False, False
    ),
    Mistake("precision", plain, ("precision", "'fp16'"), {"precision": "fp16"}, False),
    Mistake(
        "algorithm", plain, ("algorithm", "'magic'", "'auto'"), {"algorithm": "magic"}, False, False
    ),
    Mistake("huge_padding", plain, ("output|padding", "too large"), {"padding": 2**40}, fake=False),
    Mistake("huge_padding_sum", plain, ("padding", str(2**62)), {"padding": 2**62}, fake=False),
    Mistake(
        "huge_dilation", plain, ("kernel|dilation", f"{2**41 + 1}|{2**40}"), {"dilation": 2**40}
    ),
    Mistake("huge_dilation_product", plain, ("dilation", str(2**62)), {"dilation": 2**62}),
    Mistake(
        "huge_output",
        lambda: (huge(2**20, 4, 2**20, 2**20), w()),
        ("too large", str(2**20 - 2)),
        {},
        False,
        False,
    ),
    Mistake(
        "huge_weight",
        lambda: (x(), huge(2**57, 4, 3, 3)),
        ("too large", str(2**57)),
        {},
        False,
        False,
    ),
]
FUNCTION_MISTAKES = [
    Mistake("unknown_padding", plain, ("padding", "'full'"), {"padding": "full"}),
    Mistake(
        "same_with_stride", plain, ("padding='same'", "stride"), {"padding": "same", "stride": 2}
    ),
    Mistake("unbatched_channels", lambda: (x(5, 6, 7), w()), ("input", "weight", "4", "5")),
]


def check_message(error: BaseException, mistake: Mistake) -> None:
    message = str(error)
    assert "convx" in message
    for part in mistake.says:
        assert any(choice in message for choice in part.split("|")), f"no {part!r} in: {message}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_mistake(conv, mistake):
    with pytest.raises(RuntimeError) as caught:
        conv(*mistake.tensors(), **mistake.arguments)
    check_message(caught.value, mistake)
    if mistake.like_torch:
        with pytest.raises(type(caught.value)):
            F.conv2d(*mistake.tensors(), **mistake.arguments)


@pytest.mark.parametrize("mistake", FUNCTION_MISTAKES, ids=str)
def test_mistake_of_the_function(mistake):
    with pytest.raises(RuntimeError) as caught:
        conv2d_ext.conv2d(*mistake.tensors(), **mistake.arguments)
    check_message(caught.value, mistake)
    with pytest.raises(type(caught.value)):
        F.conv2d(*mistake.tensors(), **mistake.arguments)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_mistake_with_gradients(conv, mistake):
    """Autograd's path makes the same checks."""
    tensors = mistake.tensors()
    tensors = [t.requires_grad_() if t.is_floating_point() else t for t in tensors]
    with pytest.raises(RuntimeError) as caught:
        conv(*tensors, **mistake.arguments)
    check_message(caught.value, mistake)


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.fake], ids=str)
def test_mistake_with_fake_tensors(mistake):
    with FakeTensorMode() as mode:
        tensors = [mode.from_tensor(t) for t in mistake.tensors()]
        with pytest.raises(RuntimeError) as caught:
            OPS.conv2d(*tensors, **mistake.arguments)
    check_message(caught.value, mistake)


@pytest.mark.parametrize("name", ["channels", "stride_zero", "kernel_too_high", "bias_too_short"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
@pytest.mark.usefixtures("fresh_dynamo")
def test_mistake_under_compile(conv, name):
    mistake = next(m for m in MISTAKES if m.name == name)
    compiled = torch.compile(conv, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError) as caught:
        compiled(*mistake.tensors(), **mistake.arguments)
    check_message(caught.value, mistake)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch cannot make fake CUDA tensors")
@pytest.mark.parametrize("operand", ["weight", "bias"])
def test_mixed_devices_with_fake_tensors(operand):
    with FakeTensorMode():
        tensors = {"input": torch.empty(2, 4, 6, 7), "weight": torch.empty(6, 4, 3, 3)}
        tensors["bias"] = torch.empty(6)
        tensors[operand] = tensors[operand].to("cuda")
        with pytest.raises(RuntimeError, match="cuda"):
            OPS.conv2d(**tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("operand", ["input", "weight", "bias"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_mixed_devices(conv, operand):
    tensors = {"input": x(), "weight": w(), "bias": w(6)}
    tensors[operand] = tensors[operand].cuda()
    with pytest.raises(RuntimeError, match=r"convx.*(cuda.*cpu|cpu.*cuda)"):
        conv(**tensors)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("input", None),
        ("input", [1.0]),
        ("weight", None),
        ("weight", 3),
        ("bias", 3),
        ("stride", 1.5),
        ("stride", (1.5, 1)),
        ("stride", None),
        ("stride", "2"),
        ("padding", 1.5),
        ("padding", None),
        ("dilation", 1.5),
        ("dilation", "ab"),
        ("groups", 1.5),
        ("groups", None),
    ],
    ids=str,
)
def test_wrong_python_types(argument, value):
    arguments = {"input": x(), "weight": w(), argument: value}
    with pytest.raises(TypeError):
        F.conv2d(**arguments)
    with pytest.raises(TypeError, match=argument):
        conv2d_ext.conv2d(**arguments)


LONG = {
    "a large tensor": torch.zeros(300, 300),
    "tensors": [torch.zeros(300, 300)] * 5,
    "a long list": list(range(200_000)),
    "a long tuple": tuple(range(200_000)),
    "a list of lists": [list(range(200_000))] * 3,
    "a long list of floats": [0.5] * 200_000,
    "a long word": "same" * 50_000,
    "a large array": np.zeros((300, 300)),
}
TAKES = ("bias", "stride", "padding", "dilation", "groups", "precision", "algorithm")


@pytest.mark.parametrize("value", LONG.values(), ids=LONG.keys())
@pytest.mark.parametrize("argument", TAKES)
def test_messages_are_short(argument, value):
    """No traceback prints a tensor, or a list of 200,000 numbers."""

    def explain():
        said = conv2d_ext.explain((2, 4, 6, 7), (6, 4, 3, 3), **{argument: value})
        raise ValueError(said.error)

    calls = [lambda: conv2d_ext.conv2d(x(), w(), **{argument: value})]
    if argument != "bias":
        calls.append(explain)
    if argument in ("precision", "algorithm"):
        calls.append(lambda: conv2d_ext.Conv2d(4, 6, 3, **{argument: value}))
    for call in calls:
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            call()
        printed = "".join(traceback.format_exception_only(caught.value))
        cause = caught.value.__cause__
        if cause is None and not caught.value.__suppress_context__:
            cause = caught.value.__context__
        printed += str(cause or "")
        assert len(printed) < 1000, printed[:2000]
        assert argument in printed


@pytest.mark.parametrize("argument", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("inference", [False, True])
def test_messages_of_the_operator_are_short(argument, inference):
    with torch.inference_mode(inference), pytest.raises(RuntimeError) as caught:
        OPS.conv2d(x(), w(), **{argument: list(range(200_000))})
    assert f"{argument}=[0, 1, 2, 3, 4, 5, 6, 7, ... (200000 values)]" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_tensors_of_other_layouts():
    with pytest.raises(
        NotImplementedError, match=r"no kernel for torch\.sparse_coo tensors on cpu"
    ):
        conv2d_ext.conv2d(x().to_sparse(), w())


def test_missing_and_unknown_arguments():
    for arguments in ({"input": x()}, {"input": x(), "weight": w(), "strides": 1}):
        with pytest.raises(TypeError):
            conv2d_ext.conv2d(**arguments)


GRAD_OUTPUT = (2, 6, 4, 5)  # of x() and w()
BACKWARD_MISTAKES = {
    "grad_output_size": ((2, 6, 4, 4), (2, 4, 6, 7), (6, 4, 3, 3), 1, "grad_output"),
    "grad_output_filters": ((2, 5, 4, 5), (2, 4, 6, 7), (6, 4, 3, 3), 1, "grad_output"),
    "grad_output_images": ((3, 6, 4, 5), (2, 4, 6, 7), (6, 4, 3, 3), 1, "grad_output|input"),
    "grad_output_rank": ((6, 4, 5), (2, 4, 6, 7), (6, 4, 3, 3), 1, "grad_output"),
    "input_rank": (GRAD_OUTPUT, (4, 6, 7), (6, 4, 3, 3), 1, "input"),
    "weight_rank": (GRAD_OUTPUT, (2, 4, 6, 7), (6, 4, 3), 1, "weight"),
    "channels": (GRAD_OUTPUT, (2, 5, 6, 7), (6, 4, 3, 3), 1, "input"),
    "groups": (GRAD_OUTPUT, (2, 4, 6, 7), (6, 4, 3, 3), 0, "groups=0"),
}


@pytest.mark.parametrize("mistake", BACKWARD_MISTAKES)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "requires_grad"])
@pytest.mark.parametrize("device_type", ["cpu", "meta"])
def test_mistake_in_backward(mistake, requires_grad, device_type):
    *sizes, groups, says = BACKWARD_MISTAKES[mistake]
    tensors = [draw(size, device=device_type).requires_grad_(requires_grad) for size in sizes]
    with pytest.raises(RuntimeError) as caught:
        OPS.conv2d_backward(*tensors, (1, 1), (0, 0), (1, 1), groups, (True, True, True))
    assert any(part in str(caught.value) for part in says.split("|")), str(caught.value)


USUAL = st.integers(1, 3)
EXTREME = st.sampled_from([-(2**63), -1, 0, 2**31, 2**40, 2**62, 2**63 - 1])
NUMBER = st.one_of(USUAL, USUAL, EXTREME)
PADDING = st.one_of(USUAL, USUAL, st.sampled_from([0, -1, 2**40, 2**62, 2**63 - 1]))


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    stride=st.tuples(NUMBER, NUMBER),
    dilation=st.tuples(NUMBER, NUMBER),
    padding=st.lists(PADDING, min_size=4, max_size=4),
    groups=st.one_of(st.just(1), st.just(1), st.just(1), NUMBER),
)
def test_extreme_numbers_never_crash(stride, dilation, padding, groups):
    """Each call either fails with a message, or returns the sizes of its fake kernel."""
    args = (None, stride, padding, dilation, groups)
    try:
        y = OPS.conv2d(x(), w(), *args)
    except RuntimeError as error:
        assert "convx" in str(error)  # noqa: PT017
    else:
        assert y.shape == OPS.conv2d(x().to("meta"), w().to("meta"), *args).shape
        OPS.conv2d_backward(y, x(), w(), *args[1:], (True, True, True))
