"""Every CUDA engine and pass once over small, awkward problems: a program for compute-sanitizer.

An argument 2/5 runs the second fifth of it: parts can run side by side. Names of engines behind it
leave the others out. CONVX_SANITIZER names the tool: what another one needs is left out.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from cases import CASES, Case  # noqa: E402

import conv2d_ext  # noqa: E402
from conv2d_ext import _ops  # noqa: E402
from conv2d_ext._arguments import parse_lists  # noqa: E402

NAMES = (
    "odd_channels",
    "four_sided_padding_strided",
    "groups_of_odd_sizes",
    "groups_of_four",
    "groups_of_four_strided",
    "groups_of_ten",
    "depthwise_of_eight",
    "depthwise_of_eight_strided",
    "depthwise_multiplier",
    "depthwise_small_planes",
    "depthwise_stride_three",
    "depthwise_dilated",
    "dilation_per_axis",
    "one_by_one",
    "one_by_one_without_bias",
    "one_by_one_in_groups",
    "one_by_one_strided",
    "single_pixel",
    "long_reduction",
    "channels_of_eight",
    "channels_of_eight_strided",
    "unread_pixels_between",
)


Shape = tuple[tuple[int, ...], tuple[int, ...], int]  # input, weights, stride

PRECISIONS = {torch.float32: ("ieee", "tf32"), torch.bfloat16: ("ieee",)}
LAYOUTS = (torch.contiguous_format, torch.channels_last)


# Large enough for float32 to be multiplied as halves by one engine or another.
HALVED: tuple[Shape, ...] = (
    ((8, 64, 56, 56), (64, 64, 3, 3), 1),
    ((32, 3, 112, 112), (64, 3, 7, 7), 2),
    ((16, 64, 64, 64), (128, 64, 1, 1), 1),
    ((8, 12, 256, 256), (128, 12, 3, 3), 1),
)


# channels_last: large enough for cuda_lines to read 16 bits by boxes, and to store some so.
BOXED: tuple[Shape, ...] = (
    ((4, 64, 64, 256), (128, 64, 3, 3), 1),
    ((4, 64, 64, 256), (128, 64, 1, 1), 1),
    ((8, 64, 56, 56), (64, 64, 3, 3), 1),
    ((8, 128, 14, 14), (128, 128, 3, 3), 1),
    ((8, 64, 57, 57), (96, 64, 3, 3), 2),
)


# The same for cuda_boxes, to which any size will do; of the first some blocks have two tiles, whose
# stages follow each other.
PIXEL_BOXES: tuple[Shape, ...] = (
    ((4, 24, 96, 96), (24, 24, 1, 1), 1),
    ((2, 64, 12, 40), (64, 64, 3, 3), 1),
    ((2, 40, 14, 14), (136, 40, 1, 1), 1),
    ((2, 72, 15, 15), (72, 72, 3, 3), 2),
    ((5, 72, 9, 11), (72, 72, 3, 3), 1),  # flat tiles
    ((9, 37, 31, 33), (53, 37, 3, 3), 2),  # whose pixels begin anywhere
    ((3, 24, 31, 33), (50, 24, 1, 1), 1),  # stored by units
)
MANY_TILES: Shape = ((32, 8, 224, 224), (8, 8, 1, 1), 1)  # which blocks take in turn


# NCHW: where blocks of cuda_lines stream, and carry; what cuda_boxes moves as lines of planes, as
# whole ones and as spans, with two tiles a block, too; few filters.
STREAMED: tuple[Shape, ...] = (
    ((2, 16, 64, 256), (128, 16, 3, 3), 1),
    ((5, 12, 40, 64), (100, 12, 3, 3), 1),
    ((3, 16, 40, 120), (64, 16, 3, 3), 1),
)
PLANES: tuple[Shape, ...] = (
    ((36, 24, 32, 32), (24, 24, 1, 1), 1),
    ((300, 24, 7, 7), (24, 24, 1, 1), 1),
    ((150, 24, 13, 13), (24, 24, 1, 1), 1),
    ((150, 24, 14, 14), (24, 24, 1, 1), 1),
    ((3, 72, 28, 28), (136, 72, 1, 1), 1),
    ((5, 72, 7, 7), (136, 72, 1, 1), 1),
    ((2, 72, 13, 13), (72, 72, 1, 1), 1),
    ((3, 80, 14, 14), (136, 80, 1, 1), 1),
    # Spans.
    ((60, 24, 17, 17), (24, 24, 1, 1), 1),
    ((3, 77, 17, 19), (131, 77, 1, 1), 1),
)
# Long reductions, which cuda_boxes splits: pixels; lines, whole planes and spans.
CUT_PIXELS: tuple[Shape, ...] = (
    ((2, 264, 9, 9), (264, 264, 1, 1), 1),
    ((2, 72, 9, 9), (264, 72, 3, 3), 1),
)
CUT_PLANES: tuple[Shape, ...] = (
    ((3, 264, 8, 8), (264, 264, 1, 1), 1),
    ((7, 264, 7, 7), (264, 264, 1, 1), 1),
    ((2, 264, 11, 13), (264, 264, 1, 1), 1),
)
# Depthwise: rows of taps in one group of steps, and in two.
LARGE_KERNELS: tuple[Shape, ...] = (
    ((5, 8, 28, 28), (8, 1, 13, 13), 1),
    ((3, 4, 56, 56), (4, 1, 31, 31), 1),
    ((9, 2, 7, 9), (4, 1, 51, 51), 1),
)
# channels_last, of groups: in one set of chunks, in two, and with filters that read several source
# chunks.
GROUPED: tuple[Shape, ...] = (
    ((3, 64, 20, 20), (64, 4, 3, 3), 1),
    ((2, 136, 9, 17), (136, 4, 3, 3), 2),
    ((2, 72, 9, 17), (72, 24, 3, 3), 2),
)
FEW_FILTERS: Shape = ((2, 24, 16, 16), (2, 24, 1, 1), 1)
# Of cuda_boxes, which gathers what begins within 16 bytes: pixels, lines and whole planes.
SHIFTED_PIXELS: Shape = ((2, 40, 14, 14), (72, 40, 3, 3), 1)
SHIFTED_FLAT: Shape = ((5, 40, 9, 11), (72, 40, 3, 3), 1)
SHIFTED_PLANES: tuple[Shape, ...] = (
    ((5, 40, 8, 8), (72, 40, 1, 1), 1),
    ((5, 40, 7, 7), (72, 40, 1, 1), 1),
)

# NCHW: of cuda_boxes, which copies both tensors; in several tiles of 64 pixels and 128 bytes.
COPIED: tuple[Shape, ...] = (
    ((3, 72, 12, 13), (136, 72, 3, 3), 1),
    ((2, 37, 15, 9), (41, 37, 3, 3), 2),
)


def output_size(shape: Shape, padding: int) -> tuple[int, ...]:
    (images, _, *extents), (filters, _, kernel, _), stride = shape
    return images, filters, *((n + 2 * padding - kernel) // stride + 1 for n in extents)


def engine_names(chosen: tuple[str, ...] = tuple(sys.argv[2:])) -> list[str]:
    said = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), device="cuda")
    return [c.name for c in said.candidates if not chosen or c.name in chosen]


def engine_of(algorithm: str) -> str:
    return algorithm.partition(":")[0]


# Engines whose kernels, or cuBLAS's, write by bulk stores, which the tool does not see.
UNSEEN = ("cuda_boxes", "cuda_gemm", "cuda_lines", "cuda_pointwise", "cuda_weight_grad")


def renew_memory(engine: str) -> None:
    """What the next call is given has not been written to. But initcheck does not see what the copy
    engine writes, and would call it unwritten: where it does, memory is full of NaN, and what
    nobody has written shows in the results. Fills of 8 MiB leave gaps in the allocator's segments
    of 20 MiB, so no result may be larger than the one and fit the other."""
    if os.environ.get("CONVX_SANITIZER", "initcheck") != "initcheck":
        return  # fills take most of the time
    torch.cuda.empty_cache()
    if engine_of(engine) in UNSEEN:
        # Of every size, since there are gaps between what lives.
        sizes = [1 << 26, *(1 << bits for bits in range(22, 6, -1) for _ in range(4))]
        _ = [torch.full((size,), torch.nan, device="cuda") for size in sizes]


def attempt(engine: str, call: Callable[[], Tensor]) -> int:
    """Calls made: none where the engine refuses the problem."""
    renew_memory(engine)
    try:
        result = call()
    except RuntimeError as error:
        if "cannot run this problem" not in str(error):
            raise
        return 0
    assert not result.isnan().any(), f"{engine} has read what nobody wrote"
    return 1


def run_engine(case: Case, engine: str, precision: str, x: Tensor, w: Tensor, b: Tensor) -> int:
    p = parse_lists(
        case.stride, case.padding, case.dilation, case.groups, precision=precision, algorithm=engine
    )
    last = x.is_contiguous(memory_format=torch.channels_last)
    g = case.grad_output(x.dtype, "cuda").contiguous(memory_format=LAYOUTS[last])
    return (
        attempt(engine, lambda: _ops.forward(x, w, b, *p))
        + attempt(engine, lambda: _ops.input_grad(g, w, x.shape[2], x.shape[3], last, *p))
        + attempt(engine, lambda: _ops.weight_grad(g, x, w.shape[2], w.shape[3], last, *p))
    )


def run_case(calls: Counter[str], case: Case, dtype: torch.dtype) -> None:
    x, w, b = case.tensors(dtype, "cuda")
    _ops.bias_grad(case.grad_output(dtype, "cuda"))
    for layout, precision, engine in itertools.product(LAYOUTS, PRECISIONS[dtype], engine_names()):
        source = x.contiguous(memory_format=layout)
        calls[engine] += run_engine(case, engine, precision, source, w, b)


def run_halved(calls: Counter[str], shape: Shape, precision: str, direction: str) -> None:
    """Halves, and what runs in their place where a value is not fit for it."""
    x_shape, w_shape, stride = shape
    x, w = torch.randn(x_shape, device="cuda"), torch.randn(w_shape, device="cuda")
    said = conv2d_ext.explain(x, w, stride=stride, precision=precision, direction=direction)
    y = torch.randn(output_size(shape, padding=0), device="cuda")
    halving = [c.name for c in said.candidates if c.halves and c.name in engine_names()]
    for engine in halving:
        p = parse_lists((stride, stride), precision=precision, algorithm=engine)
        for value in (1.0, 1e30):
            (x if direction == "forward" else y)[0, 0, 0, 0] = value
            calls["halved"] += attempt(
                engine,
                partial(_ops.forward, x, w, None, *p)
                if direction == "forward"
                else partial(_ops.input_grad, y, w, *x_shape[2:], False, *p),
            )


# Input gradients with a stride: with zeros between, and with taps of weight 0.
STRIDED: tuple[Shape, ...] = (
    ((2, 16, 12, 16), (24, 16, 1, 1), 2),
    ((2, 16, 12, 16), (24, 16, 3, 3), 2),
)

# Algorithm, shapes, dtypes, whether channels_last, whether the source begins within 16 bytes.
SHAPES = (
    ("cuda_lines", BOXED, (torch.bfloat16,), True, False),
    ("cuda_boxes", PIXEL_BOXES, tuple(PRECISIONS), True, False),
    ("cuda_boxes", (MANY_TILES,), (torch.bfloat16,), True, False),
    ("cuda_lines", STREAMED, tuple(PRECISIONS), False, False),
    ("cuda_boxes", PLANES, tuple(PRECISIONS), False, False),
    ("cuda_pointwise", (FEW_FILTERS,), tuple(PRECISIONS), False, False),
    ("cuda_boxes", (SHIFTED_PIXELS, SHIFTED_FLAT), tuple(PRECISIONS), True, True),
    ("cuda_boxes", SHIFTED_PLANES, tuple(PRECISIONS), False, True),
    ("cuda_boxes", COPIED, tuple(PRECISIONS), False, False),
    ("cuda_boxes", COPIED[1:], tuple(PRECISIONS), False, True),
    ("cuda_boxes:parts_2", CUT_PIXELS, tuple(PRECISIONS), True, False),
    ("cuda_boxes:parts_2", CUT_PLANES, tuple(PRECISIONS), False, False),
    ("cuda_bands", LARGE_KERNELS, tuple(PRECISIONS), False, False),
    ("cuda_bands", LARGE_KERNELS[:1], tuple(PRECISIONS), False, True),
    ("cuda_diagonal", GROUPED, tuple(PRECISIONS), True, False),
    ("cuda_diagonal", GROUPED[:1], tuple(PRECISIONS), True, True),
    ("cuda_col2im", STRIDED[1:], tuple(PRECISIONS), False, False),
    ("cuda_col2im", STRIDED[1:], tuple(PRECISIONS), True, True),
    ("cuda_phases", STRIDED, tuple(PRECISIONS), False, False),
    ("cuda_phases", STRIDED, tuple(PRECISIONS), True, False),
    ("cuda_phases:rows", STRIDED[1:], tuple(PRECISIONS), True, False),
)


def begin_within_a_unit(x: Tensor) -> Tensor:
    """The same values, one behind where an allocation begins."""
    shifted = x.new_empty(x.numel() + 1).as_strided(x.size(), x.stride(), 1)
    return shifted.copy_(x)


def run_shape(
    calls: Counter[str],
    shape: Shape,
    engine: str,
    dtype: torch.dtype,
    last: bool,
    shifted: bool,
) -> None:
    x_shape, w_shape, stride = shape
    x = torch.randn(x_shape, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=LAYOUTS[last])
    if shifted:
        x = begin_within_a_unit(x)
    w = torch.randn(w_shape, device="cuda", dtype=dtype)
    padding = w_shape[2] // 2
    groups = x_shape[1] // w_shape[1]
    p = parse_lists(
        (stride, stride), (padding, padding), groups=groups, precision="tf32", algorithm=engine
    )
    y = torch.randn(output_size(shape, padding), device="cuda", dtype=dtype)
    y = y.contiguous(memory_format=LAYOUTS[last])
    calls["shapes"] += attempt(engine, lambda: _ops.forward(x, w, None, *p)) + attempt(
        engine, lambda: _ops.input_grad(y, w, *x_shape[2:], last, *p)
    )


def make_tasks() -> list[Callable[[Counter[str]], None]]:
    cases = [case for case in CASES if case.name in NAMES]
    return [
        *(partial(run_case, case=c, dtype=d) for c, d in itertools.product(cases, PRECISIONS)),
        *(
            partial(run_halved, shape=shape, precision=precision, direction=direction)
            for shape, precision, direction in itertools.product(
                HALVED, ("ieee", "tf32"), ("forward", "input_grad")
            )
        ),
        *(
            partial(run_shape, shape=shape, engine=engine, dtype=dtype, last=last, shifted=shifted)
            for engine, shapes, dtypes, last, shifted in SHAPES
            if engine_of(engine) in engine_names()
            for shape, dtype in itertools.product(shapes, dtypes)
        ),
    ]


def main(argument: str = "1/1", *engines: str) -> None:
    part, parts = map(int, argument.split("/"))
    calls = Counter(dict.fromkeys([*engine_names(), "halved", "shapes"], 0))
    for task in make_tasks()[part - 1 :: parts]:
        task(calls)
    torch.cuda.synchronize()
    print(f"part {argument}, calls: {dict(calls)}")
    idle = [kind for kind, count in calls.items() if count == 0]
    assert parts > 1 or engines or not idle, f"never ran: {idle}"


if __name__ == "__main__":
    main(*sys.argv[1:])
