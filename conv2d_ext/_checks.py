"""Checks of operands without values: fake tensors, and sizes that may be symbolic.

Real calls are checked in C++ (csrc/core/problem.cpp and csrc/torch/conv_call.cpp), which words its
messages the same way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ._arguments import ConvParams, output_hw
from ._precision import PRECISION_ARGUMENTS
from ._values import shown

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Larger strides, dilations and paddings could overflow sums of index terms in C++.
LARGEST_PARAMETER = 1 << 40


def check(condition: bool, message: Callable[[], str], operator: str = "conv2d") -> None:
    """RuntimeError with the message unless the condition, possibly symbolic, holds."""
    if condition is True:  # torch._check takes two microseconds to find that out
        return
    torch._check(condition, lambda: f"convx.{operator}: {message()}")


def check_tensors(operator: str = "conv2d", /, **tensors: Tensor | None) -> None:
    """Checks ranks, and that every tensor has the dtype and device of the first one."""
    first_name, first = next(iter(tensors.items()))
    assert first is not None
    for name, tensor in tensors.items():
        if tensor is not None:
            _check_tensor(operator, name, tensor, first_name, first)
    check(
        first.dtype in DTYPES,
        lambda: (
            f"{first_name}.dtype must be float32, float64, float16 or bfloat16, "
            f"but got {_name(first.dtype)}"
        ),
        operator,
    )


def _check_tensor(operator: str, name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    rank = 1 if name == "bias" else 4
    # The public operators have added the batch to a single image before this check.
    also = ", or 3 without a batch" if name in ("input", "grad_output") else ""
    check(
        tensor.dim() == rank,
        lambda: (
            f"expected {name} to have {rank} dimensions{also}, but got {name} of size "
            f"{list(tensor.shape)}"
        ),
        operator,
    )
    check(
        tensor.device == first.device,
        lambda: (
            f"expected {name} and {first_name} to be on the same device, but {name} is on "
            f"{tensor.device} and {first_name} is on {first.device}"
        ),
        operator,
    )
    check(
        tensor.dtype == first.dtype,
        lambda: (
            f"expected {name} to have the dtype of {first_name} ({_name(first.dtype)}), "
            f"but got {name}.dtype={_name(tensor.dtype)}"
        ),
        operator,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_params(p: ConvParams, operator: str = "conv2d") -> None:
    for name, value in (
        ("stride", (p.stride_h, p.stride_w)),
        ("dilation", (p.dilation_h, p.dilation_w)),
    ):
        for number in value:
            check(number >= 1, lambda name=name, value=value: _positive(name, value), operator)  # type: ignore[misc]
    for number in (p.pad_top, p.pad_bottom, p.pad_left, p.pad_right):
        check(
            number >= 0,
            lambda: (
                f"negative padding is not supported, but got padding=(top {p.pad_top}, "
                f"bottom {p.pad_bottom}, left {p.pad_left}, right {p.pad_right})"
            ),
            operator,
        )
    check(p.groups >= 1, lambda: _positive("groups", p.groups), operator)
    for field, number in zip(p._fields[:8], p[:8], strict=True):
        check(
            number <= LARGEST_PARAMETER,
            lambda field=field, number=number: (  # type: ignore[misc]
                f"{field} is too large: {number} is above the limit of {LARGEST_PARAMETER}"
            ),
            operator,
        )
    check(
        p.precision in PRECISION_ARGUMENTS,
        lambda: (
            f"precision must be 'ieee', 'tf32' or 'torch', but got precision={shown(p.precision)}"
        ),
        operator,
    )


def _positive(name: str, value: object) -> str:
    return f"{name} must be greater than zero, but got {name}={value}"


def check_output_size(
    input_size: Sequence[int], weight_size: Sequence[int], p: ConvParams
) -> list[int]:
    """Check extents and return the output's, [N, K, P, Q].

    As in PyTorch, an input without channels gives an output without channels, and an image may be
    empty where the batch or the channels are.
    """
    n, c, height, width = input_size
    k, weight_channels, kernel_h, kernel_w = weight_size
    check_params(p)
    check(
        k % p.groups == 0,
        lambda: (
            "groups must divide the number of filters, but got "
            f"groups={p.groups} and weight.size(0)={k}"
        ),
    )
    check(
        c == weight_channels * p.groups,
        lambda: (
            f"expected input to have weight.size(1)={weight_channels} times groups={p.groups} "
            f"channels, but got input.size(1)={c}"
        ),
    )
    for extent in (k, kernel_h, kernel_w):
        check(
            extent >= 1,
            lambda: (
                f"weight must not be empty, but got {k} filters of {weight_channels} channels "
                f"and kernel size ({kernel_h} x {kernel_w})"
            ),
        )
    no_channels = is_zero(c)
    for extent in () if no_channels or is_zero(n) else (height, width):
        check(
            extent >= 1,
            lambda: f"input must have a height and a width, but got input of {height} x {width}",
        )
    out_h, out_w = output_hw(height, width, kernel_h, kernel_w, p)
    for extent in (out_h, out_w):
        check(extent >= 1, lambda: _kernel_too_large(height, width, kernel_h, kernel_w, p))
    return [n, 0 if no_channels else k, out_h, out_w]


def is_zero(size: int) -> bool:
    """Whether a size is zero; False for a symbol that nothing is known about."""
    if type(size) is int:
        return size == 0
    # Imported here because it loads sympy, which only symbolic sizes need.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(size == 0)


def _kernel_too_large(h: int, w: int, kernel_h: int, kernel_w: int, p: ConvParams) -> str:
    padded = f"({h + p.pad_top + p.pad_bottom} x {w + p.pad_left + p.pad_right})"
    span = f"({p.dilation_h * (kernel_h - 1) + 1} x {p.dilation_w * (kernel_w - 1) + 1})"
    return (
        "kernel size can't be greater than the padded input: padded input is "
        f"{padded}, kernel with dilation spans {span}"
    )


def check_bias(bias: Tensor | None, filters: int) -> None:
    if bias is not None:
        check(
            bias.shape[0] == filters,
            lambda: (
                f"expected bias to be 1-dimensional with {filters} elements (weight.size(0)), "
                f"but got bias of size {list(bias.shape)}"
            ),
        )


# The names are those of csrc/core/problem.cpp.
ACTIVATIONS = (
    "none",
    "relu",
    "relu6",
    "leaky_relu",
    "silu",
    "gelu",
    "gelu_tanh",
    "sigmoid",
    "tanh",
    "hardswish",
    "hardsigmoid",
    "mish",
)


def check_activation(activation: object, operator: str = "conv2d") -> None:
    check(
        activation in ACTIVATIONS,
        lambda: (
            f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, but got "
            f"activation={shown(activation)}"
        ),
        operator,
    )


def check_residual(residual: Tensor, size: Sequence[int]) -> None:
    for got, expected in zip(residual.shape, size, strict=True):
        check(
            got == expected,
            lambda: (
                f"expected residual to have the output's size {list(size)}, but got "
                f"{list(residual.shape)}"
            ),
        )


def check_grad_output(grad_output: Tensor, size: Sequence[int]) -> None:
    for got, expected in zip(grad_output.shape, size, strict=True):
        check(
            got == expected,
            lambda: (
                f"expected grad_output to have size {list(size)}, but got {list(grad_output.shape)}"
            ),
        )


def check_backward(grad_output: Tensor, input: Tensor, weight: Tensor, p: ConvParams) -> None:
    check_tensors(grad_output=grad_output, input=input, weight=weight)
    check_grad_output(grad_output, check_output_size(input.shape, weight.shape, p))


def check_ranks(grad_output: Tensor, input: Tensor) -> None:
    check(
        grad_output.dim() == input.dim(),
        lambda: (
            "expected grad_output and input to have as many dimensions as each other, but got "
            f"grad_output of size {list(grad_output.shape)} and input of size {list(input.shape)}"
        ),
    )


def check_types(
    input: object,
    weight: object,
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    groups: object,
    precision: object,
    algorithm: object,
    operator: str = "conv2d",
) -> None:
    """TypeError, as F.conv2d raises, for an argument of a type that no call takes.

    It replaces the error that led here, which may print the whole value.
    """
    for name, value in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(value, Tensor) and not (name == "bias" and value is None):
            raise _type_error(name, "a Tensor", value, operator) from None
    check_number_types(stride, padding, dilation, groups, operator)
    check_word_types(precision, algorithm, operator)


def check_number_types(
    stride: object, padding: object, dilation: object, groups: object, operator: str = "conv2d"
) -> None:
    for name, value in (("stride", stride), ("dilation", dilation), ("padding", padding)):
        if name == "padding" and isinstance(value, str):
            continue
        check_ints(name, value, operator)
    if not _is_int(groups):
        raise _type_error("groups", "an int", groups, operator) from None


def check_ints(name: str, value: object, operator: str) -> None:
    numbers = value if isinstance(value, tuple | list) else [value]
    if not all(_is_int(number) for number in numbers):
        raise _type_error(name, "an int or ints", value, operator) from None


def check_word_types(precision: object, algorithm: object, operator: str = "conv2d") -> None:
    if precision is not None and not isinstance(precision, str):
        raise _type_error("precision", "a str or None", precision, operator) from None
    if not isinstance(algorithm, str):
        raise _type_error("algorithm", "a str", algorithm, operator) from None


def check_fusion_types(residual: object, negative_slope: object) -> None:
    if residual is not None and not isinstance(residual, Tensor):
        raise _type_error("residual", "a Tensor or None", residual, "conv2d") from None
    if not isinstance(negative_slope, int | float):
        raise _type_error("negative_slope", "a number", negative_slope, "conv2d") from None


def _is_int(value: object) -> bool:
    # Every type with __index__ counts: numpy's integers, torch.SymInt, 0-d integer tensors.
    if isinstance(value, torch.SymInt):
        return True
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _type_error(name: str, expected: str, value: object, operator: str) -> TypeError:
    return TypeError(f"convx.{operator}: {name} must be {expected}, but got {name}={shown(value)}")
