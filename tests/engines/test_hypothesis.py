"""Any convolution at all: forward and gradients against float64, for generated problems."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import Case
from engine_tester import DIRECTIONS, DTYPES, Problem, engine_names
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS

import conv2d_ext

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """One axis: extent, kernel, stride, dilation and two paddings, with room for the kernel."""
    kernel = draw(st.integers(1, 5))
    dilation = draw(st.integers(1, 4))
    stride = draw(st.integers(1, 5))
    before, after = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    shortest = max(1, dilation * (kernel - 1) + 1 - before - after)
    return draw(st.integers(shortest, shortest + 14)), kernel, stride, dilation, before, after


@st.composite
def cases(draw: st.DrawFn) -> Case:
    h, r, stride_h, dilation_h, top, bottom = draw(axes())
    w, s, stride_w, dilation_w, left, right = draw(axes())
    groups = draw(st.integers(1, 4))
    channels_per_group = draw(st.integers(1, 9))
    filters_per_group = draw(st.integers(1, 9))
    return Case(
        "generated",
        (draw(st.integers(0, 3)), channels_per_group * groups, h, w),
        (filters_per_group * groups, channels_per_group, r, s),
        (stride_h, stride_w),
        (top, bottom, left, right),
        (dilation_h, dilation_w),
        groups,
        draw(st.booleans()),
    )


@SETTINGS
@given(
    case=cases(),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    data=st.data(),
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_forced_engine(direction, device, case, dtype, layout, data):
    problem = Problem(case, dtype, layout, device)
    engine = data.draw(st.sampled_from(engine_names(device)))
    if problem.refusal(direction, engine, device):
        return
    # From an input that is dense in both ways nobody can tell how its gradients lie in memory.
    foreseen = direction == "forward" or not (
        layout.result_channels_last and problem.x.is_contiguous()
    )
    try:
        result = problem.run(direction, engine)
    except RuntimeError as error:
        if foreseen or "cannot run this problem" not in str(error):
            raise
        return
    problem.check(direction, result)


@SETTINGS
@given(case=cases(), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS))
def test_function_forward_and_backward(device, case, dtype, layout):
    problem = Problem(case, dtype, layout, device)
    leaves = [t.requires_grad_() for t in (problem.x, problem.w, problem.b) if t is not None]
    bias = problem.b
    y = conv2d_ext.conv2d(problem.x, problem.w, bias, **case.geometry, precision="ieee")
    assert y.dtype == dtype
    grads = (*torch.autograd.grad(y, leaves, problem.y), None)[:3]
    x, w, b = (None if t is None else t.detach() for t in (problem.x, problem.w, bias))
    reference.check_forward(y.detach(), case, x, w, b)
    reference.check_gradients(grads, case, x, w, problem.y)
    for grad, leaf in zip(grads, leaves, strict=False):
        assert grad.shape == leaf.shape
        assert grad.dtype == dtype
