"""The CPU engines, each forced by name."""

import pytest
import torch
from cases import CASES
from engine_tester import (
    DIRECTIONS,
    DTYPES,
    LARGE,
    EngineTester,
    Problem,
    engine_names,
    parametrize_engines,
)
from layouts import COMMON

pytest_generate_tests = parametrize_engines


def test_names():
    assert {"cpu_gemm", "cpu_direct"} <= set(engine_names("cpu"))


class TestCpuEngines(EngineTester):
    device = "cpu"

    @pytest.mark.parametrize("layout", COMMON, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", LARGE, ids=str)
    def test_thread_counts_are_bitwise_equal(self, engine, case, direction, dtype, layout):
        problem = Problem(case, dtype, layout, self.device)
        torch.set_num_threads(1)
        alone = problem.run(direction, engine)
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(problem.run(direction, engine), alone), f"{threads} threads"

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_more_threads_than_work(self, engine, case, direction):
        torch.set_num_threads(7)
        problem = Problem(case, torch.float32, COMMON[0], self.device)
        problem.check(direction, problem.run(direction, engine))


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_gradient_is_bitwise_equal_across_thread_counts(dtype, layout):
    grad_output = layout.y(LARGE[0].grad_output(dtype))
    torch.set_num_threads(1)
    alone = torch.ops.convx._conv2d_bias_grad(grad_output)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(torch.ops.convx._conv2d_bias_grad(grad_output), alone)
