"""The depthwise weight gradients of channels_last tensors, run on the host."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from cases import Case
from depthwise_tester import DTYPES, depthwise, run_and_check
from kernel_tester import make_problem
from problems import h200

# Weight gradients of channels_last, and the kernel that computes them: taps and stride.
PIXEL_GRADIENTS = [
    (depthwise("dw3", 2, 12, 20, 32, 3, 3, padding=(1, 1)), (3, 1)),
    (depthwise("dw3_valid", 2, 70, 13, 19, 3, 3), (3, 1)),
    (depthwise("dw3_odd_channels", 2, 67, 9, 11, 3, 3, padding=(1, 1)), (3, 1)),
    (depthwise("dw3_of_7", 9, 40, 7, 7, 3, 3, padding=(1, 1)), (3, 1)),
    (depthwise("dw3_one_pixel", 3, 8, 1, 1, 3, 3, padding=(1, 1)), (3, 1)),
    (depthwise("dw3_more_padding", 2, 8, 9, 10, 3, 3, padding=(5, 3, 4, 2)), (3, 1)),
    (depthwise("dw3_stride_two", 2, 36, 28, 28, 3, 3, stride=(2, 2), padding=(1, 1)), (3, 2)),
    (depthwise("dw5", 2, 20, 15, 14, 5, 5, padding=(2, 2)), (5, 1)),
    (depthwise("dw5_stride_two", 1, 20, 15, 14, 5, 5, stride=(2, 2), padding=(2, 2)), (5, 2)),
    (depthwise("dw7", 1, 96, 14, 14, 7, 7, padding=(3, 3)), (7, 1)),
    (depthwise("dw_row", 1, 16, 5, 40, 1, 31, padding=(0, 15)), None),
    (depthwise("dw_column", 1, 16, 40, 5, 31, 1, padding=(15, 0)), None),
    (depthwise("dw13", 1, 6, 17, 20, 13, 13, padding=(6, 6)), None),
    (depthwise("dw1", 2, 16, 6, 7, 1, 1), (3, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("case", "core_shape"), PIXEL_GRADIENTS, ids=lambda value: str(value))
def test_weight_gradients_of_channels_last(
    core: ModuleType, case: Case, core_shape: tuple[int, int] | None, dtype: torch.dtype
) -> None:
    small = h200(core)
    small.sm_count = 1  # several items for each block
    run = partial(run_and_check, core, case, dtype, "nhwc", direction="weight_grad")
    run()
    few = run(caps=small)
    assert core_shape is None or few["core"] == core_shape
    if case.x[1] % 8 == 0:
        assert few["unit"] * dtype.itemsize == 16
    elsewhere = run(before=1, caps=small)
    assert elsewhere["unit"] == 1
    if not few["rows"]:
        assert torch.equal(elsewhere["result"], few["result"])


# Weight gradients of channels_last that keep a row of taps in each thread.
ROW_GRADIENTS = [
    depthwise("dw5", 2, 20, 15, 14, 5, 5, padding=(2, 2)),
    depthwise("dw5_more_padding", 2, 8, 9, 10, 5, 5, padding=(5, 3, 4, 7)),
    depthwise("dw5_one_pixel", 3, 8, 1, 1, 5, 5, padding=(2, 2)),
    depthwise("dw5_stride_two", 1, 20, 15, 14, 5, 5, stride=(2, 2), padding=(2, 2)),
    depthwise("dw5_stride_two_odd", 1, 12, 15, 13, 5, 5, stride=(2, 2), padding=(0, 1, 2, 4)),
    depthwise("dw7_of_7", 2, 96, 7, 7, 7, 7, padding=(3, 3)),
    depthwise("dw7_chunks", 1, 150, 7, 5, 7, 7, padding=(3, 3)),
    depthwise("dw7_cropped", 1, 8, 16, 16, 7, 7, padding=(0, 0, 3, 3)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ROW_GRADIENTS, ids=str)
def test_weight_gradients_by_rows(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    """One block writes dW itself where it has all items; tiles serve odd addresses."""
    run = partial(run_and_check, core, case, dtype, "nhwc", direction="weight_grad")
    said = run()
    assert said["rows"]
    assert torch.equal(run(before=2)["result"], said["result"])
    assert not run(before=1)["rows"]


def test_partial_sums_by_rows(core: ModuleType) -> None:
    """Several blocks share the items of some channels."""
    case = depthwise("dw7_of_7", 24, 16, 7, 7, 7, 7, padding=(3, 3))
    for dtype in DTYPES:
        said = run_and_check(core, case, dtype, "nhwc", direction="weight_grad")
        assert said["rows"]
        assert said["row_parts"] > 1


# Weight gradients of channels_last that TMA copies.
BOX_GRADIENTS = [
    depthwise("box3", 2, 64, 21, 37, 3, 3, padding=(1, 1)),
    depthwise("box3_valid", 3, 128, 9, 14, 3, 3),
    depthwise("box3_chunks", 2, 192, 9, 11, 3, 3, padding=(1, 1)),
    depthwise("box3_more_padding", 2, 64, 9, 10, 3, 3, padding=(5, 3, 4, 2)),
    depthwise("box3_stride_two", 2, 64, 28, 29, 3, 3, stride=(2, 2), padding=(1, 1)),
    depthwise("box3_stride_three", 2, 64, 22, 29, 3, 3, stride=(3, 3), padding=(1, 1)),
    depthwise("box3_dilated", 2, 64, 18, 17, 3, 3, dilation=(2, 3), padding=(2, 3)),
    depthwise("box3_of_96_bytes", 2, 144, 13, 15, 3, 3, stride=(2, 2), padding=(1, 1)),
    depthwise("box5", 2, 64, 15, 14, 5, 5, padding=(2, 2)),
    depthwise("box7", 2, 64, 15, 17, 7, 7, padding=(3, 3)),
    depthwise("box13", 1, 64, 15, 17, 13, 13, padding=(6, 6)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", BOX_GRADIENTS, ids=str)
def test_weight_gradients_by_boxes(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    for sm_count in (1, 132):
        caps = h200(core)
        caps.sm_count = sm_count
        run = partial(run_and_check, core, case, dtype, "nhwc", direction="weight_grad")
        boxes = run(caps=caps)
        # In 16 bits the planner prefers narrow pixels for some, which are no whole 128 bytes.
        assert boxes["boxes"] or (dtype.itemsize == 2 and case.stride == (3, 3))
        elsewhere = run(before=1, caps=caps)  # not aligned to 16 bytes
        assert not elsewhere["boxes"]
        if not boxes["rows"]:
            assert torch.equal(elsewhere["result"], boxes["result"])


# Weight gradients of groups of few channels, in strips: each pair of a filter and a channel has its
# own.
GROUP_GRADIENTS = [
    Case("groups_of_four", (3, 12, 20, 32), (12, 4, 3, 3), groups=3, padding=(1, 1)),
    Case("groups_of_two_to_three", (2, 6, 9, 16), (9, 2, 3, 3), groups=3, padding=(1, 1)),
    Case(
        "groups_stride_two",
        (2, 8, 16, 16),
        (16, 4, 3, 3),
        groups=2,
        stride=(2, 2),
        padding=(1, 1),
    ),
    Case("groups_one_row", (1, 8, 8, 32), (8, 4, 3, 3), groups=2, padding=(0, 1, 1, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GROUP_GRADIENTS, ids=str)
def test_weight_gradients_of_groups(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    small = h200(core)
    small.sm_count = 1  # several strips for each thread
    run = partial(run_and_check, core, case, dtype, "nchw", direction="weight_grad")
    said = run()
    assert said["strips"] > 0
    assert torch.equal(run(before=1)["result"], said["result"])  # other loads, the same sums
    run(caps=small)


def test_large_groups_have_no_strips(core: ModuleType) -> None:
    case = Case("groups_of_32", (1, 64, 8, 8), (64, 32, 3, 3), groups=2, padding=(1, 1))
    problem = make_problem(core, case, torch.float32, False)
    problem.pass_ = core.Pass.weight_grad
    assert core.refuse("cuda_depthwise", problem, h200(core)) == (
        "a group has more than 16 channels or filters"
    )
