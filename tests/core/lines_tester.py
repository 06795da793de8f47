"""Runs cuda_lines on the host, from its own source, and checks what it computes."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import reference
import torch
from cases import Case, draw
from kernel_tester import Guarded, make_problem
from problems import h200

# Of float32 as halves, too.
MATH = ["ieee", "tf32", "bfloat16", "float16", "half ieee", "half tf32"]
CUTS = ["stretches", "strips", "rows", "pairs", "overlapping stretches", "overlapping rows"]
DIRECTIONS = ["forward", "input_grad"]


def run(
    core: ModuleType,
    case: Case,
    math: str,
    wish: dict[str, Any] | None = None,
    *,
    formats: tuple[bool, bool, bool] = (False, False, False),
    before: int = 0,
    source_before: int = 0,
    caps: Any = None,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None,
    direction: str = "forward",
) -> tuple[dict[str, Any] | None, torch.Tensor]:
    """(what it was fitted to, or None; the result)

    formats: whether what is read, weights and result are channels_last. before: elements that the
    result begins behind 64 bytes; source_before: the same of what is read. tensors: that, weights,
    bias.
    """
    dtype = getattr(torch, math) if "float" in math else torch.float32
    problem = make_problem(core, case, dtype)
    problem.pass_ = getattr(core.Pass, direction)
    problem.precision = core.Precision.tf32 if "tf32" in math else core.Precision.ieee
    if "half" in math:
        wish = {**(wish or {}), "half": True}
    source, w, b = tensors or operands(case, dtype, direction)
    forward = direction == "forward"
    target = torch.full(case.y if forward else case.x, torch.nan, dtype=dtype)
    names = "xwy" if forward else "ywx"
    tensors_of = zip(names, (source, w, target), formats, (source_before, 0, before), strict=True)
    guarded = {name: Guarded(values, last, ahead) for name, values, last, ahead in tensors_of}
    for name, operand in guarded.items():
        setattr(problem, f"{name}_strides", core.Strides(*operand.tensor.stride()))
    if caps is None:
        caps = h200(core)
        caps.sm_count = 2  # so that blocks have several tiles
    pointers = [guarded[name].tensor.data_ptr() for name in "xwy"]
    bias = 0 if b is None else b.data_ptr()
    said = core.run_lines(problem, caps, *pointers, bias, wish, before % 2 == 1)
    assert all(operand.is_whole() for operand in guarded.values())
    return said, guarded[names[2]].tensor


def operands(
    case: Case, dtype: torch.dtype, direction: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(what is read, weights, bias)"""
    x, w, b = case.tensors(dtype)
    return (x, w, b) if direction == "forward" else (case.grad_output(dtype), w, None)


def run_and_check(
    core: ModuleType,
    case: Case,
    math: str,
    wish: dict[str, Any] | None = None,
    *,
    direction: str = "forward",
    **options: Any,
) -> dict[str, Any] | None:
    said, got = run(core, case, math, wish, direction=direction, **options)
    if said is not None:
        source, w, b = operands(case, got.dtype, direction)
        tf32 = "tf32" in math
        if direction == "forward":
            reference.check_forward(got, case, source, w, b, tf32=tf32)
        else:
            x = draw(case.x)
            reference.check_gradients((got, None, None), case, x, w, source, tf32=tf32)
        assert not said.get("unfit", False)
    return said


def mirror(case: Case) -> Case:
    """Of a stride-1 case that whose input gradient sums the same. Padding may become negative."""
    assert case.stride == (1, 1)
    (k, c, r, s), groups = case.w, case.groups
    reach = [d * (taps - 1) for d, taps in zip(case.dilation, (r, s), strict=True)]
    top, bottom, left, right = case.pad4
    padding = (reach[0] - top, reach[0] - bottom, reach[1] - left, reach[1] - right)
    x, w = (case.y[0], k, *case.y[2:]), (c * groups, k // groups, r, s)
    mirrored = replace(case, x=x, w=w, padding=padding)
    assert mirrored.y == case.x
    return mirrored


def either_way(case: Case, direction: str) -> dict[str, Any]:
    """A case and a direction that sum what the case's own forward pass does, if there is one."""
    if direction == "input_grad" and case.stride == (1, 1) and min(mirror(case).padding) >= 0:
        return {"case": mirror(case), "direction": direction}
    return {"case": case, "direction": "forward"}
