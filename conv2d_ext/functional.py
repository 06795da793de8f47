"""F.conv2d, F.conv_transpose2d and F.conv1d, computed by convx's engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import _autocast, _fused, _ops, _transposed
from ._arguments import ConvParams, IntOrPair, PaddingLike, parse_padding, parse_pair
from ._autograd import forward, forward_in_autocast, record_forward
from ._checks import check, check_fusion_types, check_ints, check_types
from ._precision import default_precision, torch_allows_tf32
from ._values import shown

_compiler = torch.compiler
_is_mapped = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_is_autocast_on = torch._C._is_any_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype
_float32 = torch.float32

# An axis has one number.
IntOrSingle = int | Sequence[int]


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: PaddingLike = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    negative_slope: float = 0.01,
    precision: str | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """Apply a 2-D convolution: `torch.nn.functional.conv2d`, computed by convx's engines.

    Every call that F.conv2d accepts with float32, float64, float16 or bfloat16 tensors on the CPU
    or on CUDA means the same here, and padding may have four sides as well. Unlike F.conv2d, it
    takes no integer or complex tensors and no other devices.

    On CUDA, float32 products are rounded to TF32 wherever PyTorch's settings allow it for
    convolutions, and PyTorch's default does. For strict float32 pass `precision="ieee"`, or set
    `torch.backends.cudnn.conv.fp32_precision = "ieee"` (older: `torch.backends.cudnn.allow_tf32 =
    False`).

    Args:
        input: (N, C, H, W), or (C, H, W) without a batch; float32, float64, float16 or bfloat16.
            Any memory format; contiguous and channels_last are read without a copy.
        weight: (K, C / groups, R, S).
        bias: (K,), optional.
        stride: one int or (height, width).
        padding: one int, (height, width), (top, bottom, left, right), "same" or "valid".
        dilation: one int or (height, width).
        groups: number of groups; must divide C and K.
        activation: applied to the sum of convolution, bias and residual before it is rounded and
            stored: "relu", "relu6", "leaky_relu", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh",
            "hardswish", "hardsigmoid", "mish", or None.
        residual: added in front of the activation; of the output's size and dtype, in any memory
            format.
        negative_slope: what leaky_relu multiplies negative values by.
        precision: how float32 values are multiplied on CUDA: "ieee" to float32's own accuracy,
            "tf32" rounded to TF32, None as PyTorch's settings for convolutions say now, or its
            settings for matrix products (`torch.backends.cuda.matmul`) if
            `torch.backends.cudnn.enabled` is False. The CPU and other dtypes ignore it.
        algorithm: "auto", or the name of an engine, as `conv2d_ext.explain` lists them.

    Returns:
        (N, K, P, Q), or (K, P, Q) without a batch; channels_last if input or weight is. An input
            without channels gives an output without channels, as in PyTorch.

    Raises:
        RuntimeError: naming the argument at fault and its value.
    """
    if activation is not None or residual is not None:
        return _conv2d_act(
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            residual,
            activation or "none",
            negative_slope,
            precision,
            algorithm,
        )
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv2d,
            (input, weight, bias),
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            precision=precision,
            algorithm=algorithm,
        )
    # Every frame and every check here shows in the time of small problems. So the common spellings
    # and the plain call come first, and separate functions handle all others.
    try:
        if input.dim() == 3:
            return conv2d(
                input.unsqueeze(0),
                weight,
                bias,
                stride,
                padding,
                dilation,
                groups,
                precision=precision,
                algorithm=algorithm,
            ).squeeze(0)
        if type(stride) is int:
            stride_h = stride_w = stride
        elif type(stride) is tuple and len(stride) == 2:  # parse_pair() without its frame
            stride_h, stride_w = stride
        else:
            stride_h, stride_w = parse_pair("stride", stride)
        if type(dilation) is int:
            dilation_h = dilation_w = dilation
        elif type(dilation) is tuple and len(dilation) == 2:
            dilation_h, dilation_w = dilation
        else:
            dilation_h, dilation_w = parse_pair("dilation", dilation)
        if type(padding) is int:
            top = bottom = left = right = padding
        elif type(padding) is tuple and len(padding) == 2:
            top, left = bottom, right = padding
        else:
            kernel = weight.shape[-2:] if isinstance(padding, str) else ()  # only "same" asks
            top, bottom, left, right = parse_padding(
                padding, kernel, (stride_h, stride_w), (dilation_h, dilation_w)
            )

        # torch.compiler.is_compiling() without its two frames. Dynamo knows the function's answer.
        compiling = is_dynamo_compiling() or _compiler._is_compiling_flag
        if compiling or _is_tracing():
            # The public operator: Dynamo and torch.jit.trace put it in the graph whole, and "torch"
            # is looked up when the graph runs.
            if not compiling:  # sizes are tensors then, and "same" depends on the kernel's
                top, bottom, left, right = int(top), int(bottom), int(left), int(right)
            return _ops.conv2d(
                input,
                weight,
                bias,
                (stride_h, stride_w),
                (top, bottom, left, right),
                (dilation_h, dilation_w),
                groups,
                precision=precision or "torch",
                algorithm=algorithm,
            )

        autocasts = _is_autocast_on()
        if precision is None:  # other dtypes ignore it
            to_float32 = autocasts and _autocast_dtype("cuda") is _float32
            follows = (input.dtype is _float32 or to_float32) and input.is_cuda
            precision = "tf32" if follows and torch_allows_tf32() else "ieee"
        params = (
            stride_h,
            stride_w,
            top,
            bottom,
            left,
            right,
            dilation_h,
            dilation_w,
            groups,
            precision,
            algorithm,
        )
        if autocasts:
            return forward_in_autocast(input, weight, bias, params)
        if _is_mapped() or forward_ad._current_level >= 0:
            return forward(input, weight, bias, *params)
        if _is_grad_enabled() and (
            weight.requires_grad or input.requires_grad or (bias is not None and bias.requires_grad)
        ):
            return record_forward(input, weight, bias, params)
        return _ops.forward(input, weight, bias, *params)
    except Exception as error:
        # Types are checked only after a failure, because a wrong type always fails somewhere.
        check_types(input, weight, bias, stride, padding, dilation, groups, precision, algorithm)
        _raise_for_user("conv2d", input, error)
        raise


def _conv2d_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrPair,
    padding: PaddingLike,
    dilation: IntOrPair,
    groups: int,
    residual: Tensor | None,
    activation: str,
    negative_slope: float,
    precision: str | None,
    algorithm: str,
) -> Tensor:
    """`conv2d` with an activation, a residual or both."""
    if has_torch_function_variadic(input, weight, bias, residual):
        return handle_torch_function(
            conv2d,
            (input, weight, bias, residual),
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            activation=activation,
            residual=residual,
            negative_slope=negative_slope,
            precision=precision,
            algorithm=algorithm,
        )
    try:
        stride_hw, dilation_hw = parse_pair("stride", stride), parse_pair("dilation", dilation)
        kernel = weight.shape[-2:] if isinstance(padding, str) else ()
        sides = parse_padding(padding, kernel, stride_hw, dilation_hw)
        if is_compiling() or _is_tracing():
            if not is_compiling():
                sides = tuple(map(int, sides))  # type: ignore[assignment]
            return _ops.conv2d_act(
                input,
                weight,
                bias,
                stride_hw,
                sides,
                dilation_hw,
                groups,
                residual=residual,
                activation=activation,
                negative_slope=negative_slope,
                precision=precision or "torch",
                algorithm=algorithm,
            )
        if _is_autocast_on():
            dtype = _autocast.dtype_for(input)
            input, weight, bias = _autocast.cast_inputs(input, weight, bias)
            if dtype is not None and residual is not None:
                residual = _autocast.cast_operand(residual, dtype, input.is_cuda)
        if precision is None:
            precision = default_precision(input.device)
        p = ConvParams(*stride_hw, *sides, *dilation_hw, groups, precision, algorithm)
        rest = activation, negative_slope, *p
        if input.dim() != 3:
            return _fused.fused(input, weight, bias, residual, *rest)
        batch_residual = None if residual is None else residual.unsqueeze(0)
        return _fused.fused(input.unsqueeze(0), weight, bias, batch_residual, *rest).squeeze(0)
    except Exception as error:
        words = precision, algorithm
        check_types(input, weight, bias, stride, padding, dilation, groups, *words)
        check_fusion_types(residual, negative_slope)
        _raise_for_user("conv2d", input, error)
        raise


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    output_padding: IntOrPair = 0,
    groups: int = 1,
    dilation: IntOrPair = 1,
    *,
    precision: str | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """Apply a 2-D transposed convolution: `torch.nn.functional.conv_transpose2d`, computed by
    convx's engines for input gradients.

    Every call that F.conv_transpose2d accepts with float32, float64, float16 or bfloat16 tensors on
    the CPU or on CUDA means the same here, and padding may have four sides as well.

    Args:
        input: (N, K, P, Q), or (K, P, Q) without a batch.
        weight: (K, C / groups, R, S).
        bias: (C,), optional. It is added in place to the output.
        stride: one int or (height, width).
        padding: how much of the output is cropped: one int, (height, width), or (top, bottom, left,
            right).
        output_padding: rows and columns that the output has in addition, at the bottom and at the
            right: one int or (height, width), each smaller than the stride or the dilation.
        groups: number of groups; must divide C and K.
        dilation: one int or (height, width).
        precision: as in `conv2d_ext.conv2d`.
        algorithm: "auto", or the name of an engine that computes input gradients.

    Returns:
        (N, C, H, W), or (C, H, W) without a batch; channels_last if input or weight is.

    Raises:
        RuntimeError: naming the argument at fault and its value.
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv_transpose2d,
            (input, weight, bias),
            input,
            weight,
            bias,
            stride,
            padding,
            output_padding,
            groups,
            dilation,
            precision=precision,
            algorithm=algorithm,
        )
    operator = _transposed.OPERATOR
    try:
        stride_hw = parse_pair("stride", stride, operator)
        dilation_hw = parse_pair("dilation", dilation, operator)
        more = parse_pair("output_padding", output_padding, operator)
        if type(padding) is int:
            top = bottom = left = right = padding
        else:
            check_ints("padding", padding, operator)  # "same" and "valid" mean nothing here
            if isinstance(padding, Sequence) and len(padding) == 4:
                top, bottom, left, right = padding
            else:
                top, left = bottom, right = parse_pair("padding", padding, operator)
        if is_compiling() or _is_tracing():
            return _transposed.conv_transpose2d(
                input,
                weight,
                bias,
                stride_hw,
                (top, bottom, left, right),
                more,
                groups,
                dilation_hw,
                precision=precision or "torch",
                algorithm=algorithm,
            )
        if _is_autocast_on():
            input, weight, bias = _autocast.cast_inputs(input, weight, bias)
        if precision is None:
            precision = default_precision(input.device)
        sides = top, bottom, left, right
        p = ConvParams(*stride_hw, *sides, *dilation_hw, groups, precision, algorithm)
        batch = input.unsqueeze(0) if input.dim() == 3 else input
        _transposed.check_arguments(batch, weight, bias, more, p)
        output = _transposed.run(batch, weight, bias, more, p)
        return output if batch is input else output.squeeze(0)
    except Exception as error:
        check_ints("output_padding", output_padding, operator)
        words = precision, algorithm, operator
        check_types(input, weight, bias, stride, padding, dilation, groups, *words)
        _raise_for_user(operator, input, error)
        raise


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrSingle = 1,
    padding: str | IntOrSingle = 0,
    dilation: IntOrSingle = 1,
    groups: int = 1,
    *,
    precision: str | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """Apply a 1-D convolution: `torch.nn.functional.conv1d`, computed by convx's engines as a 2-D
    convolution of images of one row, without copies.

    Args:
        input: (N, C, W), or (C, W) without a batch.
        weight: (K, C / groups, S).
        bias: (K,), optional.
        stride, padding, dilation: one int each, or a sequence of one; padding may also be "same" or
            "valid".
        groups: number of groups; must divide C and K.
        precision, algorithm: as in `conv2d_ext.conv2d`.

    Returns:
        (N, K, Q), or (K, Q) without a batch; contiguous.

    Raises:
        RuntimeError: naming the argument at fault and its value.
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv1d,
            (input, weight, bias),
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            precision=precision,
            algorithm=algorithm,
        )
    operator = "conv1d"
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        words = precision, algorithm, operator
        check_types(input, weight, bias, stride, padding, dilation, groups, *words)
    check(
        input.dim() in (2, 3),
        lambda: (
            "expected input to have 3 dimensions, or 2 without a batch, but got input of size "
            f"{list(input.shape)}"
        ),
        operator,
    )
    check(
        weight.dim() == 3,
        lambda: (
            f"expected weight to have 3 dimensions, but got weight of size {list(weight.shape)}"
        ),
        operator,
    )
    operands, (stride_hw, sides, dilation_hw) = as_one_row(input, weight, stride, padding, dilation)
    output = conv2d(
        *operands,
        bias,
        stride_hw,
        sides,
        dilation_hw,
        groups,
        precision=precision,
        algorithm=algorithm,
    )
    return output.squeeze(-2)


def as_one_row(
    input: Tensor,
    weight: Tensor,
    stride: IntOrSingle,
    padding: str | IntOrSingle,
    dilation: IntOrSingle,
) -> tuple[tuple[Tensor, Tensor], tuple[IntOrPair, PaddingLike, IntOrPair]]:
    """A 1-D convolution as one of images with one row: input and weight, and stride, padding and
    dilation of conv2d."""
    # PyTorch's output is contiguous for every input; channels that are innermost would make this
    # one channels_last.
    operands = input.contiguous().unsqueeze(-2), weight.contiguous().unsqueeze(-2)
    return operands, (
        (1, _parse_single("stride", stride)),
        padding if isinstance(padding, str) else (0, _parse_single("padding", padding)),
        (1, _parse_single("dilation", dilation)),
    )


def _parse_single(name: str, value: IntOrSingle) -> int:
    """The number of an argument of conv1d."""
    if isinstance(value, Sequence):
        if len(value) != 1:
            raise RuntimeError(
                f"convx.conv1d: {name} must have 1 value, but got {name}={shown(list(value))}"
            )
        value = value[0]
    check_ints(name, value, "conv1d")
    return value


def _raise_for_user(operator: str, input: Tensor, error: Exception) -> None:
    """Raises in place of an error that PyTorch's users know by another class or in other words."""
    if input.is_cuda and _ops.says_out_of_memory(error):
        raise torch.OutOfMemoryError(str(error)) from error
    if isinstance(error, NotImplementedError):
        # The dispatcher found no kernel, and its message lists the private operator's kernels.
        kind = f"{input.layout} tensors on {input.device.type}"
        raise NotImplementedError(
            f"convx.{operator}: there is no kernel for {kind}, only for dense ones on cpu and cuda"
        ) from error
