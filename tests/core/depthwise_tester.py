"""Runs the depthwise kernels on the host, from their own source, against float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import reference
import torch
from cases import Case, draw
from kernel_tester import Guarded, make_problem
from problems import h200

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def depthwise(
    name: str, n: int, c: int, h: int, w: int, r: int, s: int, m: int = 1, **rest: Any
) -> Case:
    return Case(name, (n, c, h, w), (c * m, 1, r, s), groups=c, **rest)


def run_and_check(
    core: ModuleType,
    case: Case,
    dtype: torch.dtype,
    format: str,
    before: int = 0,
    direction: str = "forward",
    caps: Any = None,
) -> dict[str, Any]:
    channels_last = format == "nhwc"
    problem = make_problem(core, case, dtype, channels_last)
    problem.pass_ = getattr(core.Pass, direction)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    forward = direction == "forward"
    if forward:
        y = torch.zeros_like(y)
    elif direction == "input_grad":
        x = torch.zeros_like(x)
    else:
        w = torch.full_like(w, torch.nan)
    guarded_x, guarded_y = Guarded(x, channels_last, before), Guarded(y, channels_last, before)
    said = core.run_depthwise(
        problem,
        h200(core) if caps is None else caps,
        guarded_x.tensor.data_ptr(),
        w.data_ptr(),
        guarded_y.tensor.data_ptr(),
        0 if b is None else b.data_ptr(),
    )
    assert said is not None, f"{case}: no tile fits"
    if forward:
        reference.check_forward(guarded_y.tensor, case, x, w, b)
    elif direction == "input_grad":
        reference.check_gradients((guarded_x.tensor, None, None), case, draw(case.x), w, y)
    else:
        reference.check_gradients((None, w, None), case, x, draw(case.w), y)
    assert guarded_x.is_whole()
    assert guarded_y.is_whole()
    results = {"forward": guarded_y.tensor, "input_grad": guarded_x.tensor, "weight_grad": w}
    return {**said, "result": results[direction]}
