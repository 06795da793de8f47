"""The operators, resolved once: looking them up costs more than a microsecond a call."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from ._arguments import ConvParams
from ._load import loaded_libraries

_libraries = loaded_libraries()


def why_no_cuda() -> str | None:
    """Why nothing can be computed on CUDA devices, or None."""
    return _libraries.why_no_cuda


def _refuse_cuda(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        f"convx.conv2d: a tensor is on a CUDA device, but there is no CUDA half: {why_no_cuda()}"
    )


if _libraries.cuda is None:
    # Without these kernels, a call with CUDA tensors would fail with the dispatcher's message.
    _library = torch.library.Library("convx", "IMPL")
    for _name in (
        "conv2d",
        "conv2d_act",
        "conv2d_backward",
        "_conv2d",
        "_conv2d_fused",
        "_conv2d_input_grad",
        "_conv2d_weight_grad",
        "_conv2d_bias_grad",
        "_conv2d_gradients",
    ):
        _library.impl(_name, _refuse_cuda, "CUDA")


def _resolve(name: str) -> Callable[..., Any]:
    """A private operator as a function that skips the dispatcher's search for __torch_function__.
    conv2d has searched already, and a second search takes a quarter of the call."""
    handle = getattr(torch.ops.convx, name).default._handle
    # A bound method: a partial object would copy the arguments once more.
    return MethodType(torch._C._dispatch_call_boxed, handle)


conv2d: Callable[..., Tensor] = torch.ops.convx.conv2d.default
conv2d_act: Callable[..., Tensor] = torch.ops.convx.conv2d_act.default
conv2d_backward: Callable[..., Any] = torch.ops.convx.conv2d_backward.default
forward: Callable[..., Tensor] = _resolve("_conv2d")
fused: Callable[..., Tensor] = _resolve("_conv2d_fused")
input_grad: Callable[..., Tensor] = _resolve("_conv2d_input_grad")
weight_grad: Callable[..., Tensor] = _resolve("_conv2d_weight_grad")
bias_grad: Callable[..., Tensor] = _resolve("_conv2d_bias_grad")
gradients: Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]
gradients = _resolve("_conv2d_gradients")


def says_out_of_memory(error: Exception) -> bool:
    """Whether PyTorch's allocator failed. Our library passes its error on as a RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "could not allocate memory" in str(error)


def run(
    direction: str,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    channels_last: bool,
    params: ConvParams,
) -> Tensor:
    """Computes one pass by its name; `y` is the output's gradient. Reads only the sizes of the
    tensor that the pass computes. `channels_last` is the memory format of a gradient."""
    if direction == "forward":
        return forward(x, w, b, *params)
    if direction == "input_grad":
        return input_grad(y, w, x.shape[2], x.shape[3], channels_last, *params)
    return weight_grad(y, x, w.shape[2], w.shape[3], channels_last, *params)
