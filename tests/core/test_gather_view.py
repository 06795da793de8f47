"""The gather view: every phase together reads exactly what the definition reads."""

from __future__ import annotations

import itertools
from types import ModuleType

GRID = list(itertools.product(range(1, 7), range(1, 5), range(1, 5), range(4), range(1, 4)))


def pairs_by_definition(extent: int, kernel: int, stride: int, pad: int, dilation: int) -> set:
    """(x position, output position, tap) of one axis, with `pad` on both sides."""
    span = dilation * (kernel - 1) + 1
    outputs = (extent + 2 * pad - span) // stride + 1
    return {
        (p * stride - pad + r * dilation, p, r)
        for p in range(max(outputs, 0))
        for r in range(kernel)
        if 0 <= p * stride - pad + r * dilation < extent
    }


def test_forward_phases(core: ModuleType) -> None:
    for extent, kernel, stride, pad, dilation in GRID:
        outputs = core.output_extent(extent, pad, pad, kernel, stride, dilation)
        if outputs < 1:
            continue
        found = set()
        (phase,) = core.forward_phases(outputs, kernel, stride, pad, dilation)
        start, step, count, source_step, taps = phase
        assert (start, step, count) == (0, 1, outputs)
        for i in range(count):
            for tap, offset in taps:
                if 0 <= i * source_step + offset < extent:
                    found.add((i * source_step + offset, i, tap))
        assert found == pairs_by_definition(extent, kernel, stride, pad, dilation)


def test_input_grad_phases(core: ModuleType) -> None:
    for extent, kernel, stride, pad, dilation in GRID:
        outputs = core.output_extent(extent, pad, pad, kernel, stride, dilation)
        if outputs < 1:
            continue
        found, covered = set(), []
        for phase in core.input_grad_phases(extent, kernel, stride, pad, dilation):
            start, step, count, source_step, taps = phase
            assert count >= 1
            assert source_step == 1
            for i in range(count):
                covered.append(start + i * step)
                for tap, offset in taps:
                    if 0 <= i + offset < outputs:
                        found.add((start + i * step, i + offset, tap))
        assert sorted(covered) == list(range(extent))  # every pixel once
        assert found == pairs_by_definition(extent, kernel, stride, pad, dilation)
