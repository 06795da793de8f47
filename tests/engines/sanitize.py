"""Every CUDA engine and pass once over small, awkward problems: a program for compute-sanitizer."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
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
    "one_by_one_without_bias",
    "one_by_one_strided",
    "long_reduction",
    "unread_pixels_between",
)


PRECISIONS = {torch.float32: ("ieee", "tf32"), torch.bfloat16: ("ieee",)}
LAYOUTS = (torch.contiguous_format, torch.channels_last)


# Large enough for float32 to be multiplied as halves by one engine or another.
HALVED = (
    ((8, 64, 56, 56), (64, 64, 3, 3), 1),
    ((32, 3, 112, 112), (64, 3, 7, 7), 2),
    ((16, 64, 64, 64), (128, 64, 1, 1), 1),
    ((8, 12, 256, 256), (128, 12, 3, 3), 1),
)


# channels_last, 16 bits: large enough for cuda_lines to read them by boxes, and to store some so.
BOXED = (
    ((4, 64, 64, 256), (128, 64, 3, 3), 1),
    ((4, 64, 64, 256), (128, 64, 1, 1), 1),
    ((8, 64, 56, 56), (64, 64, 3, 3), 1),
    ((8, 128, 14, 14), (128, 128, 3, 3), 1),
    ((8, 64, 57, 57), (96, 64, 3, 3), 2),
)


def engine_names() -> list[str]:
    said = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), device="cuda")
    return [candidate.name for candidate in said.candidates]


def attempt(call: Callable[[], Tensor]) -> int:
    """Calls made: none where the engine refuses the problem."""
    try:
        call()
    except RuntimeError as error:
        if "cannot run this problem" not in str(error):
            raise
        return 0
    return 1


def run_engine(case: Case, engine: str, precision: str, x: Tensor, w: Tensor, b: Tensor) -> int:
    p = parse_lists(
        case.stride, case.padding, case.dilation, case.groups, precision=precision, algorithm=engine
    )
    g = torch.randn_like(_ops.forward(x, w, b, *p._replace(algorithm="cuda_direct")))
    last = x.is_contiguous(memory_format=torch.channels_last)
    return (
        attempt(lambda: _ops.forward(x, w, b, *p))
        + attempt(lambda: _ops.input_grad(g, w, x.shape[2], x.shape[3], last, *p))
        + attempt(lambda: _ops.weight_grad(g, x, w.shape[2], w.shape[3], last, *p))
    )


def run_halved() -> int:
    """Halves, and what runs in their place where a value is not fit for it; returns the calls."""
    calls = 0
    for (x_shape, w_shape, stride), precision in itertools.product(HALVED, ("ieee", "tf32")):
        x, w = torch.randn(x_shape, device="cuda"), torch.randn(w_shape, device="cuda")
        said = conv2d_ext.explain(x, w, stride=stride, precision=precision)
        for engine in (candidate.name for candidate in said.candidates if candidate.halves):
            for value in (1.0, 1e30):
                x[0, 0, 0, 0] = value
                conv2d_ext.conv2d(x, w, stride=stride, precision=precision, algorithm=engine)
                calls += 1
    return calls


def run_boxed() -> None:
    for x_shape, w_shape, stride in BOXED:
        x = torch.randn(x_shape, device="cuda", dtype=torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last)
        w = torch.randn(w_shape, device="cuda", dtype=torch.bfloat16)
        padding = w_shape[2] // 2
        conv2d_ext.conv2d(x, w, None, stride, padding, algorithm="cuda_lines")


def main() -> None:
    calls = dict.fromkeys(engine_names(), 0)
    for case in [case for case in CASES if case.name in NAMES]:
        for dtype, precisions in PRECISIONS.items():
            x, w, b = case.tensors(dtype, "cuda")
            _ops.bias_grad(case.grad_output(dtype, "cuda"))
            for layout, precision, engine in itertools.product(LAYOUTS, precisions, calls):
                source = x.contiguous(memory_format=layout)
                calls[engine] += run_engine(case, engine, precision, source, w, b)
    halved = run_halved()
    run_boxed()
    torch.cuda.synchronize()
    print(f"{len(NAMES)} cases, calls: {calls}, halved: {halved}")
    assert halved > 0
    idle = [engine for engine, count in calls.items() if count == 0]
    assert not idle, f"never ran: {idle}"


if __name__ == "__main__":
    main()
