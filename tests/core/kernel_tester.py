"""Tensors and problems for kernels that run on the host, from their own source."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from cases import Case


class Guarded:
    """A tensor in the middle of others' memory, `before` elements behind a multiple of 16 bytes."""

    def __init__(self, values: torch.Tensor, channels_last: bool = False, before: int = 0) -> None:
        size = values.numel()
        self.memory = torch.full((size + 64,), torch.nan, dtype=values.dtype)
        start = (-self.memory.data_ptr() % 64) // values.element_size() + before
        flat = self.memory[start : start + size]
        self.outside = [self.memory[:start], self.memory[start + size :]]
        n, c, h, w = values.shape
        if channels_last:
            self.tensor = flat.view(n, h, w, c).permute(0, 3, 1, 2)
        else:
            self.tensor = flat.view(n, c, h, w)
        self.tensor.copy_(values)

    def is_whole(self) -> bool:
        return all(bool(part.isnan().all()) for part in self.outside)


def make_problem(
    core: ModuleType, case: Case, dtype: torch.dtype, channels_last: bool = False
) -> Any:
    problem = core.ConvProblem()
    problem.dtype = getattr(core.DType, str(dtype).removeprefix("torch."))
    problem.N, problem.C, problem.H, problem.W = case.x
    problem.K, _, problem.R, problem.S = case.w
    problem.groups, problem.has_bias = case.groups, case.bias
    problem.stride, problem.dilation = core.Hw(*case.stride), core.Hw(*case.dilation)
    problem.pad = core.Padding(*case.pad4)
    assert core.validate(problem, case.w[1]) == ""
    strides = core.channels_last_strides if channels_last else core.contiguous_strides
    problem.x_strides = strides(*case.x[1:])
    problem.w_strides = core.contiguous_strides(*case.w[1:])
    problem.y_strides = strides(*case.y[1:])
    return problem
