"""Tensors and problems for kernels that run on the host, from their own source."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from cases import Case

# What tensor cores take, and with which precision.
MATH = [
    (torch.float32, "tf32"),
    (torch.float32, "ieee"),
    (torch.bfloat16, "ieee"),
    (torch.float16, "ieee"),
]


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


# Of operands, by name, and whether they must not be multiplied as halves.
SPREADS = [
    ("rectified", False),
    ("tails", False),
    ("small", False),
    ("large", False),
    ("one small filter", False),
    ("apart", True),
    ("filters apart", True),
    ("one small channel", True),
    ("one dark corner", True),
    ("outlier", True),
    ("subnormal", True),
]


def spread(case: Case, name: str, channel: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands whose values lie near each other or far apart. channel: which may be smaller."""
    x, w, _ = case.tensors(torch.float32)
    random = torch.Generator().manual_seed(7)
    if name == "rectified":
        x = x.relu()
    elif name == "tails":  # many tiny values among others
        x = torch.nn.functional.gelu(3 * x)
    elif name == "small":
        x, w = 1e-12 * x, 1e-9 * w
    elif name == "large":
        x, w = 1e15 * x, 1e18 * w
    elif name == "one small filter":
        w[3] *= 1e-25
    elif name == "apart":
        x *= 10 ** (40 * torch.rand(x.shape, generator=random) - 20)
    elif name == "filters apart":
        w *= 10 ** (40 * torch.rand(w.shape, generator=random) - 20)
    elif name == "one small channel":
        x[:, channel] *= 1e-15
        w[:, channel] *= 1e15
    elif name == "one dark corner":
        x[1, :, :, 9:] *= 1e-12
    elif name == "dark rows":
        x[:, :, 9:] *= 1e-12
    elif name == "outlier":
        x[1, 2, 3, 4] = 1e9
    else:
        assert name == "subnormal"
        x *= 1e-42
    return x, w
