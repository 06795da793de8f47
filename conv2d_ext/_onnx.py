"""torch.onnx.export, by both exporters: convolutions become ONNX's Conv and ConvTranspose, and
fused epilogues ONNX's operators behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def _gelu(op: Any, z: Any) -> Any:
    return op.Mul(op.Mul(z, 0.5), op.Add(op.Erf(op.Mul(z, math.sqrt(0.5))), 1.0))


def _gelu_tanh(op: Any, z: Any) -> Any:
    cubed = op.Mul(op.Mul(z, op.Mul(z, z)), 0.044715)
    inner = op.Mul(op.Add(z, cubed), math.sqrt(2 / math.pi))
    return op.Mul(op.Mul(z, 0.5), op.Add(op.Tanh(inner), 1.0))


# The activations in operators of ONNX's opset 9, the oldest that PyTorch exports to. ONNX's Gelu,
# HardSwish and Mish are newer and therefore spelled out. `op` makes nodes, in which numbers become
# constants of z's type. The last argument is leaky_relu's slope.
_ACTIVATIONS: dict[str, Callable[[Any, Any, float], Any]] = {
    "none": lambda op, z, slope: z,
    "relu": lambda op, z, slope: op.Relu(z),
    "relu6": lambda op, z, slope: op.Min(op.Relu(z), 6.0),
    "leaky_relu": lambda op, z, slope: op.LeakyRelu(z, alpha=slope),
    "silu": lambda op, z, slope: op.Mul(z, op.Sigmoid(z)),
    "gelu": lambda op, z, slope: _gelu(op, z),
    "gelu_tanh": lambda op, z, slope: _gelu_tanh(op, z),
    "sigmoid": lambda op, z, slope: op.Sigmoid(z),
    "tanh": lambda op, z, slope: op.Tanh(z),
    "hardswish": lambda op, z, slope: op.Mul(z, op.HardSigmoid(z, alpha=1 / 6, beta=0.5)),
    "hardsigmoid": lambda op, z, slope: op.HardSigmoid(z, alpha=1 / 6, beta=0.5),
    "mish": lambda op, z, slope: op.Mul(z, op.Tanh(op.Softplus(z))),
}


def _epilogue(op: Any, z: Any, residual: Any, activation: str, slope: float) -> Any:
    total = z if residual is None else op.Add(z, residual)
    return _ACTIVATIONS[activation](op, total, slope)


# The exporter that traces (dynamo=False).


class _TracedOperators:
    """ONNX's operators as functions that add nodes to a traced graph."""

    def __init__(self, g: Any, dtype: torch.dtype) -> None:
        self.g, self.dtype = g, dtype

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def add_node(*operands: Any, **attributes: float) -> Any:
            values = (self._constant(x) if isinstance(x, float) else x for x in operands)
            return self.g.op(name, *values, **{f"{k}_f": v for k, v in attributes.items()})

        return add_node

    def _constant(self, value: float) -> Any:
        return self.g.op("Constant", value_t=torch.tensor(value, dtype=self.dtype))


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

    @helper.parse_args("v", "v", "v", "is", "is", "is", "i", "v", "s", "f", "s", "s")
    def conv2d_act(
        g: Any,
        input: Any,
        weight: Any,
        bias: Any,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        residual: Any,
        activation: str,
        negative_slope: float,
        precision: str,
        algorithm: str,
    ) -> Any:
        attributes = _attributes(parse_lists(stride, padding, dilation, groups))
        output = add_node(g, "Conv", input, weight, bias, attributes)
        operators = _TracedOperators(g, onnx.JitScalarType.from_value(input).dtype())
        addend = None if helper._is_none(residual) else residual
        return _epilogue(operators, output, addend, activation, negative_slope)

    onnx.register_custom_op_symbolic("convx::conv2d", conv2d, 9)
    onnx.register_custom_op_symbolic("convx::conv2d_act", conv2d_act, 9)
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

    def any_rank(input: Any, weight: Any, bias: Any, p: ConvParams) -> Any:
        if len(input.shape) == 4:
            return conv(input, weight, bias, p)
        batch = op.Unsqueeze(input, op.Constant(value_ints=[0]))
        return op.Squeeze(conv(batch, weight, bias, p), op.Constant(value_ints=[0]))

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
        return any_rank(input, weight, bias, parse_lists(stride, padding, dilation, groups))

    @registry.onnx_impl(torch.ops.convx.conv2d_act.default, trace_only=True)
    def conv2d_act(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        residual: Any = None,
        activation: str = "none",
        negative_slope: float = 0.01,
        precision: str = "ieee",
        algorithm: str = "auto",
    ) -> Any:
        p = parse_lists(stride, padding, dilation, groups)
        output = any_rank(input, weight, bias, p)
        return _epilogue(op, output, residual, activation, negative_slope)

    @registry.onnx_impl(torch.ops.convx._conv2d.default, trace_only=True)
    def private_conv2d(input: Any, weight: Any, bias: Any, *params: Any) -> Any:
        return conv(input, weight, bias, ConvParams(*params))

    @registry.onnx_impl(torch.ops.convx._conv2d_fused.default, trace_only=True)
    def private_conv2d_fused(
        input: Any,
        weight: Any,
        bias: Any,
        residual: Any,
        activation: str,
        negative_slope: float,
        *params: Any,
    ) -> Any:
        output = conv(input, weight, bias, ConvParams(*params))
        return _epilogue(op, output, residual, activation, negative_slope)

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
