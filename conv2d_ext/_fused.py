"""Convolutions with a fused epilogue: activation(conv2d(input, weight) + bias + residual).

Gradients reach an epilogue through the derivative of its activation. What a call keeps for them,
besides input and weight, is one tensor of the output's size:

    relu, relu6, sigmoid, tanh, and    the output, from which the derivative follows
    leaky_relu with a positive slope
    the others                         the sum in front of the activation, which is then a function
                                       of its own, as in a model without fusion
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from . import _autocast, _autograd, _ops
from ._arguments import parse_lists
from ._checks import check_activation, check_residual, is_zero

_aten = torch.ops.aten
_is_mapped = torch._C._are_functorch_transforms_active

# The activations as PyTorch computes them; the second argument is leaky_relu's slope.
ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda z, slope: z,
    "relu": lambda z, slope: F.relu(z),
    "relu6": lambda z, slope: F.relu6(z),
    "leaky_relu": lambda z, slope: F.leaky_relu(z, slope),
    "silu": lambda z, slope: F.silu(z),
    "gelu": lambda z, slope: F.gelu(z),
    "gelu_tanh": lambda z, slope: F.gelu(z, approximate="tanh"),
    "sigmoid": lambda z, slope: torch.sigmoid(z),
    "tanh": lambda z, slope: torch.tanh(z),
    "hardswish": lambda z, slope: F.hardswish(z),
    "hardsigmoid": lambda z, slope: F.relu6(z + 3) / 6,  # F.hardsigmoid has no second derivative
    "mish": lambda z, slope: F.mish(z),
}

# The gradient in front of an activation, from the gradient behind it and the output.
_GRADIENTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "none": lambda g, y, slope: g,
    "relu": lambda g, y, slope: _aten.threshold_backward(g, y, 0),
    "relu6": lambda g, y, slope: _aten.hardtanh_backward(g, y, 0, 6),
    "leaky_relu": lambda g, y, slope: _aten.leaky_relu_backward(g, y, slope, True),
    "sigmoid": lambda g, y, slope: _aten.sigmoid_backward(g, y),
    "tanh": lambda g, y, slope: _aten.tanh_backward(g, y),
}


def _follows_from_output(activation: str, slope: float) -> bool:
    return activation in _GRADIENTS and (activation != "leaky_relu" or slope > 0)


class _Fused(torch.autograd.Function):
    """The fused operator, for activations whose derivative follows from the output."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        rest: Any,
    ) -> Tensor:
        output = _ops.fused(input, weight, bias, residual, *rest)
        needs = ctx.needs_input_grad
        ctx.save_for_backward(
            input if needs[1] else None,
            weight if needs[0] else None,
            None if rest[0] == "none" else output,
        )
        ctx.of_input = input.shape, input.stride()
        ctx.of_weight = weight.shape, weight.stride()
        ctx.rest = rest
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_output is None:
            return None, None, None, None, None
        input, weight, output = ctx.saved_tensors
        activation, slope, *params = ctx.rest
        grad = _GRADIENTS[activation](grad_output, output, slope)
        needs_input, needs_weight, needs_bias, needs_residual, _ = _autograd.find_asked(ctx)
        if input is not None and weight is not None and _autograd.is_eager(grad):
            grads = _ops.gradients(
                grad, input, weight, needs_input, needs_weight, needs_bias, *params
            )
        else:
            of_input, of_weight = (
                _autograd.like_tensor(*ctx.of_input),
                _autograd.like_tensor(*ctx.of_weight),
            )
            grads = (
                _autograd.input_grad(grad, weight, *of_input, *params) if needs_input else None,
                _autograd.weight_grad(grad, input, *of_weight, *params) if needs_weight else None,
                _autograd.bias_grad(grad) if needs_bias else None,
            )
        return (*grads, grad if needs_residual else None, None)


def decompose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    slope: float,
    *params: Any,
) -> Tensor:
    """The same from separate operators, each of which PyTorch differentiates and maps."""
    output = _autograd.forward(input, weight, bias, *params)
    if residual is not None:
        check_residual(residual, output.shape)  # an addition would broadcast
        output = output + residual
    return ACTIVATIONS[activation](output, slope)


def fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    slope: float,
    *params: Any,
) -> Tensor:
    """The fused operator for a batch of images, differentiable to any order."""
    if activation not in ACTIVATIONS:
        check_activation(activation)
    if _is_mapped() or forward_ad._current_level >= 0 or is_zero(input.shape[1]):
        return decompose(input, weight, bias, residual, activation, slope, *params)
    tensors = input, weight, bias, residual
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
        return _ops.fused(input, weight, bias, residual, activation, slope, *params)
    if _follows_from_output(activation, slope):
        return _Fused.apply(*tensors, (activation, slope, *params))
    if residual is None:
        total = _autograd.forward(input, weight, bias, *params)
    else:
        total = _Fused.apply(*tensors, ("none", 0.0, *params))
    return ACTIVATIONS[activation](total, slope)


def _conv2d_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    residual: Tensor | None = None,
    activation: str = "none",
    negative_slope: float = 0.01,
    **words: Any,
) -> Tensor:
    p = parse_lists(*args, **words)
    if input.dim() == 3:
        if residual is not None:
            residual = residual.unsqueeze(0)
        batch = input.unsqueeze(0)
        return fused(batch, weight, bias, residual, activation, negative_slope, *p).squeeze(0)
    return fused(input, weight, bias, residual, activation, negative_slope, *p)


_library = torch.library.Library("convx", "IMPL")
# The keys of conv2d's kernels, for the same reasons (_autograd.py).
_library.impl("_conv2d_fused", torch.library.fallthrough_kernel, "Autograd")
for _key in ("Autograd", "FuncTorchDynamicLayerFrontMode"):
    _library.impl("conv2d_act", _conv2d_act, _key)
for _key in ("CompositeImplicitAutograd", "FuncTorchDynamicLayerFrontMode"):
    _library.impl("conv2d_act.int", lambda *a, **k: _ops.conv2d_act(*a, **k), _key)
_autocast.register(_library, "conv2d_act", _ops.conv2d_act)
