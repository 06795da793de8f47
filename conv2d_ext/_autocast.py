"""Autocast by F.conv2d's rules: every floating-point operand but float64 ones takes its dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops


def cast_inputs(
    input: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast makes of a call, if it is on for the input's device."""
    device_type = input.device.type
    if device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type):
        input, weight, bias = cast(device_type, input, weight, bias)  # type: ignore[assignment]
    return input, weight, bias


def cast(device_type: str, *tensors: Tensor | None) -> list[Tensor | None]:
    dtype = torch.get_autocast_dtype(device_type)
    return [_cast_one(device_type, dtype, tensor) for tensor in tensors]


def _cast_one(device_type: str, dtype: torch.dtype, tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.device.type != device_type:
        return tensor
    if not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)


def _register(device_type: str, key: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def conv2d(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        input, weight, bias = cast(device_type, input, weight, bias)  # type: ignore[assignment]
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return _ops.conv2d(input, weight, bias, *args, **kwargs)

    _library.impl("conv2d", conv2d, key)


_library = torch.library.Library("convx", "IMPL")
_register("cpu", "AutocastCPU")
_register("cuda", "AutocastCUDA")
