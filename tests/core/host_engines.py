"""CUDA engines whose kernels run on the host, from their own source, as callers meet them.

A problem is described and its result laid out as csrc/torch/conv_call.cpp does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import reference
import torch
from cases import Case
from engine_tester import Problem, nonfinite
from layouts import COMMON
from problems import h200
from torch import Tensor


class RefusedError(Exception):
    """The clause that says why."""


def place(tensor: Tensor, before: int) -> Tensor:
    """The same numbers and strides, `before` elements behind a multiple of 64 bytes."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((extent - 1) * step for extent, step in steps) + 1
    memory = torch.full((span + 64 + before,), torch.nan, dtype=tensor.dtype)
    start = (-memory.data_ptr() % 64) // memory.element_size() + before
    memory[start : start + span] = tensor.as_strided((span,), (1,))
    return memory.as_strided(tensor.shape, tensor.stride(), start)


class Result:
    """Memory for a dense result, NaN as is all around it."""

    def __init__(self, sizes: Sequence[int], strides: Any, dtype: torch.dtype, before: int) -> None:
        count = torch.Size(sizes).numel()
        self.memory = torch.full((count + 128,), torch.nan, dtype=dtype)
        start = 32 + (-self.memory[32:].data_ptr() % 64) // dtype.itemsize + before
        self.outside = [self.memory[:start], self.memory[start + count :]]
        self.tensor = self.memory.as_strided(tuple(sizes), strides.tuple(), start)

    def is_whole(self) -> bool:
        return all(bool(part.isnan().all()) for part in self.outside)


# What mma.sync multiplies, and with which precision.
MMA_MATH = [(torch.bfloat16, "ieee"), (torch.float16, "ieee"), (torch.float32, "tf32")]


class HostEngine:
    def __init__(self, core: ModuleType, name: str, precision: str = "ieee") -> None:
        self.core, self.name, self.precision = core, name, precision
        self.run_kernel = getattr(core, name.replace("cuda", "run"))
        self.caps = h200(core)

    def refusal(self, described: Any) -> str:
        return self.core.refuse(self.name, described, self.caps)

    def describe_explained(self, problem: Problem, direction: str) -> Any:
        """What an explanation is about: x and w as they lie, y as the forward pass makes it."""
        described = self._describe(problem, direction, problem.case.bias)
        described.y_strides = self._output_strides(problem)
        return described

    def describe_called(self, problem: Problem, direction: str) -> Any:
        """What a call computes: operands as they lie, the result as it is asked for."""
        case, into = problem.case, problem.layout.result_channels_last
        forward = direction == "forward"
        described = self._describe(problem, direction, case.bias and forward)
        if forward:
            described.y_strides = self._output_strides(problem)
        elif direction == "input_grad":
            described.x_strides = self._dense_strides(into, case.x)
        else:
            described.w_strides = self._dense_strides(into, case.w)
        return described

    def run(self, problem: Problem, direction: str, before: int = 0) -> Tensor:
        """The result; every tensor lies `before` elements behind where an allocation may start."""
        case = problem.case
        described = self.describe_called(problem, direction)
        target, sizes, strides = {
            "forward": (2, case.y, described.y_strides),
            "input_grad": (0, case.x, described.x_strides),
            "weight_grad": (1, case.w, described.w_strides),
        }[direction]
        result = Result(sizes, strides, problem.x.dtype, before)
        if case.x[0] == 0:  # then no engine is asked
            return result.tensor.zero_()
        if refusal := self.refusal(described):
            raise RefusedError(refusal)
        operands = [problem.x, problem.w, problem.y]
        tensors = [place(tensor, before) for tensor in operands]
        tensors[target] = result.tensor
        has_bias = direction == "forward" and problem.b is not None
        bias = place(problem.b, before) if has_bias else None
        addresses = [0 if t is None else t.data_ptr() for t in (*tensors, bias)]
        said = self.run_kernel(described, self.caps, *addresses)
        assert said is not None, "nothing fits a problem that is not refused"
        assert result.is_whole(), "something was written outside the result"
        for i in {0, 1, 2} - {target}:
            same = torch.equal(operands[i].nan_to_num(7), tensors[i].nan_to_num(7))
            assert same, "an operand was written"
        return result.tensor

    def _describe(self, problem: Problem, direction: str, has_bias: bool) -> Any:
        """With all tensors' strides as they are."""
        core, case = self.core, problem.case
        described = core.ConvProblem()
        described.pass_ = getattr(core.Pass, direction)
        described.dtype = getattr(core.DType, str(problem.x.dtype).removeprefix("torch."))
        described.precision = getattr(core.Precision, self.precision)
        described.N, described.C, described.H, described.W = case.x
        described.K, _, described.R, described.S = case.w
        described.groups, described.has_bias = case.groups, has_bias
        described.stride, described.dilation = core.Hw(*case.stride), core.Hw(*case.dilation)
        described.pad = core.Padding(*case.pad4)
        assert core.validate(described, case.w[1]) == ""
        described.x_strides = core.Strides(*problem.x.stride())
        described.w_strides = core.Strides(*problem.w.stride())
        described.y_strides = core.Strides(*problem.y.stride())
        return described

    def _dense_strides(self, channels_last: bool, sizes: Sequence[int]) -> Any:
        core = self.core
        make = core.channels_last_strides if channels_last else core.contiguous_strides
        return make(*(max(extent, 1) for extent in sizes[1:]))

    def _output_strides(self, problem: Problem) -> Any:
        channels_last = any(
            self.core.is_channels_last(*t.shape, self.core.Strides(*t.stride()))
            for t in (problem.x, problem.w)
        )
        return self._dense_strides(channels_last and problem.case.x[0] > 0, problem.case.y)


def check_nonfinite_on_host(host: HostEngine, problem: Problem, direction: str) -> None:
    """NaN and infinities are where float64 has them, and nowhere else."""
    want = nonfinite(problem.want(direction))
    assert torch.equal(nonfinite(host.run(problem, direction)), want), direction


def check_weight_grad_of(host: HostEngine, case: Case, dtype: torch.dtype, value: float) -> None:
    """The same of weight gradients in NCHW, with the value somewhere in x, then in y."""
    for operand, spot in (("x", (1, 5, 4, 6)), ("y", (0, 9, 2, 3))):
        problem = Problem(case, dtype, COMMON[0], "cpu")
        getattr(problem, operand)[spot] = value
        check_nonfinite_on_host(host, problem, "weight_grad")


def check_on_host(host: HostEngine, problem: Problem, direction: str) -> str:
    """Compares forward pass or input gradient with float64, and what it is at odd addresses with
    itself. The refusal, or nothing."""
    try:
        result = host.run(problem, direction)
    except RefusedError as refused:
        return str(refused)
    case, x, w, b, y = problem.case, problem.x, problem.w, problem.b, problem.y
    tf32 = host.precision == "tf32"
    if direction == "forward":
        reference.check_forward(result, case, x, w, b, tf32=tf32)
    else:
        reference.check_gradients((result, None, None), case, x, w, y, tf32=tf32)
    for before in (1, 2, 4):  # elements behind a unit of 16 bytes
        assert torch.equal(host.run(problem, direction, before), result)
    return ""
