"""Every CUDA engine and pass once over small, awkward problems: a program for compute-sanitizer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from cases import CASES, Case  # noqa: E402

from conv2d_ext import _ops  # noqa: E402
from conv2d_ext._arguments import ConvParams, parse_lists  # noqa: E402

NAMES = (
    "odd_channels",
    "four_sided_padding_strided",
    "groups_of_odd_sizes",
    "depthwise_multiplier",
    "depthwise_small_planes",
    "depthwise_stride_three",
    "depthwise_dilated",
    "dilation_per_axis",
    "one_by_one_strided",
    "long_reduction",
    "unread_pixels_between",
)


def params_of(case: Case, engine: str) -> ConvParams:
    return parse_lists(
        case.stride, case.padding, case.dilation, case.groups, precision="ieee", algorithm=engine
    )


def main() -> None:
    calls = 0
    for case in [case for case in CASES if case.name in NAMES]:
        for dtype in (torch.float32, torch.bfloat16):
            x, w, b = case.tensors(dtype, "cuda")
            for engine in ("cuda_gemm", "cuda_direct"):
                p = params_of(case, engine)
                y = _ops.forward(x, w, b, *p)
                g = torch.randn_like(y)
                _ops.input_grad(g, w, x.shape[2], x.shape[3], False, *p)
                _ops.weight_grad(g, x, w.shape[2], w.shape[3], False, *p)
                _ops.bias_grad(g)
                calls += 4
            if case.groups == x.shape[1]:
                for layout in (torch.contiguous_format, torch.channels_last):
                    source = x.contiguous(memory_format=layout)
                    _ops.forward(source, w, b, *params_of(case, "cuda_depthwise"))
                    calls += 1
    torch.cuda.synchronize()
    print(f"{calls} calls over {len(NAMES)} cases")


if __name__ == "__main__":
    main()
