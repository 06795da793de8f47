"""The bias gradient, which no engine owns."""

import pytest
import reference
import torch
from cases import CASES, SAMPLER, Case
from engine_tester import DTYPES, LARGE, Problem
from layouts import COMMON, LAYOUTS

# A sum that 16-bit accumulation would stop growing in.
LONG = Case("long_sum", (3, 1, 70, 80), (2, 1, 1, 1))


def check(problem: Problem) -> None:
    got = torch.ops.convx._conv2d_bias_grad(problem.y)
    y = reference.exact(problem.y)
    want, magnitude = (t.sum((0, 2, 3)) for t in (y, y.abs()))
    length = reference.reduction_length(problem.case, "bias_grad")
    reference.check(got, want, magnitude, length, f"{problem.case} bias_grad")


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *LARGE, LONG], ids=str)
def test_every_case(case, dtype, layout, device):
    check(Problem(case, dtype, layout, device))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout(dtype, layout, device):
    for case in [*SAMPLER, LONG]:
        check(Problem(case, dtype, layout, device))
