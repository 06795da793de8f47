"""cuda_gemm where 1x1 layers are multiplied as they lie, run on the host from its own source.

Its kernels are its own, its products those of an emulated cuBLAS (emulated_cuda/cublas_v2.h). What
other layers are made of, test_emulated_engines.py runs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from kernel_tester import Guarded, make_problem
from problems import h200

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DIRECTIONS = ["forward", "input_grad", "weight_grad"]
CASES = [
    Case("one_by_one", (3, 24, 9, 30), (20, 24, 1, 1)),
    Case("several_segments", (3, 20, 40, 50), (12, 20, 1, 1)),
    Case("groups", (2, 24, 30, 40), (18, 12, 1, 1), groups=2),
    Case("odd_channels", (2, 7, 33, 35), (5, 7, 1, 1), bias=False),
    Case("one_channel", (1, 1, 40, 30), (3, 1, 1, 1)),
    Case("one_pixel", (5, 16, 1, 1), (9, 16, 1, 1)),
]


def run(
    core: ModuleType, case: Case, dtype: torch.dtype, direction: str, caps: Any, last: bool = True
) -> tuple[dict[str, Any], torch.Tensor]:
    """(what it said, the result), checked; last: of tensors that are channels_last"""
    problem = make_problem(core, case, dtype, last)
    problem.pass_ = getattr(core.Pass, direction)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    side = {"forward": "y", "input_grad": "x", "weight_grad": "w"}[direction]
    tensors = {"x": x, "w": w, "y": y}
    tensors[side] = torch.full_like(tensors[side], torch.nan)
    guarded = {name: Guarded(t, last and name != "w") for name, t in tensors.items()}
    pointers = [guarded[name].tensor.data_ptr() for name in "xwy"]
    bias = 0 if b is None else b.data_ptr()
    said = core.run_gemm(problem, caps, *pointers, bias)
    assert not isinstance(said, str), said
    assert all(operand.is_whole() for operand in guarded.values())
    got = guarded[side].tensor
    if direction == "forward":
        reference.check_forward(got, case, x, w, b)
    else:
        grads = (got, None) if direction == "input_grad" else (None, got)
        reference.check_gradients((*grads, None), case, x, w, y)
    return said, got


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_channels_last(core: ModuleType, case: Case, dtype: torch.dtype, direction: str) -> None:
    said, _ = run(core, case, dtype, direction, h200(core))
    staged = direction == "forward" and case.bias and dtype.itemsize == 2
    # A single channel, or a single pixel, lies in either format.
    assert said["pixels_in_place"] != staged


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_products_that_have_no_room_to_wait(core: ModuleType, last: bool) -> None:
    """Weight gradients of segments are added up in more goes, or one by one."""
    case = Case("segments", (9, 20, 40, 50), (12, 20, 1, 1))
    caps = h200(core)
    many, want = run(core, case, torch.float32, "weight_grad", caps, last)
    caps.workspace_limit = many["workspace_bytes"] // 2
    fewer, got = run(core, case, torch.float32, "weight_grad", caps, last)
    assert fewer["workspace_bytes"] < many["workspace_bytes"]
    assert not torch.equal(got, want)  # another order
    caps.workspace_limit = 1024
    single, _ = run(core, case, torch.float32, "weight_grad", caps, last)
    assert single["workspace_bytes"] <= 1024
