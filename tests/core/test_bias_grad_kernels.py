"""The kernels of the bias gradient, run on the host from their own source.

With integers so small that every sum is exact, an element that is left out or read twice shows.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import layouts
import pytest
import torch
from host_engines import place
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def integers(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 6, size, generator=random).to(dtype)


def run(core: ModuleType, y: Tensor, descending: bool = False) -> tuple[Tensor, dict[str, Any]]:
    """grad_bias, whose surroundings stay as they are, and how it was computed."""
    problem = core.ConvProblem()
    problem.dtype = getattr(core.DType, str(y.dtype).removeprefix("torch."))
    problem.N, problem.K, problem.P, problem.Q = y.shape
    problem.y_strides = core.Strides(*y.stride())
    channels, margin = y.shape[1], 16
    memory = torch.full((channels + 2 * margin,), torch.nan, dtype=y.dtype)
    grad_bias = memory[margin:-margin]
    how = core.run_bias_grad(problem, y.data_ptr(), grad_bias.data_ptr(), descending)
    assert memory[:margin].isnan().all()
    assert memory[-margin:].isnan().all()
    return grad_bias, how


def check(core: ModuleType, y: Tensor) -> dict[str, Any]:
    got, how = run(core, y)
    want = y.double().sum((0, 2, 3)).to(y.dtype)
    assert torch.equal(got, want), how
    return how


SIZES = [
    (1, 1, 1, 1),
    (3, 5, 1, 1),
    (1, 7, 1, 9),
    (2, 3, 9, 1),
    (2, 1, 13, 17),
    (5, 3, 7, 7),
    (2, 64, 6, 5),
    (3, 130, 3, 4),
    (1, 1024, 2, 3),
    (2, 4, 40, 56),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout_at_every_address(core: ModuleType, dtype: torch.dtype, size: Any) -> None:
    y = integers(*size, dtype=dtype)
    for layout in layouts.LAYOUTS:
        for before in (0, 1, 5):
            check(core, place(layout.y(y), before))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cropped_image_is_read_by_rows(core: ModuleType, dtype: torch.dtype) -> None:
    whole = torch.full((2, 3, 12, 40), torch.nan, dtype=dtype)
    y = whole[:, :, 1:-1, 3:-4]
    y.copy_(integers(*y.shape, dtype=dtype))
    assert check(core, y)["layout"] == "runs"
    last = layouts.channels_last(whole)[:, :, 1:-1, 3:-4]
    last.copy_(y)
    assert check(core, last)["layout"] == "strided"


@pytest.mark.parametrize(
    ("size", "channels_last", "layout", "launches"),
    [
        ((4, 64, 8, 8), False, "runs", 1),
        ((4, 64, 8, 8), True, "columns", 1),
        ((64, 512, 1, 1), False, "columns", 1),
        ((1, 1, 90, 90), False, "columns", 1),
        ((2, 3, 32, 32), True, "columns", 1),
        ((2, 1024, 3, 3), True, "columns", 1),
        ((2, 130, 9, 9), True, "columns", 2),  # 65 vectors, in two blocks: they share channels
        ((1, 3, 260, 260), False, "runs", 2),
        ((1, 3, 260, 260), True, "columns", 2),
        ((1, 1, 200, 200), False, "columns", 2),
        ((8, 2100, 2, 2), False, "runs", 1),
    ],
)
def test_small_tensors_take_one_launch(
    core: ModuleType, size: Any, channels_last: bool, layout: str, launches: int
) -> None:
    dtype = torch.bfloat16 if size[1] == 130 else torch.float32
    y = integers(*size, dtype=dtype)
    how = check(core, layouts.channels_last(y) if channels_last else y)
    assert (how["layout"], how["launches"]) == (layout, launches)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [1, 3, 64, 130])
def test_slices_of_large_tensors(core: ModuleType, channels: int, dtype: torch.dtype) -> None:
    side = math.isqrt(45_000 // dtype.itemsize)  # two images: about 90 KB per channel
    y = integers(2, channels, side, side + 1, dtype=dtype)
    for before in (0, 3):
        for other in (y, layouts.channels_last(y)):
            assert check(core, place(other, before))["slices"] > 1


@pytest.mark.parametrize("size", [(2, 6, 150, 150), (2, 12, 9, 7)], ids=str)
@pytest.mark.parametrize("make", [layouts.contiguous, layouts.channels_last, layouts.sliced])
def test_the_order_of_threads_does_not_matter(core: ModuleType, make: Any, size: Any) -> None:
    """No sum depends on which thread comes first, to the last bit."""
    y = make(torch.randn(size))
    assert torch.equal(run(core, y)[0], run(core, y, descending=True)[0])


@pytest.mark.parametrize("make", [layouts.contiguous, layouts.channels_last, layouts.sliced])
def test_long_sums_are_as_accurate_as_float32_gets(core: ModuleType, make: Any) -> None:
    """A chain of float32 additions would be hundreds of roundings off."""
    y = torch.rand((2, 2, 400, 400), generator=torch.Generator().manual_seed(1)) + 0.5
    want = y.double().sum((0, 2, 3))
    got, _ = run(core, make(y))
    assert ((got - want).abs() / want).max() < 2.0**-23


@pytest.mark.parametrize("make", [layouts.contiguous, layouts.channels_last])
def test_what_is_not_finite_stays_in_its_channel(core: ModuleType, make: Any) -> None:
    y = integers(2, 5, 9, 11, dtype=torch.float32)
    y[1, 2, 8, 10] = torch.inf
    y[0, 4, 0, 0] = torch.nan
    got, _ = run(core, make(y))
    want = y.sum((0, 2, 3))
    assert torch.equal(got.nan_to_num(1e30), want.nan_to_num(1e30))
