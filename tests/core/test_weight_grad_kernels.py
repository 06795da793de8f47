"""The kernels of cuda_weight_grad, run on the host from their own source."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
import reference
import torch
from cases import CASES as GRID
from cases import Case
from engine_tester import Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host, check_weight_grad_of
from kernel_tester import MATH, make_problem
from layouts import COMMON
from problems import h200

CHANNELS_LAST = COMMON[1]

CASES = [
    Case("one_tile", (1, 64, 8, 8), (64, 64, 3, 3), padding=(1, 1)),
    Case("two_filter_tiles", (2, 32, 9, 7), (130, 32, 3, 3), padding=(1, 1)),
    Case("two_channel_tiles", (2, 72, 9, 7), (24, 72, 3, 3), padding=(1, 1)),
    Case("dilated", (1, 40, 12, 13), (16, 40, 3, 3), padding=(2, 3), dilation=(2, 3)),
    Case("far_dilated", (1, 16, 20, 70), (16, 16, 3, 3), padding=(6, 30), dilation=(6, 30)),
    Case("strided", (2, 24, 15, 14), (40, 24, 3, 3), (2, 2), (1, 1)),
    Case("stem", (2, 3, 23, 29), (24, 3, 7, 7), (2, 2), (3, 3)),
    Case("stem_of_four", (1, 3, 35, 37), (16, 3, 11, 11), (4, 4), (2, 2)),
    Case("asymmetric", (1, 32, 14, 20), (64, 32, 5, 9)),
    Case("column_kernel", (1, 24, 20, 9), (24, 24, 7, 1), padding=(3, 0)),
    Case("pairs_of_taps", (2, 200, 7, 9), (72, 200, 2, 1)),
    Case("one_by_one_in_groups", (2, 96, 7, 9), (72, 48, 1, 1), groups=2),
    Case("one_by_one_strided", (2, 24, 9, 10), (40, 24, 1, 1), (2, 2)),
    Case("groups_of_four", (2, 64, 9, 11), (64, 4, 3, 3), padding=(1, 1), groups=16),
    Case("groups_of_48", (1, 96, 9, 11), (144, 48, 3, 3), padding=(1, 1), groups=2),
    Case("four_sides", (2, 16, 7, 8), (16, 16, 3, 4), padding=(0, 2, 3, 1)),
    Case("long_rows", (1, 8, 3, 301), (8, 8, 3, 3), padding=(1, 1)),
]


class PositionEngine(HostEngine):
    """cuda_weight_grad without its row kernel, whatever the plan would choose."""

    def __init__(self, core: ModuleType, precision: str) -> None:
        super().__init__(core, "cuda_weight_grad", precision)
        self.run_kernel = core.run_weight_grad_positions


def check(host: HostEngine, problem: Problem, before: int = 0) -> None:
    tf32 = host.precision == "tf32"
    result = host.run(problem, "weight_grad", before)
    reference.check_gradients(
        (None, result, None), problem.case, problem.x, problem.w, problem.y, tf32=tf32
    )


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_gradients(core: ModuleType, case: Case, math, layout) -> None:
    check(PositionEngine(core, math[1]), Problem(case, math[0], layout, "cpu"))


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_every_case(core: ModuleType, case: Case, math) -> None:
    host = HostEngine(core, "cuda_weight_grad", math[1])
    try:
        check(host, Problem(case, math[0], COMMON[0], "cpu"), before=1)
    except RefusedError as refused:
        pytest.skip(str(refused))


@pytest.mark.parametrize("sm_count", [2, 8])
@pytest.mark.parametrize("math", MATH, ids=str)
def test_several_rounds(core: ModuleType, math, sm_count: int) -> None:
    """A small workspace makes several rounds, which add to the same partial sums."""
    host = PositionEngine(core, math[1])
    host.caps.workspace_limit = 700 << 10
    host.caps.sm_count = sm_count
    case = Case("rounds", (3, 16, 40, 60), (64, 16, 3, 3), padding=(1, 1))
    problem = Problem(case, math[0], COMMON[0], "cpu")
    planned = plan_positions(host, problem)
    assert planned["rounds"] > 1
    assert not planned["writes_result"]
    check(host, problem)


CLUSTERS = [
    Case("dense", (3, 40, 21, 26), (72, 40, 3, 3), padding=(1, 1)),
    Case("few_filters", (6, 24, 20, 22), (3, 24, 3, 3), padding=(1, 1)),
    Case("five_by_five", (3, 24, 20, 22), (70, 24, 5, 5), padding=(2, 2)),
    Case("grouped", (4, 48, 20, 22), (60, 16, 3, 3), padding=(1, 1), groups=3),
    Case("stem", (2, 3, 63, 59), (24, 3, 7, 7), (2, 2), (3, 3)),
]


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CLUSTERS, ids=str)
def test_clusters_write_the_result(core: ModuleType, case: Case, math, layout) -> None:
    """The slices of a tile are the blocks of a cluster, one of which reads NaN."""
    host = PositionEngine(core, math[1])
    problem = Problem(case, math[0], layout, "cpu")
    planned = plan_positions(host, problem)
    if planned["gradient_source"] == CONVERTED:
        pytest.skip("converting blocks form no clusters")
    assert planned["writes_result"]
    assert planned["slices"] > 1
    check(host, problem)
    problem.x[1, 1, 4, 6] = torch.nan
    check_nonfinite_on_host(host, problem, "weight_grad")


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("images", [1, 2, 3, 22, 31])
@pytest.mark.parametrize("filters", [40, 136])
def test_gaps_at_the_end_of_images_are_left_out(
    core: ModuleType, dtype, images: int, filters: int, layout
) -> None:
    """Images of 8 x 8 positions, the last row of which is a gap: two of them take seven MMAs."""
    host = PositionEngine(core, "ieee")
    case = Case("seven_by_seven", (images, 48, 7, 7), (filters, 48, 3, 3), padding=(1, 1))
    problem = Problem(case, dtype, layout, "cpu")
    assert plan_positions(host, problem)["images_end_in_gaps"]
    check(host, problem)
    problem.y[images - 1, 9, 5, 3] = torch.inf  # reaches no border, where float64 has 0 * inf
    check_nonfinite_on_host(host, problem, "weight_grad")


def plan_positions(host: HostEngine, problem: Problem) -> dict[str, int]:
    called = host.describe_called(problem, "weight_grad")
    return host.core.plan_weight_grad_positions(called, host.caps)


def plan(host: HostEngine, problem: Problem) -> dict[str, int]:
    return host.core.plan_weight_grad(host.describe_called(problem, "weight_grad"), host.caps)


PACKED, PIXELS, CONVERTED, ROWS = range(4)  # OperandSource


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (0, 2, 3, 1)], ids=str)
def test_channels_last_is_read_in_place(core: ModuleType, dtype, stride, padding) -> None:
    host = HostEngine(core, "cuda_weight_grad", "ieee")
    case = Case("in_place", (3, 72, 11, 13), (40, 72, 3, 3), stride, padding)
    problem = Problem(case, dtype, CHANNELS_LAST, "cpu")
    planned = plan(host, problem)
    assert (planned["input_source"], planned["gradient_source"]) == (PIXELS, PIXELS)
    check(host, problem)


def test_one_by_one_in_channels_last(core: ModuleType) -> None:
    host = HostEngine(core, "cuda_weight_grad", "ieee")
    case = Case("one_by_one", (2, 48, 7, 9), (72, 48, 1, 1))
    check(host, Problem(case, torch.bfloat16, CHANNELS_LAST, "cpu"))


CONVERTED_CASES = [
    Case("one_by_one", (3, 64, 13, 17), (128, 64, 1, 1)),
    Case("one_by_one_of_many", (2, 136, 12, 11), (72, 136, 1, 1)),
    Case("one_by_one_of_few", (2, 12, 12, 11), (8, 12, 1, 1)),
    Case("one_by_one_padded", (2, 24, 9, 10), (40, 24, 1, 1), padding=(0, 2, 3, 1)),
    Case("one_by_one_strided", (2, 24, 9, 10), (40, 24, 1, 1), (2, 3)),
    Case("one_by_one_in_groups", (2, 96, 7, 9), (72, 48, 1, 1), groups=2),
    Case("dense", (3, 64, 15, 14), (64, 64, 3, 3), padding=(1, 1)),
    Case("strided", (2, 24, 15, 14), (40, 24, 3, 3), (2, 2), (1, 1)),
    Case("dilated", (1, 40, 12, 13), (16, 40, 3, 3), padding=(2, 3), dilation=(2, 3)),
]


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("case", CONVERTED_CASES, ids=str)
def test_float32_in_channels_last_is_converted_by_blocks(
    core: ModuleType, case: Case, precision: str
) -> None:
    host = HostEngine(core, "cuda_weight_grad", precision)
    problem = Problem(case, torch.float32, CHANNELS_LAST, "cpu")
    host.caps.sm_count = 3  # several stages for each block
    if case.w[2:] == (1, 1):
        host.caps.workspace_limit = 250 << 10  # packing is predicted to be faster, and needs more
    assert plan(host, problem)["gradient_source"] == CONVERTED
    check(host, problem)
    if case.w[2:] == (1, 1):
        check(host, problem, before=1)  # TMA cannot read it


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_one_by_one_of_many_filters_is_transposed(core: ModuleType, precision: str) -> None:
    """X and dY change places where that makes MMAs wider."""
    host = HostEngine(core, "cuda_weight_grad", precision)
    host.caps.sm_count = 1
    host.caps.workspace_limit = 300 << 10  # packing is predicted to be faster, and needs more
    case = Case("to_many", (2, 40, 9, 11), (264, 40, 1, 1))
    problem = Problem(case, torch.float32, CHANNELS_LAST, "cpu")
    assert plan(host, problem)["is_transposed"]
    check(host, problem)
    problem.x[1, 7, 4, 6] = torch.inf
    check_nonfinite_on_host(host, problem, "weight_grad")


def test_chains_of_components_are_flushed(core: ModuleType) -> None:
    """TF32 as two bfloat16 components adds to the partial sums in memory now and then."""
    host = HostEngine(core, "cuda_weight_grad", "tf32")
    host.caps.sm_count = 1
    case = Case("long", (2, 8, 83, 80), (8, 8, 1, 1))
    problem = Problem(case, torch.float32, CHANNELS_LAST, "cpu")
    problem.x[:, 5] *= 1e9  # what scaled float16 cannot hold
    problem.y[:, 3] /= 1e9
    planned = plan(host, problem)
    assert planned["stages_total"] > 2 * planned["exact_flush_stages"]
    check(host, problem)


@pytest.mark.parametrize("factor", [1, 1e9, 1e-15, torch.inf], ids=str)
@pytest.mark.parametrize(
    ("case", "sm_count"),
    [
        (Case("dense", (4, 32, 32, 32), (128, 32, 3, 3), padding=(1, 1)), 8),
        (Case("strided", (4, 32, 24, 24), (64, 32, 5, 5), (2, 2), (2, 2)), 2),
    ],
    ids=str,
)
def test_blocks_convert_to_scaled_fp16(
    core: ModuleType, case: Case, sm_count: int, factor: float
) -> None:
    """Values that it cannot hold are found by the blocks, and multiplied as bfloat16 components."""
    host = HostEngine(core, "cuda_weight_grad", "tf32")
    host.caps.sm_count = sm_count
    problem = Problem(case, torch.float32, CHANNELS_LAST, "cpu")
    planned = plan(host, problem)
    assert planned["gradient_source"] == CONVERTED
    assert planned["is_scaled"]
    if factor == 1:
        check(host, problem, before=1)  # TMA cannot read it
    problem.x[:, 5] *= factor
    if factor == torch.inf:
        check_nonfinite_on_host(host, problem, "weight_grad")
        return
    problem.y[:, 3] /= factor
    check(host, problem)


@pytest.mark.parametrize("operand", ["x", "y"])
def test_misaligned_tensors_are_packed(core: ModuleType, operand: str) -> None:
    """TMA reads from addresses that are multiples of 16 bytes; the plan does not know addresses."""
    host = HostEngine(core, "cuda_weight_grad", "ieee")
    case = Case("misaligned", (2, 24, 9, 8), (16, 24, 3, 3), padding=(1, 1))
    problem = Problem(case, torch.bfloat16, CHANNELS_LAST, "cpu")
    assert plan(host, problem)["input_source"] == PIXELS
    tensor = getattr(problem, operand)
    shifted = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    shifted = shifted.as_strided(tensor.size(), tensor.stride(), 1)
    shifted.copy_(tensor)
    assert shifted.data_ptr() % 16 != 0
    setattr(problem, operand, shifted)
    check(host, problem)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_that_cannot_be_copied_are_packed(core: ModuleType, dtype, before: int) -> None:
    """Rows are copied from addresses that are multiples of 4 bytes."""
    host = HostEngine(core, "cuda_weight_grad", "tf32")
    case = Case("rows", (1, 32, 2, 1537), (128, 32, 1, 1))
    problem = Problem(case, dtype, COMMON[0], "cpu")
    assert plan(host, problem)["input_source"] == ROWS
    check(host, problem, before)


def test_converting_blocks_form_no_clusters(core: ModuleType) -> None:
    """One that finds values that do not fit returns early, and others would wait for it."""
    host = HostEngine(core, "cuda_weight_grad", "tf32")
    host.caps.sm_count = 2
    case = Case("dense", (4, 32, 24, 24), (64, 32, 3, 3), padding=(1, 1))
    problem = Problem(case, torch.float32, CHANNELS_LAST, "cpu")
    planned = plan(host, problem)
    assert (
        planned["gradient_source"] != CONVERTED
        or planned["slices"] == 1
        or (not planned["writes_result"])
    )
    check(host, problem)


@pytest.mark.parametrize(
    ("shape", "padding"),
    [((2, 12, 9, 8), (1, 1)), ((1, 16, 3, 200), (0, 150))],
    ids=["channels_not_a_multiple_of_8", "wide_border"],
)
def test_what_tma_cannot_read_is_packed(core: ModuleType, shape, padding) -> None:
    host = HostEngine(core, "cuda_weight_grad", "ieee")
    case = Case("packed", shape, (16, shape[1], 3, 3), padding=padding)
    problem = Problem(case, torch.bfloat16, CHANNELS_LAST, "cpu")
    assert plan(host, problem)["input_source"] == PACKED
    check(host, problem)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_infinities_reach_what_they_should(core: ModuleType, math, value: float) -> None:
    case = Case("dilated", (2, 16, 9, 11), (16, 16, 3, 3), dilation=(2, 1))
    check_weight_grad_of(HostEngine(core, "cuda_weight_grad", math[1]), case, math[0], value)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("factor", [1e9, 1e-15, 1e18], ids=str)
def test_wide_ranges(core: ModuleType, precision: str, factor: float) -> None:
    """Values that scaled float16 cannot hold are multiplied as bfloat16 components."""
    host = HostEngine(core, "cuda_weight_grad", precision)
    case = Case("wide", (2, 16, 9, 11), (24, 16, 3, 3), padding=(1, 1))
    problem = Problem(case, torch.float32, COMMON[0], "cpu")
    problem.x[:, 5] *= factor
    problem.y[:, 3] /= factor
    check(host, problem)


def test_what_it_leaves_to_others(core: ModuleType) -> None:
    def refusal(
        case: Case, dtype: torch.dtype, direction: str = "weight_grad", layout=COMMON[0]
    ) -> str:
        host = HostEngine(core, "cuda_weight_grad")
        problem = Problem(case, dtype, layout, "cpu")
        return host.refusal(host.describe_called(problem, direction))

    dense = CASES[0]
    assert refusal(dense, torch.float32) == ""
    assert "weight gradient only" in refusal(dense, torch.float32, "forward")
    assert "float64" in refusal(dense, torch.float64)
    # 1x1 layers that it would have to pack.
    for channels, dtype, refused in (
        (24, torch.bfloat16, False),
        (25, torch.bfloat16, True),
        (24, torch.float32, False),
        (25, torch.float32, True),
    ):
        pointwise = Case("one_by_one", (2, channels, 7, 9), (8, channels, 1, 1))
        assert refusal(pointwise, dtype) == ""
        assert ("cuda_gemm" in refusal(pointwise, dtype, layout=CHANNELS_LAST)) == refused
    large = Case("large_kernel", (1, 4, 40, 40), (4, 4, 33, 33))
    assert "no tile fits" in refusal(large, torch.bfloat16)
    # More elements of dW than the workspace has room for.
    problem = make_problem(
        core, Case("wide", (1, 1 << 20, 2, 2), (1 << 20, 1 << 20, 2, 2)), torch.float16
    )
    problem.pass_ = core.Pass.weight_grad
    assert "no tile fits" in core.refuse("cuda_weight_grad", problem, h200(core))


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        (Case("dense", (64, 64, 56, 56), (64, 64, 3, 3), padding=(1, 1)), "cuda_weight_grad"),
        (Case("stem", (64, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3)), "cuda_weight_grad"),
        (
            Case("depthwise", (64, 96, 56, 56), (96, 1, 7, 7), (1, 1), (3, 3), (1, 1), 96),
            "cuda_depthwise",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_where_it_is_chosen(core: ModuleType, case: Case, engine: str, math) -> None:
    problem = make_problem(core, case, math[0])
    problem.pass_ = core.Pass.weight_grad
    problem.precision = getattr(core.Precision, math[1])
    problem.has_bias = False
    assert json.loads(core.choose("cuda", problem, h200(core), "auto"))["engine"] == engine
