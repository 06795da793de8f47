"""Tests that every engine must pass, subclassed once per device.

Each engine is forced by name, so that the heuristic cannot hide a broken one.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import reference
import torch
from cases import CASES, SAMPLER, Case, named
from layouts import COMMON, LAYOUTS, UNCOMMON, Layout
from torch import Tensor

import conv2d_ext  # noqa: F401  (registers the operators)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DIRECTIONS = ["forward", "input_grad", "weight_grad"]

# Large enough to be split over threads or blocks in every direction.
LARGE = [
    Case("large", (2, 24, 40, 44), (40, 24, 3, 3), padding=(1, 1)),
    Case("large_strided", (3, 12, 41, 43), (18, 6, 3, 5), (2, 3), (1, 2), (2, 1), 2),
    Case("large_one_by_one", (2, 64, 28, 28), (72, 64, 1, 1)),
    Case("large_depthwise", (2, 48, 33, 35), (48, 1, 3, 3), padding=(1, 1), groups=48),
]


def explain(
    device: str,
    direction: str,
    case: Case,
    dtype: torch.dtype,
    x: Tensor,
    w: Tensor,
    algorithm: str = "auto",
    y: Tensor | None = None,
) -> dict[str, Any]:
    """The library's answer for a problem: its engine, and the refusals with their reasons. y is
    the output's gradient, if it has strides of its own."""
    text = getattr(torch.ops.convx, f"_explain_{device}")(
        direction,
        str(dtype).removeprefix("torch."),
        list(x.shape),
        list(x.stride()),
        list(w.shape),
        list(w.stride()),
        [] if y is None else list(y.stride()),
        case.bias,
        list(case.stride),
        list(case.padding),
        list(case.dilation),
        case.groups,
        "ieee",
        algorithm,
        0,
    )
    return json.loads(text)


@cache
def engine_names(device: str) -> tuple[str, ...]:
    """Every engine of a device; none where its library is not loaded, or there is no device."""
    if not hasattr(torch.ops.convx, f"_explain_{device}"):
        return ()
    if device == "cuda" and not torch.cuda.is_available():
        return ()
    (case,) = named("single_everything")
    x, w, _ = case.tensors()
    said = explain(device, "forward", case, torch.float32, x, w)
    return tuple(candidate["name"] for candidate in said["candidates"])


class Problem:
    """A case with its tensors in a layout, that can run in every direction."""

    def __init__(self, case: Case, dtype: torch.dtype, layout: Layout, device: str) -> None:
        x, w, b = case.tensors(dtype, device)
        self.case, self.layout = case, layout
        self.x, self.w, self.b = layout.x(x), layout.w(w), b
        self.y = layout.y(case.grad_output(dtype, device))

    def run(self, direction: str, engine: str, precision: str = "ieee") -> Tensor:
        ops, case = torch.ops.convx, self.case
        rest = (*case.scalars, precision, engine)
        into = self.layout.result_channels_last
        if direction == "forward":
            return ops._conv2d(self.x, self.w, self.b, *rest)
        if direction == "input_grad":
            return ops._conv2d_input_grad(self.y, self.w, *case.x[2:], into, *rest)
        return ops._conv2d_weight_grad(self.y, self.x, *case.w[2:], into, *rest)

    def want(self, direction: str) -> Tensor:
        if direction == "forward":
            return reference.conv2d(self.case, self.x, self.w, self.b)
        grads = reference.gradients(self.case, self.x, self.w, self.y)
        return grads.input if direction == "input_grad" else grads.weight

    def check(self, direction: str, got: Tensor) -> None:
        if direction == "forward":
            reference.check_forward(got, self.case, self.x, self.w, self.b)
        else:
            grads = (got, None) if direction == "input_grad" else (None, got)
            reference.check_gradients((*grads, None), self.case, self.x, self.w, self.y)

    def refusal(self, direction: str, engine: str, device: str) -> str:
        dtype, y = self.x.dtype, None if direction == "forward" else self.y
        said = explain(device, direction, self.case, dtype, self.x, self.w, engine, y)
        return next(c["refusal"] for c in said["candidates"] if c["name"] == engine)


def nonfinite(t: Tensor) -> Tensor:
    """Where a tensor has NaN, infinity and minus infinity."""
    t = reference.exact(t)
    return torch.stack([t.isnan(), t.isposinf(), t.isneginf()])


