"""cuda_gemm where 1x1 layers are multiplied as they lie, run on the host from its own source.

Its kernels are its own, its products those of an emulated cuBLAS (emulated_cuda/cublas_v2.h). What
other layers are made of, test_emulated_engines.py runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from kernel_tester import Guarded, make_problem
from problems import h200
from problems import make_problem as make_problem_of

from conv2d_ext._shape import Shape

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DIRECTIONS = ["forward", "input_grad", "weight_grad"]
CASES = [
    Case("one_by_one", (3, 24, 9, 32), (20, 24, 1, 1)),
    Case("several_segments", (3, 20, 40, 50), (12, 20, 1, 1)),
    Case("groups", (2, 24, 30, 40), (18, 12, 1, 1), groups=2),
    Case("odd_channels", (2, 7, 33, 35), (5, 7, 1, 1), bias=False),
    Case("one_channel", (1, 1, 40, 30), (3, 1, 1, 1)),
    Case("one_pixel", (5, 16, 1, 1), (9, 16, 1, 1)),
]


def run(
    core: ModuleType,
    case: Case,
    dtype: torch.dtype,
    direction: str,
    caps: Any,
    last: bool = True,
    lay_filters: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[dict[str, Any], torch.Tensor]:
    """(what it said, the result), checked; last: of tensors that are channels_last; lay_filters
    puts the weights elsewhere."""
    problem = make_problem(core, case, dtype, last)
    problem.pass_ = getattr(core.Pass, direction)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    side = {"forward": "y", "input_grad": "x", "weight_grad": "w"}[direction]
    tensors = {"x": x, "w": w, "y": y}
    tensors[side] = torch.full_like(tensors[side], torch.nan)
    guarded = {name: Guarded(t, last and name != "w") for name, t in tensors.items()}
    pointers = [guarded[name].tensor.data_ptr() for name in "xwy"]
    if lay_filters is not None:
        laid = lay_filters(w)
        problem.w_strides = core.Strides(*laid.stride())
        pointers[1] = laid.data_ptr()
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
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_place(
    core: ModuleType, case: Case, dtype: torch.dtype, last: bool, direction: str
) -> None:
    said, _ = run(core, case, dtype, direction, h200(core), last)
    # A single pixel has its channels side by side in either format.
    single = case.x[2] * case.x[3] == 1
    # So has a single channel, of which planes are as dense.
    alone = case.x[1] == case.w[0] == 1
    assert said["form"] == ("pixels" if (last or single) and not alone else "planes")
    assert not said["packs_filters"]
    # One product writes 16-bit weight gradients, where the pixels of all images are a matrix.
    halves = dtype.itemsize == 2
    matrix = said["form"] == "pixels" or case.x[0] == 1
    assert said["is_whole"] == (direction == "weight_grad" and halves and matrix)
    if said["is_whole"]:
        assert said["workspace_bytes"] == 0


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("packs", [False, True], ids=["transposed", "every_second"])
def test_filters_that_lie_elsewhere(
    core: ModuleType, packs: bool, last: bool, direction: str
) -> None:
    def every_second(w: torch.Tensor) -> torch.Tensor:
        return w.repeat_interleave(2, 1)[:, ::2]

    def transposed(w: torch.Tensor) -> torch.Tensor:
        return w.transpose(0, 1).contiguous().transpose(0, 1)

    lay = every_second if packs else transposed
    said, _ = run(core, CASES[2], torch.float32, direction, h200(core), last, lay)
    assert said["packs_filters"] == packs


STRIDED = [
    Case("strided", (3, 24, 9, 30), (20, 24, 1, 1), (2, 2)),
    Case("strided_rows", (2, 7, 12, 11), (9, 7, 1, 1), (3, 1), bias=False),
    Case("strided_groups", (2, 24, 8, 9), (18, 12, 1, 1), (1, 2), groups=2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_strided_pixels(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    caps = h200(core)
    said, want = run(core, case, dtype, "forward", caps)
    assert said["form"] == "strided pixels"
    caps.workspace_limit = 4096  # in several chunks
    fewer, got = run(core, case, dtype, "forward", caps)
    assert fewer["chunk_pixels"] < said["chunk_pixels"]
    assert torch.equal(got, want)
    assert run(core, case, dtype, "input_grad", h200(core))[0]["form"] == ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_weight_gradients_of_strided_pixels(
    core: ModuleType, case: Case, dtype: torch.dtype
) -> None:
    """One product of copied pixels, where tensor cores compute it and the copy fits."""
    caps = h200(core)
    said, _ = run(core, case, dtype, "weight_grad", caps)
    halves = dtype.itemsize == 2
    assert said["form"] == ("strided pixels" if halves else "")
    assert said["is_whole"] == halves
    if halves:
        caps.workspace_limit = said["workspace_bytes"] - 1
        assert run(core, case, dtype, "weight_grad", caps)[0]["form"] == ""


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_planes_side_by_side(core: ModuleType, dtype: torch.dtype, direction: str) -> None:
    """Of images whose lines begin anywhere."""
    for case in (
        Case("of_7x7", (32, 320, 7, 7), (300, 320, 1, 1)),
        Case("groups_of_7x5", (32, 640, 7, 5), (300, 320, 1, 1), groups=2),
        Case("of_3x1", (160, 257, 3, 1), (260, 257, 1, 1), bias=False),
    ):
        caps = h200(core)
        said, want = run(core, case, dtype, direction, caps, last=False)
        assert said["form"] == "side by side"
        caps.workspace_limit = said["workspace_bytes"]  # not all images at once
        fewer, got = run(core, case, dtype, direction, caps, last=False)
        assert fewer["chunk_pixels"] < said["chunk_pixels"]
        assert torch.equal(got, want)
    one = Case("of_one_large_image", (1, 768, 35, 35), (512, 768, 1, 1))
    said, _ = run(core, one, dtype, direction, h200(core), last=False)
    assert said["form"] == "side by side"
    small = Case("small", (5, 24, 7, 7), (20, 24, 1, 1), bias=False)  # not worth copying
    said, _ = run(core, small, dtype, direction, h200(core), last=False)
    assert said["form"] == "planes"


def test_few_tiles(core: ModuleType) -> None:
    # 40 channels, 8 images of 56 x 56, 144 filters: 9.9 us by the first, 5.4 by the next (H200).
    waves = [0.371, 0.099, 1.11, 0.742, 0.205, 0.591, 1.48, 0.492]
    assert core.choose_few_tiles(waves, 8) == 1
    # Both fill it once at most, so the first is as good.
    assert core.choose_few_tiles([0.9, 0.5], 1) == 0
    # Some fewer tiles do not make up for the place in the list.
    assert core.choose_few_tiles([2.0, 1.8, 1.6], 4) == 0
    assert core.choose_few_tiles([2.0, 1.8, 1.2], 4) == 2
    assert core.choose_few_tiles([5.0], 64) == 0


def test_where_few_tiles_are_wanted(core: ModuleType) -> None:
    short = Case("short", (2, 64, 8, 8), (24, 64, 1, 1))
    long = Case("long", (2, 256, 8, 8), (24, 256, 1, 1))
    for case, dtype, last, want in (
        (short, torch.bfloat16, False, True),
        (short, torch.bfloat16, True, False),
        (short, torch.float32, False, False),
        (long, torch.bfloat16, False, False),
    ):
        said, _ = run(core, case, dtype, "forward", h200(core), last=last)
        assert said["few_tiles"] == want, (case, dtype, last)


def test_bias_of_large_planes(core: ModuleType) -> None:
    """Bias values are made for a piece of an image."""
    case = Case("large_planes", (2, 5, 40, 51), (11, 5, 1, 1))
    caps = h200(core)
    whole, want = run(core, case, torch.bfloat16, "forward", caps, last=False)
    assert whole["bias_pixels"] == 40 * 51
    caps.workspace_limit = 40 << 10
    pieces, got = run(core, case, torch.bfloat16, "forward", caps, last=False)
    assert 0 < pieces["bias_pixels"] < 40 * 51 / 2
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("pixels", [(4, 40, 51), (1, 1, 8209)], ids=str)
def test_bias_of_odd_pixels(
    core: ModuleType, dtype: torch.dtype, pixels: tuple[int, int, int]
) -> None:
    """By cuBLASLt's epilogue; results of float64 are filled with it first."""
    n, h, w = pixels
    case = Case("odd_pixels", (n, 5, h, w), (11, 5, 1, 1))
    said, want = run(core, case, dtype, "forward", h200(core))
    assert (said["form"], said["bias_pixels"]) == ("pixels", 0)
    exact = torch.nn.functional.conv2d(*(t.double() for t in case.tensors(dtype)))
    rounded_once = want == exact.to(dtype)
    assert rounded_once.double().mean() > (0.99 if dtype.itemsize == 2 else 0)
    caps = h200(core)
    caps.workspace_limit = 1024  # it needs none
    _, got = run(core, case, dtype, "forward", caps)
    assert torch.equal(got, want)


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


@pytest.mark.parametrize(
    ("shape", "precision", "geometry"),
    [
        # A tile of 128 x 128: 264 segments are two waves of an H200.
        ("n16c64h1024w1024 k128r1s1", "tf32", "segments of 63550 pixels"),
        ("n16c64h1024w1024 k128r1s1", "ieee", "segments of 7943 pixels"),
        # Eight tiles: 33 segments.
        ("n32c512h100w168 k256r1s1", "tf32", "segments of 16290 pixels"),
        ("n32c256h130w130 k64r1s1", "tf32", "one product"),
        ("n32c256h130w130 k384r1s1", "tf32", "segments of 12290 pixels"),
        # cuBLAS does not split the products of groups.
        ("n16c8h200w200 k96r1s1 groups2", "tf32", "segments of 4848 pixels"),
    ],
)
def test_long_reductions(core: ModuleType, shape: str, precision: str, geometry: str) -> None:
    problem = make_problem_of(core, Shape.parse(shape), "weight_grad", "float32", precision, True)
    chosen = json.loads(core.choose("cuda", problem, h200(core), "cuda_gemm"))
    (said,) = (c["geometry"] for c in chosen["candidates"] if c["name"] == "cuda_gemm")
    assert geometry in said
