"""torch.ops.convx.conv_transpose2d: F.conv_transpose2d as the input gradient of a convolution.

    conv_transpose2d(x, w) = input_grad(x, w): x stands where the output's gradient stands

So the engines of input gradients compute it, and its own gradients are a forward pass and a weight
gradient. Graphs hold the private operators that it is made of. The bias is added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from . import _autocast, _autograd
from ._arguments import ConvParams, parse_lists, parse_pair, transposed_extent
from ._checks import DTYPES, LARGEST_PARAMETER, check, check_params, check_tensors, is_zero
from ._layout import is_channels_last, new_dense
from ._precision import PRECISION_ARGUMENTS

OPERATOR = "conv_transpose2d"  # in messages

_is_mapped = torch._C._are_functorch_transforms_active


def output_hw(
    input: Tensor, weight: Tensor, output_padding: Sequence[int], p: ConvParams
) -> tuple[int, int]:
    (height, width), (kernel_h, kernel_w) = input.shape[2:], weight.shape[2:]
    rows = p.pad_top, p.pad_bottom, kernel_h, p.stride_h, p.dilation_h, output_padding[0]
    columns = p.pad_left, p.pad_right, kernel_w, p.stride_w, p.dilation_w, output_padding[1]
    return transposed_extent(height, *rows), transposed_extent(width, *columns)


def is_valid(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_padding: Sequence[int],
    p: ConvParams,
) -> bool:
    """Whether the checks of check_arguments() all hold for real tensors. Every eager call asks for
    that, and its messages cost 24 us instead of 7 (x86-64 at 2.5 GHz, 2026-11-19)."""
    dtype, device = input.dtype, input.device
    if input.dim() != 4 or weight.dim() != 4 or dtype not in DTYPES:
        return False
    if weight.dtype is not dtype or weight.device != device:
        return False
    batch, channels_in, height, width = input.shape
    filters, channels, kernel_h, kernel_w = weight.shape
    *numbers, groups, precision, _ = p
    stride_h, stride_w, top, bottom, left, right, dilation_h, dilation_w = numbers
    rows, columns = output_padding
    if bias is not None:
        if bias.dtype is not dtype or bias.device != device or bias.dim() != 1:
            return False
        if bias.shape[0] != channels * groups:
            return False
    return bool(
        min(stride_h, stride_w, dilation_h, dilation_w, groups) >= 1
        and min(top, bottom, left, right, rows, columns) >= 0
        and max(numbers) <= LARGEST_PARAMETER
        and rows < max(stride_h, dilation_h)
        and columns < max(stride_w, dilation_w)
        and channels_in == filters
        and filters % groups == 0
        and min(filters, channels, kernel_h, kernel_w, height, width) >= 1
        and min(output_hw(input, weight, output_padding, p)) >= (1 if batch else 0)
        and precision in PRECISION_ARGUMENTS
    )


def check_arguments(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_padding: Sequence[int],
    p: ConvParams,
) -> None:
    """RuntimeError for what conv_transpose2d does not take; sizes may be symbolic."""
    is_real = type(input) is Tensor or type(input) is Parameter
    if is_real and is_valid(input, weight, bias, output_padding, p):
        return
    check_tensors(OPERATOR, input=input, weight=weight, bias=bias)
    check_params(p, OPERATOR)
    filters, channels, kernel_h, kernel_w = weight.shape
    for number, stride, dilation in zip(
        output_padding, (p.stride_h, p.stride_w), (p.dilation_h, p.dilation_w), strict=True
    ):
        check(
            0 <= number < max(stride, dilation),
            lambda: (
                "output_padding must be at least 0 and smaller than stride or dilation, but got "
                f"output_padding={tuple(output_padding)}, stride={p.stride_h, p.stride_w}, "
                f"dilation={p.dilation_h, p.dilation_w}"
            ),
            OPERATOR,
        )
    check(
        input.shape[1] == filters,
        lambda: (
            f"expected input to have weight.size(0)={filters} channels, "
            f"but got input.size(1)={input.shape[1]}"
        ),
        OPERATOR,
    )
    check(
        filters % p.groups == 0,
        lambda: (
            "groups must divide the number of input channels, but got "
            f"groups={p.groups} and weight.size(0)={filters}"
        ),
        OPERATOR,
    )
    for extent in weight.shape:
        check(
            extent >= 1,
            lambda: f"weight must not be empty, but got weight of size {list(weight.shape)}",
            OPERATOR,
        )
    for extent in input.shape[2:]:
        check(
            extent >= 1,
            lambda: f"input must have a height and a width, but got size {list(input.shape)}",
            OPERATOR,
        )
    height, width = output_hw(input, weight, output_padding, p)
    least = 0 if is_zero(input.shape[0]) else 1
    for extent in (height, width):
        check(
            extent >= least,
            lambda: (
                f"the output would be empty, {height} x {width}: padding=(top {p.pad_top}, bottom "
                f"{p.pad_bottom}, left {p.pad_left}, right {p.pad_right}) is too large for an "
                f"input of {input.shape[2]} x {input.shape[3]} and a kernel of "
                f"{kernel_h} x {kernel_w}"
            ),
            OPERATOR,
        )
    if bias is not None:
        check(
            bias.shape[0] == channels * p.groups,
            lambda: (
                f"expected bias to be 1-dimensional with {channels * p.groups} elements "
                f"(weight.size(1) times groups), but got bias of size {list(bias.shape)}"
            ),
            OPERATOR,
        )


def _is_result_channels_last(input: Tensor, weight: Tensor) -> bool:
    return is_channels_last(input) or (is_channels_last(weight) and input.shape[0] != 0)


def run(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_padding: Sequence[int],
    p: ConvParams,
) -> Tensor:
    """Computes a batch of images whose arguments have been checked."""
    height, width = output_hw(input, weight, output_padding, p)
    # A convolution with this stride reads all but the last rows and columns of the image whose
    # gradient it is, and fewer than the stride are left over. More output padding than that (the
    # dilation is larger) is behind everything that the kernel reaches.
    rows = output_padding[0] if output_padding[0] >= p.stride_h else 0
    columns = output_padding[1] if output_padding[1] >= p.stride_w else 0
    lost_rows = lost_columns = 0
    if rows or columns:
        # Cropped by less, the output has the wanted extent; beyond what there is to crop, zeros.
        bottom, right = max(p.pad_bottom - rows, 0), max(p.pad_right - columns, 0)
        rows -= p.pad_bottom - bottom
        columns -= p.pad_right - right
        # A convolution has one row and column at least, even if all but these zeros are cropped.
        lost_rows, lost_columns = max(1 - height + rows, 0), max(1 - width + columns, 0)
        top, left = p.pad_top - lost_rows, p.pad_left - lost_columns
        p = p._replace(pad_top=top, pad_bottom=bottom, pad_left=left, pad_right=right)
    last = _is_result_channels_last(input, weight)
    extents = height - rows + lost_rows, width - columns + lost_columns
    output = _autograd.input_grad(input, weight, *extents, last, *p)
    if rows or columns:
        output = output[:, :, lost_rows:, lost_columns:]
        output = F.pad(output, (0, width - output.shape[3], 0, height - output.shape[2]))
        if last:  # an image without rows or columns has no memory format, and pad() has lost it
            output = output.contiguous(memory_format=torch.channels_last)
    if bias is None:
        return output
    if (
        type(output) is not Tensor  # a DTensor may have to be redistributed
        or is_compiling()
        or _is_mapped()
        or forward_ad._current_level >= 0
    ):
        return output + bias[:, None, None]
    # Nobody else has seen the output, and no gradient needs it.
    return output.add_(bias.view(-1, 1, 1))


def _parse(
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    output_padding: Sequence[int] = (0, 0),
    groups: int = 1,
    dilation: Sequence[int] = (1, 1),
    **words: str,
) -> tuple[tuple[int, int], ConvParams]:
    p = parse_lists(stride, padding, dilation, groups, **words)
    return parse_pair("output_padding", output_padding, OPERATOR), p


def _with_batch(
    compute: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Calls compute() like run(), with checked arguments and a batch of images."""
    output_padding, p = _parse(*args, **kwargs)
    batch = input.unsqueeze(0) if input.dim() == 3 else input
    check_arguments(batch, weight, bias, output_padding, p)
    output = compute(batch, weight, bias, output_padding, p)
    return output if batch is input else output.squeeze(0)


