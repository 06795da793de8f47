"""Folds BatchNorm2d in eval mode into the weight and bias of the convolution in front of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

_is_mapped = torch._C._are_functorch_transforms_active
_count_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing

# The attribute in which a convolution keeps its folded weight and bias.
_KEPT = "_convx_folded"

_Sources = tuple[Tensor | None, ...]


class _Kept:
    """A folded weight and bias, and the tensors they were made from.

    A write to a source increases its version; another dtype or device gives it other memory. An
    alias of each source keeps the memory of now from being given to another tensor.
    """

    def __init__(self, sources: _Sources, eps: float, folded: tuple[Tensor, Tensor]) -> None:
        self.sources = sources
        self.eps = eps
        self.folded = folded
        self.marks = [(t, t._version, t.data_ptr()) for t in sources if t is not None]
        self.aliases = [t.detach() for t in sources if t is not None]

    def is_of(self, sources: _Sources, eps: float) -> bool:
        if eps != self.eps:
            return False
        for now, then in zip(sources, self.sources, strict=True):
            if now is not then:
                return False
        for tensor, version, address in self.marks:
            if tensor._version != version or tensor.data_ptr() != address:
                return False
        return True

    def __deepcopy__(self, memo: Any) -> None:
        return None  # the copy has parameters of its own

    def __reduce__(self) -> Any:
        return nothing, ()


def nothing() -> None:
    """What a file has in the place of an object that it does not keep."""


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that computes `norm(conv(input))`.

    They are kept while nothing is written to what they were made from. They are made anew for each
    call that records gradients of the parameters, and that PyTorch traces, compiles or transforms.
    """
    sources = (
        conv.weight,
        conv.bias,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
    )
    if is_compiling() or _is_tracing() or _is_mapped() or _count_modes() or _records(sources):
        return _fold(*sources, norm.eps)  # type: ignore[arg-type]
    kept = conv.__dict__.get(_KEPT)
    if kept is not None and kept.is_of(sources, norm.eps):
        return kept.folded
    with torch.inference_mode(False), torch.no_grad():
        folded = _fold(*sources, norm.eps)  # type: ignore[arg-type]
        if _may_keep(sources, folded):
            if folded[0].is_cuda:  # another stream may read them next
                torch.cuda.current_stream(folded[0].device).synchronize()
            conv.__dict__[_KEPT] = _Kept(sources, norm.eps, folded)
    return folded


def forget(module: nn.Module) -> None:
    """Drops what fold() kept in a module."""
    module.__dict__.pop(_KEPT, None)


def _fold(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    # 16-bit layers are folded in float32 and rounded once.
    dtype = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(dtype) + eps)
    if gamma is not None:
        scale = scale * gamma
    shift = -mean if bias is None else bias - mean
    shift = shift * scale
    if beta is not None:
        shift = shift + beta
    return (weight * scale[:, None, None, None]).to(weight.dtype), shift.to(weight.dtype)


def _records(sources: _Sources) -> bool:
    """Whether derivatives of the folded tensors may be asked for."""
    if forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled():
        for tensor in sources:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _may_keep(sources: _Sources, folded: tuple[Tensor, Tensor]) -> bool:
    for tensor in (*sources, *folded):
        if tensor is None:
            continue
        if type(tensor) not in (Parameter, Tensor) or tensor.is_inference():
            return False  # inference tensors have no version
    # What a CUDA graph captures only exists when the graph runs.
    return not (folded[0].is_cuda and torch.cuda.is_current_stream_capturing())
