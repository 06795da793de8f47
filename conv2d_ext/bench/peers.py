"""Libraries to compare convx with. PyTorch's own convolution, "cudnn", is always measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ..measuring.case import Case, Operands, Results, torch_convolution

PEERS = ("cudnn", "cublas", "inductor")


def cublas(operands: Operands) -> Callable[[], Tensor] | None:
    """The matrix product that is a 1x1 layer's forward pass; None for other cases."""
    case, s = operands.case, operands.case.shape
    plain = s.stride == (1, 1) and s.pad == (0, 0, 0, 0) and s.groups == 1
    if case.direction != "fwd" or (s.R, s.S) != (1, 1) or not plain or case.is_fused:
        return None
    b, w = operands.b, operands.w.reshape(s.K, s.C)
    if case.layout == "nhwc":  # [pixel][channel]
        pixels = operands.x.permute(0, 2, 3, 1).reshape(-1, s.C)
        return lambda: pixels @ w.t() if b is None else torch.addmm(b, pixels, w.t())
    planes, filters = operands.x.reshape(s.N, s.C, -1), w.expand(s.N, -1, -1)
    if b is None:
        return lambda: torch.bmm(filters, planes)
    column = b.reshape(1, s.K, 1)
    return lambda: torch.baddbmm(column, filters, planes)


def inductor(operands: Operands) -> Callable[[], Results] | None:
    """The case compiled by torch.compile; None, with a warning, where that fails. Machines without
    a C++ compiler are an example."""
    case = operands.case
    compiled = _compiled_convolution(case)

    def run() -> Results:
        return compiled(operands.x, operands.w, operands.b, operands.g, operands.r)

    try:
        run()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"no inductor time for {case.shape.text}: {reason}", stacklevel=2)
        return None
    return run


@lru_cache(maxsize=1)
def _compiled_convolution(case: Case) -> Callable[..., Results]:
    """torch_convolution() compiled so that Triton's kernels compete with cuDNN's."""

    def convolution(x: Tensor, w: Tensor, b: Tensor | None, g: Tensor, r: Tensor | None) -> Results:
        return torch_convolution(case, x, w, b, g, r)

    torch._dynamo.reset()  # one graph per case; their number is limited
    return torch.compile(convolution, dynamic=False, mode="max-autotune-no-cudagraphs")