def _conv_transpose2d(*args: Any, **kwargs: Any) -> Tensor:
    return _with_batch(run, *args, **kwargs)


def _conv_transpose2d_int(*args: Any, **kwargs: Any) -> Tensor:
    return conv_transpose2d(*args, **kwargs)


_library = torch.library.Library("convx", "FRAGMENT")
_library.define(
    "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
    "SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1, *, "
    'str precision="ieee", str algorithm="auto") -> Tensor'
)
# A single int for stride and the like, as for conv2d.int (csrc/torch/register_cpu.cpp).
_library.define(
    "conv_transpose2d.int(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, "
    "int[2] padding=0, int[2] output_padding=0, SymInt groups=1, int[2] dilation=1, *, "
    'str precision="ieee", str algorithm="auto") -> Tensor'
)
conv_transpose2d = torch.ops.convx.conv_transpose2d.default
# The keys of conv2d's kernels, for the same reasons (_autograd.py). The devices' are for inference
# mode, which leaves autograd's out.
for _key in ("Autograd", "FuncTorchDynamicLayerFrontMode", "CPU", "CUDA"):
    _library.impl("conv_transpose2d", _conv_transpose2d, _key)
for _key in ("CompositeImplicitAutograd", "FuncTorchDynamicLayerFrontMode"):
    _library.impl("conv_transpose2d.int", _conv_transpose2d_int, _key)
_autocast.register(_library, "conv_transpose2d", conv_transpose2d)


def _new_output(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_padding: Sequence[int],
    p: ConvParams,
) -> Tensor:
    height, width = output_hw(input, weight, output_padding, p)
    size = [input.shape[0], weight.shape[1] * p.groups, height, width]
    return new_dense(input, size, _is_result_channels_last(input, weight))


@torch.library.register_fake("convx::conv_transpose2d")
def _(*args: Any, **kwargs: Any) -> Tensor:
    return _with_batch(_new_output, *args, **kwargs)