class EngineTester:
    device: str

    def make_problem(self, case: Case, dtype: torch.dtype, layout: Layout) -> Problem:
        return Problem(case, dtype, layout, self.device)

    @pytest.fixture
    def run(self, engine: str) -> Any:
        """Runs a problem; where the engine refuses it, checks that the error says why."""

        def run(problem: Problem, direction: str) -> Tensor:
            refusal = problem.refusal(direction, engine, self.device)
            # An explanation knows nothing of how gradients lie in memory.
            foreseen = direction == "forward" or problem.layout in COMMON
            try:
                result = problem.run(direction, engine)
            except RuntimeError as error:
                if "cannot run this problem" not in str(error) or (foreseen and not refusal):
                    raise
                assert f"algorithm='{engine}' cannot run" in str(error)  # noqa: PT017
                assert not foreseen or refusal in str(error)  # noqa: PT017
                pytest.skip(f"{engine} refuses: {refusal or error}")
            empty = problem.x.numel() == 0  # then no engine is asked
            assert not (refusal and foreseen) or empty, f"{engine} did what it refuses: {refusal}"
            return result

        return run

    @pytest.mark.parametrize("layout", COMMON, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_every_case(self, run, case, direction, dtype, layout):
        problem = self.make_problem(case, dtype, layout)
        problem.check(direction, run(problem, direction))

    @pytest.mark.parametrize("layout", UNCOMMON, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", [*SAMPLER, *named("empty_batch", "depthwise")], ids=str)
    def test_every_layout(self, run, case, direction, dtype, layout):
        problem = self.make_problem(case, dtype, layout)
        problem.check(direction, run(problem, direction))

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_operands_are_not_written(self, run, direction, layout):
        (case,) = named("four_sided_padding_strided")
        problem = self.make_problem(case, torch.float32, layout)
        before = [t.clone() for t in (problem.x, problem.w, problem.y)]
        run(problem, direction)
        for was, now in zip(before, (problem.x, problem.w, problem.y), strict=True):
            assert torch.equal(was, now)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", LARGE, ids=str)
    @pytest.mark.parametrize("layout", COMMON, ids=str)
    def test_large(self, run, case, direction, dtype, layout):
        problem = self.make_problem(case, dtype, layout)
        problem.check(direction, run(problem, direction))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("case", LARGE, ids=str)
    def test_repeats_are_bitwise_equal(self, run, case, direction, dtype):
        problem = self.make_problem(case, dtype, COMMON[0])
        first = run(problem, direction)
        for _ in range(3):
            assert torch.equal(run(problem, direction), first)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
    @pytest.mark.parametrize(
        ("direction", "operand"),
        [
            ("forward", "x"),
            ("forward", "w"),
            ("input_grad", "y"),
            ("input_grad", "w"),
            ("weight_grad", "x"),
            ("weight_grad", "y"),
        ],
    )
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nan_and_infinity_reach_what_they_should(self, run, direction, dtype, operand, value):
        """Without padding: a product with padding may or may not be computed.

        The input gradient reads zeros around grad_output wherever the kernel reaches over its
        edge, and they count as padding too: a weight that is not finite may show there.
        """
        cases = named("one_by_one", "stride_beyond_kernel", "groups_of_odd_sizes")
        cases.append(Case("dilated", (2, 5, 11, 13), (7, 5, 3, 3), dilation=(2, 3)))
        refused = 0
        for case in cases:
            for layout in COMMON:
                problem = self.make_problem(case, dtype, layout)
                tensor = getattr(problem, operand)
                spot = [extent // 2 for extent in tensor.shape]
                if operand == "x":
                    spot[2:] = case.stride  # a pixel that some output reads
                tensor[tuple(spot)] = value
                try:
                    result = run(problem, direction)
                except pytest.skip.Exception:  # the other cases may do
                    refused += 1
                    continue
                got = nonfinite(result)
                want = nonfinite(problem.want(direction))
                padded = (direction, operand) == ("input_grad", "w")
                assert torch.equal(got | want if padded else want, got), f"{case}, {layout}"
                assert want.any(), f"{case}: the value reached nothing"
        if refused == len(cases) * len(COMMON):
            pytest.skip("the engine refuses all of them")

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_auto_is_one_of_the_engines(self, direction):
        for case in CASES:
            problem = self.make_problem(case, torch.float32, COMMON[0])
            said = explain(self.device, direction, case, torch.float32, problem.x, problem.w)
            assert said["engine"] in engine_names(self.device), f"{case}: {said['error']}"
            got, chosen = (problem.run(direction, name) for name in ("auto", said["engine"]))
            assert torch.equal(got, chosen), f"{case}: auto is not {said['engine']}"


def parametrize_engines(metafunc: pytest.Metafunc) -> None:
    """Every test of an EngineTester runs once per engine of its device."""
    is_tester = metafunc.cls is not None and issubclass(metafunc.cls, EngineTester)
    if is_tester and "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engine_names(metafunc.cls.device))
