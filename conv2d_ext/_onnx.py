"""torch.onnx.export, by both exporters: convolutions become ONNX's Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from . import _ops  # noqa: F401  (defines the operators)
from ._after_import import after_import
from ._arguments import ConvParams, parse_lists, parse_pair, transposed_extent


def _attributes(p: ConvParams) -> dict[str, Any]:
    """The attributes of ONNX's Conv and ConvTranspose. Their pads list both axes' beginnings, then
    both ends."""
    return {
        "dilations": [p.dilation_h, p.dilation_w],
        "group": p.groups,
        "pads": [p.pad_top, p.pad_left, p.pad_bottom, p.pad_right],
        "strides": [p.stride_h, p.stride_w],
    }


# The exporter that traces (dynamo=False).


def _register_symbolic(onnx: ModuleType) -> None:
    helper = getattr(onnx, "symbolic_helper", None)
    if helper is None:
        return  # this torch no longer has the exporter

    def add_node(
        g: Any, name: str, input: Any, weight: Any, bias: Any, attributes: dict[str, Any]
    ) -> Any:
        operands = [input, weight] if helper._is_none(bias) else [input, weight, bias]
        has_batch = helper._get_tensor_rank(input) != 3
        if not has_batch:
            operands[0] = helper._unsqueeze_helper(g, input, [0])
        marked = {f"{name}_i": value for name, value in attributes.items()}
        kernel = helper._get_tensor_sizes(weight)[2:]
        output = g.op(name, *operands, kernel_shape_i=kernel, **marked)
        return output if has_batch else helper._squeeze_helper(g, output, [0])

    @helper.parse_args("v", "v", "v", "is", "is", "is", "i", "s", "s")
    def conv2d(
        g: Any,
        input: Any,
        weight: Any,
        bias: Any,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        precision: str,
        algorithm: str,
    ) -> Any:
        attributes = _attributes(parse_lists(stride, padding, dilation, groups))
        return add_node(g, "Conv", input, weight, bias, attributes)

    @helper.parse_args("v", "v", "v", "is", "is", "is", "i", "is", "s", "s")
    def conv_transpose2d(
        g: Any,
        input: Any,
        weight: Any,
        bias: Any,
        stride: list[int],
        padding: list[int],
        output_padding: list[int],
        groups: int,
        dilation: list[int],
        precision: str,
        algorithm: str,
    ) -> Any:
        attributes = _attributes(parse_lists(stride, padding, dilation, groups))
        attributes["output_padding"] = list(parse_pair("output_padding", output_padding))
        return add_node(g, "ConvTranspose", input, weight, bias, attributes)

    onnx.register_custom_op_symbolic("convx::conv2d", conv2d, 9)
    onnx.register_custom_op_symbolic("convx::conv_transpose2d", conv_transpose2d, 9)


# The exporter that translates torch.export's graphs (dynamo=True).


def _register_translations(_: ModuleType) -> None:
    op = import_module("onnxscript").opset18
    try:
        from torch.onnx._internal.exporter._torchlib import _torchlib_registry as registry
    except ImportError:
        return  # this torch keeps its translations elsewhere; the exporter asks for ours

    def conv(input: Any, weight: Any, bias: Any, p: ConvParams) -> Any:
        operands = (input, weight) if bias is None else (input, weight, bias)
        return op.Conv(*operands, **_attributes(p))

    @registry.onnx_impl(torch.ops.convx.conv2d.default, trace_only=True)
    def conv2d(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        precision: str = "ieee",
        algorithm: str = "auto",
    ) -> Any:
        p = parse_lists(stride, padding, dilation, groups)
        if len(input.shape) == 4:
            return conv(input, weight, bias, p)
        batch = op.Unsqueeze(input, op.Constant(value_ints=[0]))
        return op.Squeeze(conv(batch, weight, bias, p), op.Constant(value_ints=[0]))

    @registry.onnx_impl(torch.ops.convx._conv2d.default, trace_only=True)
    def private_conv2d(
        input: Any,
        weight: Any,
        bias: Any,
        stride_h: int,
        stride_w: int,
        pad_top: int,
        pad_bottom: int,
        pad_left: int,
        pad_right: int,
        dilation_h: int,
        dilation_w: int,
        groups: int,
        precision: str,
        algorithm: str,
    ) -> Any:
        stride, dilation = (stride_h, stride_w), (dilation_h, dilation_w)
        padding = pad_top, pad_bottom, pad_left, pad_right
        return conv(input, weight, bias, parse_lists(stride, padding, dilation, groups))

    @registry.onnx_impl(torch.ops.convx.conv_transpose2d.default, trace_only=True)
    def conv_transpose2d(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        output_padding: Sequence[int] = (0, 0),
        groups: int = 1,
        dilation: Sequence[int] = (1, 1),
        precision: str = "ieee",
        algorithm: str = "auto",
    ) -> Any:
        p = parse_lists(stride, padding, dilation, groups)
        operands = (weight,) if bias is None else (weight, bias)
        more = list(output_padding)
        if len(input.shape) == 4:
            return op.ConvTranspose(input, *operands, output_padding=more, **_attributes(p))
        batch = op.Unsqueeze(input, op.Constant(value_ints=[0]))
        output = op.ConvTranspose(batch, *operands, output_padding=more, **_attributes(p))
        return op.Squeeze(output, op.Constant(value_ints=[0]))

    @registry.onnx_impl(torch.ops.convx._conv2d_input_grad.default, trace_only=True)
    def private_input_grad(
        grad_output: Any,
        weight: Any,
        height: int,
        width: int,
        channels_last: bool,
        *params: Any,
    ) -> Any:
        """What a transposed convolution is made of."""
        p = ConvParams(*params)
        (rows, columns), (kernel_h, kernel_w) = grad_output.shape[2:], weight.shape[2:]
        more = [
            height
            - transposed_extent(
                rows, p.pad_top, p.pad_bottom, kernel_h, p.stride_h, p.dilation_h, 0
            ),
            width
            - transposed_extent(
                columns, p.pad_left, p.pad_right, kernel_w, p.stride_w, p.dilation_w, 0
            ),
        ]
        return op.ConvTranspose(grad_output, weight, output_padding=more, **_attributes(p))


after_import("torch.onnx", _register_symbolic)
# PyTorch imports its own translations when it first needs them.
after_import("torch.onnx._internal.exporter._torchlib.ops", _register_translations)
