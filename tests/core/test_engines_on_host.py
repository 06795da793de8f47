"""What tests/engines asks of every CUDA engine, asked of those whose kernels run on the host."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import CASES, Case, named
from engine_tester import EngineTester, Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host
from layouts import COMMON, Layout
from torch import Tensor

ENGINES = ["cuda_pointwise", "cuda_grouped"]

# Without padding, and each for one of the engines at least.
UNPADDED = [
    *named("one_by_one", "stride_beyond_kernel", "groups_of_odd_sizes"),
    Case("dilated", (2, 5, 11, 13), (7, 5, 3, 3), dilation=(2, 3)),
    Case("one_by_one_of_both", (2, 9, 7, 9), (13, 9, 1, 1)),
    Case("one_by_one_aligned", (2, 72, 8, 8), (70, 72, 1, 1)),
    Case("one_by_one_strided", (2, 40, 9, 10), (66, 40, 1, 1), stride=(2, 3)),
    Case("groups_of_four", (2, 12, 13, 16), (12, 4, 3, 3), groups=3),
    Case("groups_of_four_strided", (2, 12, 13, 16), (12, 4, 3, 3), stride=(2, 2), groups=3),
]


@pytest.mark.parametrize("engine", ENGINES)
class TestEnginesOnHost(EngineTester):
    device = "cpu"  # where tensors are
    test_auto_is_one_of_the_engines = None  # needs the library

    @pytest.fixture
    def run(self, core: ModuleType, engine: str) -> Any:
        """Runs a problem; where the engine refuses it, checks that an explanation says why."""
        host = HostEngine(core, engine)

        def run(problem: Problem, direction: str) -> Tensor:
            explained = host.refusal(host.describe_explained(problem, direction))
            # An explanation knows nothing of how gradients lie in memory.
            foreseen = direction == "forward" or problem.layout in COMMON
            try:
                result = host.run(problem, direction)
            except RefusedError as refused:
                assert not foreseen or explained == str(refused)  # noqa: PT017
                pytest.skip(f"{engine} refuses: {refused}")
            if problem.x.numel() > 0:  # else no engine was asked
                assert not (explained and foreseen), f"{engine} did what it refuses: {explained}"
                elsewhere = host.run(problem, direction, before=1)
                assert torch.equal(elsewhere.nan_to_num(7), result.nan_to_num(7)), (
                    "at an odd address"
                )
            return result

        return run

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
    @pytest.mark.parametrize("math", ["float32", "tf32", "float16", "bfloat16"])
    @pytest.mark.parametrize("case", UNPADDED, ids=str)
    def test_nan_and_infinity_by_case(
        self, core: ModuleType, engine: str, case: Case, math: str, value: float
    ) -> None:
        """The tester's passes over all cases behind the first that is refused."""
        dtype = torch.float32 if math == "tf32" else getattr(torch, math)
        host = HostEngine(core, engine, "tf32" if math == "tf32" else "ieee")
        try:
            for direction, operand in (("forward", "x"), ("forward", "w"), ("input_grad", "y")):
                problem = Problem(case, dtype, COMMON[0], self.device)
                tensor = getattr(problem, operand)
                spot = [extent // 2 for extent in tensor.shape]
                if operand == "x":
                    spot[2:] = case.stride  # a pixel that some output reads
                tensor[tuple(spot)] = value
                check_nonfinite_on_host(host, problem, direction)
        except RefusedError as refused:
            pytest.skip(f"{engine} refuses: {refused}")

    @pytest.mark.parametrize("layout", COMMON, ids=str)
    @pytest.mark.parametrize("direction", ["forward", "input_grad"])
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_tf32(
        self, core: ModuleType, engine: str, case: Case, direction: str, layout: Layout
    ) -> None:
        problem = Problem(case, torch.float32, layout, self.device)
        x, w, b, y = problem.x, problem.w, problem.b, problem.y
        try:
            got = HostEngine(core, engine, "tf32").run(problem, direction)
        except RefusedError as refused:
            pytest.skip(f"{engine} refuses: {refused}")
        if direction == "forward":
            reference.check_forward(got, case, x, w, b, tf32=True)
        else:
            reference.check_gradients((got, None, None), case, x, w, y, tf32=True)


def test_a_single_column_may_have_any_stride(core: ModuleType) -> None:
    """PyTorch gives it that of a pixel where results are channels_last, and 1 elsewhere."""
    problem = Problem(*named("single_pixel"), torch.float32, COMMON[1], "cpu")
    host = HostEngine(core, "cuda_grouped")
    explained, called = (
        describe(problem, "input_grad")
        for describe in (host.describe_explained, host.describe_called)
    )
    assert explained.x_strides.tuple()[3] != called.x_strides.tuple()[3]
    assert host.refusal(explained) == host.refusal(called) == ""
    problem.check("input_grad", host.run(problem, "input_grad"))
