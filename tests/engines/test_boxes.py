"""Tensors that are read and stored by boxes, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conv2d_ext

pytestmark = pytest.mark.gpu

SHAPES = {  # x, w, stride, padding
    "stored_by_boxes": ((4, 64, 64, 256), (128, 64, 3, 3), 1, 1),
    "rows_that_end_within_windows": ((8, 64, 61, 230), (72, 64, 3, 3), 1, 1),
    "one_by_one": ((4, 64, 64, 256), (128, 64, 1, 1), 1, 0),
    "whole_rows": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "split": ((8, 128, 14, 14), (128, 128, 3, 3), 1, 1),
    "strided": ((8, 64, 57, 57), (96, 64, 3, 3), 2, 1),
    "one_by_one_strided": ((8, 72, 56, 56), (264, 72, 1, 1), 2, 0),
    "few_channels_and_filters": ((8, 16, 112, 112), (24, 16, 1, 1), 1, 0),
    "seven_by_seven": ((33, 128, 7, 7), (512, 128, 1, 1), 1, 0),
    # Flat tiles: consecutive pixels of several rows and images.
    "flat_tiles": ((3, 72, 27, 43), (136, 72, 3, 3), 1, 1),
    "flat_tiles_of_one_image": ((1, 256, 100, 168), (256, 256, 3, 3), 1, 1),
    "flat_tiles_of_small_images": ((33, 128, 7, 7), (256, 128, 3, 3), 1, 1),
    "flat_and_strided": ((5, 72, 26, 41), (136, 72, 3, 3), 2, 1),
    "flat_one_by_one_strided": ((5, 264, 25, 42), (72, 264, 1, 1), 2, 0),
    "one_flat_tile_of_63_pixels": ((1, 72, 1, 500), (72, 72, 1, 1), (1, 8), 0),
    "flat_rows_of_odd_filters": ((3, 72, 27, 43), (53, 72, 3, 3), 1, 1),
    "flat_units": ((3, 72, 27, 43), (36, 72, 3, 3), 1, 1),
    # Stored along a row, by pieces of 8, 4 and 2 bytes.
    "filters_in_fours": ((4, 72, 28, 28), (252, 72, 1, 1), 1, 0),
    "filters_in_twos": ((4, 72, 28, 28), (254, 72, 1, 1), 1, 0),
    "odd_filters": ((4, 72, 28, 28), (255, 72, 1, 1), 1, 0),
    # Blocks take these in turn.
    "many_tiles": ((32, 16, 192, 192), (24, 16, 1, 1), 1, 0),
    "many_tiles_of_filters": ((16, 16, 192, 192), (200, 16, 1, 1), 1, 0),
}
ERRORS = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 6e-4}
ENGINES = {
    "cuda_lines": (torch.bfloat16, torch.float16),
    "cuda_boxes": (torch.bfloat16, torch.float16, torch.float32),  # as TF32
}


def make_source(shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> Tensor:
    """offset: elements between it and a multiple of 16 bytes."""
    n, c, h, w = shape
    values = torch.randn(n * c * h * w + offset, device="cuda").to(dtype)[offset:]
    return values.view(n, h, w, c).permute(0, 3, 1, 2)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("engine", "dtype"), [(e, dtype) for e, dtypes in ENGINES.items() for dtype in dtypes], ids=str
)
@pytest.mark.parametrize("name", SHAPES)
def test_like_float64(name: str, engine: str, dtype: torch.dtype, offset: int) -> None:
    x_shape, w_shape, stride, padding = SHAPES[name]
    torch.manual_seed(len(name))
    x = make_source(x_shape, dtype, offset)
    w = (torch.randn(w_shape, device="cuda") / 24).to(dtype)
    b = torch.randn(w_shape[0], device="cuda").to(dtype)
    want = F.conv2d(x.double(), w.double(), b.double(), stride, padding)

    def run() -> Tensor:
        return conv2d_ext.conv2d(x, w, b, stride, padding, precision="tf32", algorithm=engine)

    got = run()
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()
    assert ((got.double() - want).abs() <= 20 * ERRORS[dtype] * want.std()).all()
    for _ in range(9):
        assert torch.equal(run(), got)


GRADIENTS = {  # x, w, stride, padding, dilation
    "same_size": ((8, 136, 28, 28), (200, 136, 3, 3), 1, 1, 1),
    "one_by_one": ((8, 264, 14, 14), (72, 264, 1, 1), 1, 0, 1),
    "flat_tiles": ((3, 136, 27, 43), (200, 136, 3, 3), 1, 1, 1),
    "flat_and_dilated": ((7, 72, 13, 21), (136, 72, 3, 3), 1, 4, 3),
    "flat_one_by_seven": ((9, 200, 17, 17), (136, 200, 1, 7), 1, (0, 3), 1),
    "four_phases": ((8, 128, 57, 55), (72, 128, 3, 3), 2, 1, 1),
    "three_phases_of_zeros": ((8, 200, 56, 55), (136, 200, 1, 1), 2, 0, 1),
    "odd_channels": ((3, 37, 29, 30), (53, 37, 3, 3), 2, 1, 1),
    "nine_phases": ((4, 64, 29, 31), (40, 64, 3, 5), 3, 2, 1),
    "sixteen_phases": ((4, 24, 33, 30), (64, 24, 4, 4), 4, 0, 1),
    "dilated_phases": ((4, 72, 30, 33), (64, 72, 3, 3), 2, 2, 2),
    "many_tiles": ((16, 64, 256, 256), (64, 64, 3, 3), 2, 1, 1),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_input_gradients(name: str, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """memory_format: of the filters. In 16 bits, those of channels_last are read in place."""
    x_shape, w_shape, stride, padding, dilation = GRADIENTS[name]
    torch.manual_seed(len(name))
    x = make_source(x_shape, dtype, 0).requires_grad_()
    w = (torch.randn(w_shape, device="cuda") / 24).to(dtype).contiguous(memory_format=memory_format)
    y = conv2d_ext.conv2d(
        x, w, None, stride, padding, dilation, precision="tf32", algorithm="cuda_boxes"
    )
    g = torch.randn_like(y)

    def run() -> Tensor:
        (grad,) = torch.autograd.grad(y, x, g, retain_graph=True)
        return grad

    got = run()
    want = torch.nn.grad.conv2d_input(x_shape, w.double(), g.double(), stride, padding, dilation)
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()
    for _ in range(9):
        assert torch.equal(run(), got)


PLANES = {  # x, w
    "planes_of_56": ((8, 64, 56, 56), (264, 64, 1, 1)),
    "planes_of_28": ((9, 40, 28, 28), (120, 40, 1, 1)),
    "planes_of_14": ((33, 200, 14, 14), (80, 200, 1, 1)),
    # These end within units of 16 bytes, as those before do in 16 bits.
    "planes_of_7": ((65, 520, 7, 7), (264, 520, 1, 1)),
    "planes_of_13": ((9, 136, 13, 13), (264, 136, 1, 1)),
    "planes_of_11": ((9, 72, 11, 11), (136, 72, 1, 1)),
    "planes_of_3": ((200, 136, 3, 3), (40, 136, 1, 1)),
    "many_planes": ((32, 16, 192, 192), (24, 16, 1, 1)),  # taken in turn
    "planes_of_1": ((300, 64, 1, 1), (128, 64, 1, 1)),
    # Spans of planes that begin anywhere.
    "planes_of_17": ((5, 200, 17, 17), (136, 200, 1, 1)),
    "odd_channels_and_filters": ((3, 77, 33, 33), (131, 77, 1, 1)),
    "one_odd_plane": ((1, 1, 19, 15), (1, 1, 1, 1)),
    "odd_channels_of_7": ((65, 37, 7, 7), (53, 37, 1, 1)),
    "many_odd_planes": ((16, 40, 129, 129), (72, 40, 1, 1)),
}


COPIED = {  # x, w, stride, padding, dilation
    "taps": ((5, 72, 27, 43), (136, 72, 3, 3), 1, 1, 1),
    "strided": ((8, 256, 14, 14), (264, 256, 3, 3), 2, 1, 1),
    "one_by_one_strided": ((5, 264, 25, 42), (72, 264, 1, 1), 2, 0, 1),
    "odd_channels": ((3, 37, 29, 30), (53, 37, 3, 2), (1, 2), 1, 1),
    "dilated": ((2, 264, 33, 33), (72, 264, 3, 3), 1, 12, 12),
    # The copies of all images are larger than the workspace.
    "batches": ((8, 64, 512, 512), (64, 64, 3, 3), 2, 1, 1),
}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", COPIED)
def test_copied_planes(name: str, dtype: torch.dtype, offset: int) -> None:
    """NCHW layers with several taps or a stride, and their input gradient."""
    x_shape, w_shape, *rest = COPIED[name]
    torch.manual_seed(len(name))
    size = torch.Size(x_shape).numel()
    x = torch.randn(size + offset, device="cuda").to(dtype)[offset:].view(x_shape).requires_grad_()
    w = (torch.randn(w_shape, device="cuda") / 24).to(dtype)
    b = torch.randn(w_shape[0], device="cuda").to(dtype)

    def run() -> Tensor:
        return conv2d_ext.conv2d(x, w, b, *rest, precision="tf32", algorithm="cuda_boxes")

    want = F.conv2d(x.double(), w.double(), b.double(), *rest)
    got = run()
    assert got.is_contiguous()
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()
    for _ in range(9):
        assert torch.equal(run(), got)
    g = torch.randn_like(got)
    (grad,) = torch.autograd.grad(got, x, g)
    want = torch.nn.grad.conv2d_input(x_shape, w.double(), g.double(), *rest)
    assert (grad.double() - want).norm() <= ERRORS[dtype] * want.norm()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", PLANES)
def test_planes(name: str, dtype: torch.dtype, offset: int) -> None:
    """1x1 layers of NCHW tensors, and their input gradient."""
    x_shape, w_shape = PLANES[name]
    torch.manual_seed(len(name))
    size = torch.Size(x_shape).numel()
    x = torch.randn(size + offset, device="cuda").to(dtype)[offset:].view(x_shape).requires_grad_()
    w = (torch.randn(w_shape, device="cuda") / 8).to(dtype)
    b = torch.randn(w_shape[0], device="cuda").to(dtype)

    def run() -> Tensor:
        return conv2d_ext.conv2d(x, w, b, precision="tf32", algorithm="cuda_boxes")

    want = F.conv2d(x.double(), w.double(), b.double())
    got = run()
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()
    for _ in range(9):
        assert torch.equal(run(), got)
    g = torch.randn_like(got)
    (grad,) = torch.autograd.grad(got, x, g)
    want = torch.nn.grad.conv2d_input(x_shape, w.double(), g.double())
    assert (grad.double() - want).norm() <= ERRORS[dtype] * want.norm()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize(
    "size",
    [
        (5, 200, 136, 17, 1),
        (9, 72, 264, 7, 1),
        (4, 40, 120, 28, 1),
        (2, 1080, 136, 14, 1),
        (1, 320, 264, 16, 3),
        (2, 200, 264, 21, 3),
        (7, 136, 72, 9, 3),
    ],
    ids=str,
)
def test_other_tiles(
    size: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    """Variants cut the same sums into other tiles, or each sum into parts: other bits, but the same
    from call to call."""
    n, c, k, h, kernel = size
    if kernel > 1 and memory_format != torch.channels_last:
        pytest.skip("planes are 1x1 layers")
    x = torch.randn(n, c, h, h, device="cuda").to(dtype, memory_format=memory_format)
    w = torch.randn(k, c, kernel, kernel, device="cuda").to(dtype, memory_format=memory_format)
    said = conv2d_ext.explain(x, w, precision="tf32")
    variants = next(q.variants for q in said.candidates if q.name == "cuda_boxes")
    assert variants

    def run(algorithm: str) -> Tensor:
        return conv2d_ext.conv2d(x, w, precision="tf32", algorithm=algorithm)

    tiles = [run(f"cuda_boxes:{name}") for name in ("tiles_64", "tiles_128")]
    want = F.conv2d(x.double(), w.double())
    for variant in variants:
        got = run(f"cuda_boxes:{variant}")
        assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm(), variant
        same = [run(f"cuda_boxes:{variant}")] if variant.startswith("parts") else tiles
        assert all(torch.equal(got, other) for other in same), variant


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize(
    "name", [name for name in SHAPES if not name.endswith("one_by_one_strided")]
)
def test_input_gradient(name: str, dtype: torch.dtype) -> None:
    x_shape, w_shape, stride, padding = SHAPES[name]
    torch.manual_seed(len(name))
    x = make_source(x_shape, dtype, 0).requires_grad_()
    w = (torch.randn(w_shape, device="cuda") / 24).to(dtype)
    y = conv2d_ext.conv2d(x, w, None, stride, padding, precision="tf32", algorithm="cuda_boxes")
    g = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, g)
    want = torch.nn.grad.conv2d_input(x_shape, w.double(), g.double(), stride, padding)
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()


def test_first_call_of_a_thread() -> None:
    """Tensor maps are encoded by the driver, which needs the thread to have a context."""
    x = torch.randn(2, 40, 12, 12, device="cuda", dtype=torch.float16)
    w = torch.randn(72, 40, 1, 1, device="cuda", dtype=torch.float16)

    def run() -> Tensor:
        with torch.no_grad():
            return conv2d_ext.conv2d(x, w, algorithm="cuda_boxes")

    want = run().clone()  # frees memory that the thread gets without asking the runtime
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(run).result()
    assert torch.equal(got, want)
