"""What tests/engines asks of a GPU's engines, asked of their kernels on the host.

Problems are made of tensors as csrc/torch/conv_call.cpp makes them. Of engines whose emulation is
slow, a sample of the tests runs: CONVX_WHOLE_GRID=1 runs all.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import CASES, Case, named
from engine_tester import DIRECTIONS, EngineTester, Problem
from kernel_tester import Guarded
from layouts import COMMON, Layout
from problems import h200
from torch import Tensor

ENGINES: dict[str, Callable[[ModuleType], Callable[..., Any]]] = {
    "cuda_bands": lambda core: core.run_bands,
    "cuda_boxes": lambda core: core.run_boxes,
    "cuda_col2im": lambda core: core.run_col2im,
    "cuda_depthwise": lambda core: core.run_depthwise,
    "cuda_diagonal": lambda core: core.run_diagonal,
    "cuda_gemm": lambda core: core.run_gemm,
    "cuda_grouped": lambda core: core.run_grouped,
    "cuda_lines": lambda core: lambda *given: core.run_lines(*given, None, False),
    "cuda_mma": lambda core: core.run_mma,
    "cuda_phases": lambda core: core.run_phases,
    "cuda_pixels": lambda core: core.run_pixels_engine,
}
SAMPLED = {
    "cuda_boxes": 2,
    "cuda_gemm": 8,
    "cuda_grouped": 8,
    "cuda_lines": 32,
    "cuda_mma": 16,
    "cuda_pixels": 16,
}  # one test of so many
SIDES = {"forward": "y", "input_grad": "x", "weight_grad": "w"}  # what each direction computes


def moved(t: Tensor, before: int) -> Tensor:
    """The same view of other memory, `before` elements behind a multiple of 64 bytes."""
    if t.numel() == 0:
        return t
    steps = zip(t.shape, t.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    memory = torch.full((span + 128,), torch.nan, dtype=t.dtype)
    start = (-memory.data_ptr() % 64) // t.element_size() + before
    flat = memory[start : start + span]
    flat.copy_(t.as_strided((span,), (1,)))
    return flat.as_strided(t.shape, t.stride())


class EmulatedProblem(Problem):
    def __init__(self, core: ModuleType, case: Case, dtype: torch.dtype, layout: Layout) -> None:
        super().__init__(case, dtype, layout, "cpu")
        self.core = core
        self.before = 0  # elements between an aligned address and each tensor

    def describe(self, direction: str, precision: str = "ieee") -> Any:
        """The problem but for its strides."""
        core, case = self.core, self.case
        problem = core.ConvProblem()
        problem.pass_ = getattr(core.Pass, direction)
        problem.dtype = getattr(core.DType, str(self.x.dtype).removeprefix("torch."))
        problem.precision = getattr(core.Precision, precision)
        problem.N, problem.C, problem.H, problem.W = case.x
        problem.K, _, problem.R, problem.S = case.w
        problem.groups = case.groups
        problem.stride, problem.dilation = core.Hw(*case.stride), core.Hw(*case.dilation)
        problem.pad = core.Padding(*case.pad4)
        assert core.validate(problem, case.w[1]) == ""
        return problem

    def dense(self, channels_last: bool, size: tuple[int, ...]) -> Any:
        core = self.core
        strides = core.channels_last_strides if channels_last else core.contiguous_strides
        return strides(*size[1:])

    def is_channels_last(self, t: Tensor) -> bool:
        return self.core.is_channels_last(*t.shape, self.core.Strides(*t.stride()))

    def explained(self, direction: str) -> Any:
        """What an explanation asks about: it knows input and weight alone."""
        problem = self.describe(direction)
        problem.has_bias = self.case.bias
        problem.x_strides = self.core.Strides(*self.x.stride())
        problem.w_strides = self.core.Strides(*self.w.stride())
        channels_last = self.is_channels_last(self.x) or self.is_channels_last(self.w)
        problem.y_strides = self.dense(channels_last, self.case.y)
        return problem

    def real(self, direction: str, precision: str) -> tuple[Any, bool]:
        """What a call runs, and whether its result is channels_last."""
        problem = self.describe(direction, precision)
        strides = {side: self.core.Strides(*getattr(self, side).stride()) for side in "xwy"}
        channels_last = self.layout.result_channels_last
        if direction == "forward":
            problem.has_bias = self.case.bias
            channels_last = self.is_channels_last(self.x) or self.is_channels_last(self.w)
        side = SIDES[direction]
        strides[side] = self.dense(channels_last, getattr(self.case, side))
        problem.x_strides, problem.w_strides, problem.y_strides = (strides[s] for s in "xwy")
        return problem, channels_last

    def choose(self, problem: Any, engine: str) -> dict[str, Any]:
        return json.loads(self.core.choose("cuda", problem, h200(self.core), engine))

    def refusal(self, direction: str, engine: str, device: str) -> str:
        said = self.choose(self.explained(direction), engine)
        return next(c["refusal"] for c in said["candidates"] if c["name"] == engine)

    def run(self, direction: str, engine: str, precision: str = "ieee") -> Tensor:
        problem, channels_last = self.real(direction, precision)
        side = SIDES[direction]
        size = getattr(self.case, side)
        if self.case.x[0] == 0:
            return torch.zeros(size, dtype=self.x.dtype)
        if error := self.choose(problem, engine)["error"]:
            raise RuntimeError(error)
        result = Guarded(
            torch.full(size, torch.nan, dtype=self.x.dtype), channels_last, self.before
        )
        tensors = {s: moved(getattr(self, s), self.before) for s in "xwy"}
        tensors[side] = result.tensor
        pointers = [tensors[s].data_ptr() for s in "xwy"]
        bias = 0 if self.b is None or direction != "forward" else self.b.data_ptr()
        said = ENGINES[engine](self.core)(problem, h200(self.core), *pointers, bias)
        assert said is not None
        assert not isinstance(said, str), said
        assert result.is_whole(), "wrote beside the result"
        for operand in "xwy".replace(side, ""):
            # As bits, for the sake of NaN.
            assert torch.equal(
                getattr(self, operand).contiguous().view(torch.uint8),
                tensors[operand].contiguous().view(torch.uint8),
            ), f"{operand} was written"
        return result.tensor


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", ENGINES)


def is_of_the_sample(test: pytest.Function) -> bool:
    """Others are not collected (conftest.py)."""
    one_of = SAMPLED.get(test.callspec.params.get("engine", ""), 1)
    return "CONVX_WHOLE_GRID" in os.environ or zlib.crc32(test.name.encode()) % one_of == 0


class TestEmulatedEngines(EngineTester):
    device = "cuda"
    core: ModuleType
    # Threads run in the same order every time: that results repeat would say nothing.
    test_repeats_are_bitwise_equal = None

    @pytest.fixture(autouse=True)
    def use_core(self, core: ModuleType) -> None:
        self.core = core

    def make_problem(self, case: Case, dtype: torch.dtype, layout: Layout) -> EmulatedProblem:
        return EmulatedProblem(self.core, case, dtype, layout)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_auto_is_one_of_the_engines(self, direction: str) -> None:
        """The engine that an explanation names is the one that runs."""
        for case in CASES:
            for layout in COMMON:
                problem = self.make_problem(case, torch.float32, layout)
                said = problem.choose(problem.explained(direction), "auto")
                done = problem.choose(problem.real(direction, "ieee")[0], "auto")
                if case.x[0] > 0:
                    assert said["engine"] == done["engine"], f"{case}, {layout}"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", named("depthwise", "groups_of_four", "batch_one"), ids=str)
    def test_addresses_do_not_matter(
        self, run: Any, case: Case, direction: str, dtype: Any
    ) -> None:
        problem = self.make_problem(case, dtype, COMMON[0])
        aligned = run(problem, direction)
        for before in (1, 2):
            problem.before = before
            assert torch.equal(run(problem, direction), aligned)
