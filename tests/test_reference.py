"""The reference is checked once, against sums written out as in the definition."""

import pytest
import reference
import torch
from cases import CASES, EDGES, Case

TINY = [
    case
    for case in EDGES
    if case.y[0] * case.y[1] * case.y[2] * case.y[3] * case.w[1] * case.w[2] * case.w[3] < 30_000
]


def test_tiny_cases_cover_the_grid():
    assert len(TINY) >= 20
    assert {len(case.padding) for case in TINY} == {2, 4}
    assert any(case.groups > 1 for case in TINY)
    assert any(case.dilation != (1, 1) for case in TINY)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_reference_follows_the_definition(case: Case):
    x, w, b = case.tensors(torch.float64)
    want = reference.conv2d_by_definition(case, x, w, b)
    torch.testing.assert_close(reference.conv2d(case, x, w, b), want, rtol=1e-12, atol=1e-12)


def test_case_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("dtype", "error"),
    [(torch.float32, 1e-3), (torch.float16, 1e-2), (torch.bfloat16, 5e-2), (torch.float64, 1e-11)],
    ids=str,
)
def test_tolerances_catch_small_errors(dtype: torch.dtype, error: float):
    case = EDGES[0]
    x, w, b = case.tensors(dtype)
    want = reference.conv2d(case, x, w, b)
    reference.check_forward(want.to(dtype), case, x, w, b)
    with pytest.raises(AssertionError, match="elements are wrong"):
        reference.check_forward((want + error * want.abs().max()).to(dtype), case, x, w, b)
