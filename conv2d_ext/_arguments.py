"""Arguments of a convolution: PyTorch's spellings in, plain numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ._values import shown

# One int, or one per axis. torch.SymInt passes wherever int does.
IntOrPair = int | Sequence[int]
PaddingLike = str | int | Sequence[int]


class ConvParams(NamedTuple):
    """Everything but the tensors, in the order of the private operators' arguments."""

    stride_h: int
    stride_w: int
    pad_top: int
    pad_bottom: int
    pad_left: int
    pad_right: int
    dilation_h: int
    dilation_w: int
    groups: int
    precision: str
    algorithm: str


def parse_pair(name: str, value: IntOrPair, operator: str = "conv2d") -> tuple[int, int]:
    # The common spellings first: an abstract isinstance costs more than the rest of the call.
    if type(value) is int:
        return value, value
    if type(value) is tuple and len(value) == 2:
        return value
    if not isinstance(value, Sequence):
        return value, value
    if len(value) == 1:
        return value[0], value[0]
    if len(value) == 2:
        return value[0], value[1]
    raise RuntimeError(
        f"convx.{operator}: {name} must have 1 or 2 values, but got {name}={shown(list(value))}"
    )


def parse_padding(
    padding: PaddingLike, kernel: Sequence[int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return padding as (top, bottom, left, right).

    "same" pads so that the output has the input's extents; where the total is odd, the extra
    pixel goes to the bottom or right, as in PyTorch.
    """
    if type(padding) is int:
        return padding, padding, padding, padding
    if type(padding) is tuple and len(padding) == 2:
        return padding[0], padding[0], padding[1], padding[1]
    if isinstance(padding, str):
        if padding == "valid":
            return 0, 0, 0, 0
        if padding != "same":
            raise RuntimeError(
                "convx.conv2d: padding must be 'same', 'valid' or numbers, but got "
                f"padding={shown(padding)}"
            )
        if stride[0] != 1 or stride[1] != 1:
            raise RuntimeError(
                "convx.conv2d: padding='same' is not supported for strided convolutions, "
                f"but got stride={shown(stride)}"
            )
        rows = dilation[0] * (kernel[0] - 1)
        columns = dilation[1] * (kernel[1] - 1)
        return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2
    if isinstance(padding, Sequence):
        sides = tuple(cast("Sequence[int]", padding))
        if len(sides) == 4:
            return sides
        if len(sides) not in (1, 2):
            raise RuntimeError(
                f"convx.conv2d: padding must have 1, 2 or 4 values, but got "
                f"padding={shown(list(sides))}"
            )
    pad_h, pad_w = parse_pair("padding", padding)
    return pad_h, pad_h, pad_w, pad_w


def parse_lists(
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: str = "ieee",
    algorithm: str = "auto",
) -> ConvParams:
    """The public operators' arguments behind the tensors, with their defaults, as numbers."""
    stride_hw = parse_pair("stride", stride)
    dilation_hw = parse_pair("dilation", dilation)
    pad = parse_padding(padding, (), stride_hw, dilation_hw)
    return ConvParams(*stride_hw, *pad, *dilation_hw, groups, precision, algorithm)


def transposed_extent(
    extent: int,
    pad_before: int,
    pad_after: int,
    kernel: int,
    stride: int,
    dilation: int,
    output_padding: int,
) -> int:
    """The height or width that a transposed convolution makes of an extent."""
    span = (extent - 1) * stride + dilation * (kernel - 1) + 1
    return span + output_padding - pad_before - pad_after


def output_extent(
    extent: int, pad_before: int, pad_after: int, kernel: int, stride: int, dilation: int
) -> int:
    """The output's height or width; csrc/core/problem.cpp has the same formula."""
    return (extent + pad_before + pad_after - dilation * (kernel - 1) - 1) // stride + 1


def output_hw(height: int, width: int, kernel_h: int, kernel_w: int, p: ConvParams) -> list[int]:
    return [
        output_extent(height, p.pad_top, p.pad_bottom, kernel_h, p.stride_h, p.dilation_h),
        output_extent(width, p.pad_left, p.pad_right, kernel_w, p.stride_w, p.dilation_w),
    ]
