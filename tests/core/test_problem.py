"""Arithmetic of the problem: extents, memory formats, text, and the order of its checks."""

from __future__ import annotations

import itertools
import math
from types import ModuleType

import pytest
import torch
from problems import make_problem

from conv2d_ext._arguments import output_extent
from conv2d_ext._layout import is_channels_last
from conv2d_ext.bench.shapes import Shape, load_suite


def test_output_extent_counts_the_positions_where_the_kernel_fits(core: ModuleType) -> None:
    ranges = range(1, 8), range(3), range(3), range(1, 5), range(1, 4), range(1, 4)
    for extent, before, after, kernel, stride, dilation in itertools.product(*ranges):
        span = dilation * (kernel - 1) + 1
        starts = range(0, extent + before + after - span + 1, stride)
        arguments = extent, before, after, kernel, stride, dilation
        assert core.output_extent(*arguments) == len(starts), arguments
        if len(starts) > 0:
            assert output_extent(*arguments) == len(starts), arguments


def test_memory_format_is_what_pytorch_suggests(core: ModuleType) -> None:
    """Over every small size and permutation of strides, ambiguous and odd ones too."""
    from torch._prims_common import suggest_memory_format

    sizes = [(n, c, h, w) for n in (0, 1, 2) for c in (1, 3) for h in (1, 2) for w in (1, 4)]
    strides = [*itertools.permutations((24, 8, 2, 1)), *itertools.permutations((24, 1, 4, 2))]
    strides += [(8, 1, 4, 1), (4, 4, 1, 1), (1, 1, 1, 1), (12, 0, 3, 1), (0, 0, 0, 0), (8, 8, 4, 1)]
    strides += [(12, 1, 6, 3), (12, 4, 4, 1), (6, 1, 3, 3), (3, 1, 3, 3), (24, 1, 12, 3)]
    for size, stride in itertools.product(sizes, strides):
        tensor = _strided(size, stride)
        expected = suggest_memory_format(tensor) is torch.channels_last
        assert core.is_channels_last(*size, core.Strides(*stride)) == expected, (size, stride)
        assert is_channels_last(tensor) == expected, (size, stride)


def _strided(size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    reach = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True) if extent)
    return torch.empty(max(reach, 0) + 1, device="meta").as_strided(size, stride)


@pytest.mark.parametrize("shape", load_suite("full"), ids=lambda shape: shape.name)
def test_counts_agree_with_the_benchmark(core: ModuleType, shape: Shape) -> None:
    problem = make_problem(core, shape)
    assert (problem.P, problem.Q) == (shape.P, shape.Q)
    assert core.count_flops(problem) == shape.flops
    assert core.count_bytes(problem) == shape.elements * 4
    text = core.to_text(problem)
    assert Shape.parse(text.removesuffix(" float32"), shape.name) == shape


def test_different_problems_have_different_hashes(core: ModuleType) -> None:
    problems = [
        make_problem(core, shape, direction, dtype)
        for shape in load_suite("full")
        for direction in ("forward", "input_grad", "weight_grad")
        for dtype in ("float32", "bfloat16")
    ]
    assert len({core.hash_value(problem) for problem in problems}) == len(problems)
    again = make_problem(core, load_suite("full")[0])
    assert again == problems[0]
    assert core.hash_value(again) == core.hash_value(problems[0])


def test_halves_convert_as_pytorch_converts_them(core: ModuleType) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype, to_float in (
        (torch.float16, core.half_to_float),
        (torch.bfloat16, core.bfloat16_to_float),
    ):
        expected = bits.view(dtype).float().tolist()
        for pattern, value in zip(bits.tolist(), expected, strict=True):
            got = to_float(pattern & 0xFFFF)
            assert got == value or (math.isnan(got) and math.isnan(value))


def test_rounding_to_halves_is_pytorchs(core: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (20000,), generator=generator).to(torch.int32)
    edges = [0.0, -0.0, 65504.0, 65519.99, 65520.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14]
    values = torch.cat([patterns.view(torch.float32), torch.tensor(edges)])
    for dtype, from_float in (
        (torch.float16, core.float_to_half),
        (torch.bfloat16, core.float_to_bfloat16),
    ):
        expected = (values.to(dtype).view(torch.int16).int() & 0xFFFF).tolist()
        for value, bits in zip(values.tolist(), expected, strict=True):
            if not math.isnan(value):
                assert from_float(value) == bits, value
