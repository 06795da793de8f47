"""Autocast by F.conv2d's rules: every floating-point operand but float64 ones takes its dtype.

As in PyTorch, parameters are cast once per autocast region: the function `conv2d` keeps the cast of
a float32 leaf that requires a gradient until the outermost region ends.

Most casts are operations that autograd records. The Function that computes with float32 parameters
(`_autograd.py`) calls `cast_parameter` instead, which autograd does not see.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _ops

_is_enabled = torch.is_autocast_enabled
_dtype_of = torch.get_autocast_dtype
_is_cache_enabled = torch.is_autocast_cache_enabled
_is_grad_enabled = torch.is_grad_enabled
_is_mapped = torch._C._are_functorch_transforms_active
_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_count_modes = torch._C._len_torch_dispatch_stack

# Tensor.to(dtype) asks first whether the dtype is a device, which takes a third of a small cast.
_CASTS = {torch.bfloat16: Tensor.bfloat16, torch.float16: Tensor.half}

# A leaf's id -> the leaf, its version when it was cast, whether gradients were recorded (None for
# cast_parameter(), whose casts a Function may save but no graph leads to), its cast.
_casts: dict[int, tuple[Tensor, int, bool | None, Tensor]] = {}
# PyTorch's cast of an empty leaf. Only PyTorch's cache keeps it alive, and the end of the outermost
# region empties that cache. Python learns of the end in no other way.
_region: weakref.ref[Tensor] | None = None


def dtype_for(input: Tensor) -> torch.dtype | None:
    """The dtype of autocast for the input's device, or None where it is off."""
    on_cuda = input.is_cuda
    device_type = "cuda" if on_cuda else "cpu"
    if _is_enabled(device_type) and (on_cuda or input.is_cpu):
        return _dtype_of(device_type)
    return None


def cast_inputs(
    input: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands of a call, cast if autocast is on for the input's device."""
    dtype = dtype_for(input)
    return (input, weight, bias) if dtype is None else cast_to(dtype, input, weight, bias)


def cast_to(
    dtype: torch.dtype, input: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`cast_inputs` where the dtype of autocast is known."""
    on_cuda = input.is_cuda
    if input.dtype is not dtype:
        input = cast_operand(input, dtype, on_cuda)
    if weight.dtype is not dtype:
        weight = _cast_once(on_cuda, dtype, weight)
    if bias is not None and bias.dtype is not dtype:
        bias = _cast_once(on_cuda, dtype, bias)
    return input, weight, bias


def _find_cast(leaf: Tensor, dtype: torch.dtype, recorded: bool | None) -> Tensor | None:
    """The cast that this region has kept of the leaf as it is now."""
    kept = _casts.get(id(leaf))
    if kept is None:
        return None
    same, version, was_recorded, result = kept
    is_valid = same is leaf and was_recorded is recorded and result.dtype is dtype
    return result if is_valid and version == leaf._version else None


def _cast_once(on_cuda: bool, dtype: torch.dtype, leaf: Tensor) -> Tensor:
    """The leaf's cast of this region, made at the first call. Transforms of torch.func and dispatch
    modes see every cast."""
    if _is_mapped() or _count_modes() or not _is_cache_enabled():
        return cast_operand(leaf, dtype, on_cuda)
    if (kept := _find_cast(leaf, dtype, _is_grad_enabled())) is not None:
        return kept
    result = cast_operand(leaf, dtype, on_cuda)
    if (
        leaf.requires_grad
        and leaf.is_leaf
        and leaf.dtype is torch.float32
        and result is not leaf
        and (type(leaf) is Parameter or type(leaf) is Tensor)
        and not leaf.is_inference()  # inference tensors have no version
        and _is_region_open(leaf)
    ):
        _casts[id(leaf)] = leaf, leaf._version, _is_grad_enabled(), result
    return result


def cast_parameter(parameter: Parameter, dtype: torch.dtype) -> Tensor:
    """The cast of a float32 parameter, made at the region's first call. The caller records no
    gradients, and has made sure that neither torch.func nor a dispatch mode wants to see casts."""
    if not _is_cache_enabled():
        return _to(parameter, dtype)
    if (kept := _find_cast(parameter, dtype, None)) is not None:
        return kept
    result = _to(parameter, dtype)
    try:
        version = parameter._version
    except RuntimeError:  # an inference tensor has none
        return result
    if _is_region_open(parameter):
        _casts[id(parameter)] = parameter, version, None, result
    return result


def _is_region_open(like: Tensor) -> bool:
    """Makes sure that the end of this region empties `_casts`; False where it cannot."""
    global _region
    if _region is not None and _region() is not None:
        return True
    if _saving_hooks(False) is not None:  # the hooks would see a tensor that is not the user's
        return False
    _casts.clear()
    leaf = _leaf_on(like.device)
    with torch.inference_mode(False), torch.enable_grad():
        # A product of empty tensors computes nothing, and its node holds autocast's cast operand.
        _region = weakref.ref(torch.mm(leaf, leaf).grad_fn._saved_self, _end_region)  # type: ignore[union-attr]
    return _region() is not None


@cache
def _leaf_on(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(0, 0, device=device, requires_grad=True)


def _end_region(_: object) -> None:
    _casts.clear()


def cast(device_type: str, *tensors: Tensor | None) -> list[Tensor | None]:
    dtype, on_cuda = _dtype_of(device_type), device_type == "cuda"
    return [t if t is None else cast_operand(t, dtype, on_cuda) for t in tensors]


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    cast = _CASTS.get(dtype)
    return tensor.to(dtype=dtype) if cast is None else cast(tensor)


def cast_operand(tensor: Tensor, dtype: torch.dtype, on_cuda: bool) -> Tensor:
    """The tensor in autocast's dtype, if autocast casts such tensors."""
    is_here = tensor.is_cuda if on_cuda else tensor.is_cpu
    if not is_here or not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return _to(tensor, dtype)


def register(library: torch.library.Library, name: str, operator: Callable[..., Tensor]) -> None:
    """Registers kernels for autocast of a public operator that begins with input, weight, bias."""
    for device_type, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def kernel(
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            *args: Any,
            device_type: str = device_type,
            excluded: Any = excluded,
            **kwargs: Any,
        ) -> Tensor:
            operands = cast(device_type, input, weight, bias)
            if kwargs.get("residual") is not None:
                (kwargs["residual"],) = cast(device_type, kwargs["residual"])
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return operator(*operands, *args, **kwargs)

        library.impl(name, kernel, key)


_library = torch.library.Library("convx", "IMPL")
register(_library, "conv2d", _ops.conv2d)
