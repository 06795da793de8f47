"""The edge grid: named convolutions that every engine, dtype, layout and device is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    name: str
    x: tuple[int, int, int, int]  # N, C, H, W
    w: tuple[int, int, int, int]  # K, C/groups, R, S
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, ...] = (0, 0)  # (height, width) or (top, bottom, left, right)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def geometry(self) -> dict[str, Any]:
        """Keyword arguments of a call."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def pad4(self) -> tuple[int, int, int, int]:
        """Padding as (top, bottom, left, right)."""
        if len(self.padding) == 4:
            top, bottom, left, right = self.padding
            return top, bottom, left, right
        rows, columns = self.padding
        return rows, rows, columns, columns

    @property
    def y(self) -> tuple[int, int, int, int]:
        """N, K, P, Q"""
        top, bottom, left, right = self.pad4
        rows = self.x[2] + top + bottom - self.dilation[0] * (self.w[2] - 1) - 1
        columns = self.x[3] + left + right - self.dilation[1] * (self.w[3] - 1) - 1
        return (
            self.x[0],
            self.w[0],
            rows // self.stride[0] + 1,
            columns // self.stride[1] + 1,
        )

    @property
    def scalars(self) -> tuple[int, ...]:
        """Geometry in the order of the private operators' arguments, without the two strings."""
        return (*self.stride, *self.pad4, *self.dilation, self.groups)

    def tensors(
        self, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Random x, w and bias."""
        x, w, b = (draw(size, dtype, device, seed + i) for i, size in enumerate(self._sizes()))
        return x, w, b if self.bias else None

    def grad_output(
        self, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
    ) -> Tensor:
        return draw(self.y, dtype, device, seed + 3)

    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        return self.x, self.w, self.w[:1]


def draw(
    size: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> Tensor:
    """The same random numbers for every dtype and device, rounded to the dtype."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(size, generator=generator, dtype=torch.float64)
    return numbers.to(dtype=dtype, device=device)


EDGES = [
    Case("odd_channels", (2, 5, 9, 11), (7, 5, 3, 3), padding=(1, 1)),
    Case("many_odd_channels", (1, 37, 6, 7), (53, 37, 3, 3), padding=(1, 1)),
    Case("tile_and_one", (2, 17, 13, 33), (65, 17, 2, 2)),
    Case("long_reduction", (1, 131, 5, 5), (3, 131, 5, 5), padding=(2, 2), bias=False),
    Case("long_rows", (1, 3, 3, 301), (4, 3, 3, 3), padding=(1, 1)),
    Case("kernel_larger_than_image", (2, 3, 4, 5), (4, 3, 7, 9), padding=(3, 4)),
    Case(
        "image_inside_dilated_kernel", (1, 2, 2, 3), (3, 2, 3, 3), padding=(4, 6), dilation=(3, 4)
    ),
    Case("output_all_padding", (1, 2, 2, 2), (3, 2, 1, 1), stride=(3, 3), padding=(3, 3)),
    Case("stride_beyond_kernel", (2, 4, 13, 17), (5, 4, 2, 2), stride=(3, 5)),
    Case("stride_per_axis", (2, 4, 10, 15), (6, 4, 3, 3), stride=(1, 2), padding=(1, 0)),
    Case("dilation_per_axis", (2, 3, 14, 16), (5, 3, 3, 3), padding=(2, 4), dilation=(2, 3)),
    Case(
        "stride_and_dilation_share_no_factor",
        (1, 3, 17, 19),
        (4, 3, 3, 2),
        stride=(2, 3),
        padding=(3, 1),
        dilation=(3, 2),
    ),
    Case("dilation_multiple_of_stride", (1, 3, 15, 15), (4, 3, 3, 3), (2, 2), (2, 2), (4, 2)),
    Case("four_sided_padding", (2, 3, 7, 8), (4, 3, 3, 4), padding=(0, 2, 3, 1)),
    Case("four_sided_padding_strided", (1, 4, 8, 9), (6, 2, 3, 3), (2, 3), (3, 0, 1, 4), (1, 2), 2),
    Case("padding_on_one_side_only", (1, 2, 5, 5), (3, 2, 3, 3), padding=(0, 0, 0, 5)),
    Case("row_kernel", (2, 3, 6, 15), (4, 3, 1, 9), padding=(0, 4)),
    Case("column_kernel", (2, 3, 15, 6), (4, 3, 9, 1), padding=(4, 0)),
    Case("kernel_covers_image", (3, 4, 5, 6), (7, 4, 5, 6)),
    Case("one_by_one", (2, 19, 7, 9), (23, 19, 1, 1)),
    Case("one_by_one_without_bias", (3, 24, 7, 9), (20, 24, 1, 1), bias=False),
    Case("one_by_one_in_groups", (3, 12, 5, 6), (18, 4, 1, 1), groups=3, bias=False),
    Case("one_by_one_strided", (2, 8, 9, 10), (6, 8, 1, 1), stride=(2, 3), bias=False),
    Case("one_by_one_padded", (2, 5, 4, 4), (3, 5, 1, 1), padding=(1, 2, 0, 3)),
    Case("single_pixel", (3, 6, 1, 1), (4, 6, 1, 1)),
    Case("single_pixel_padded", (2, 3, 1, 1), (4, 3, 3, 3), padding=(1, 1)),
    Case("single_everything", (1, 1, 1, 1), (1, 1, 1, 1)),
    Case("single_channel_and_filter", (2, 1, 9, 9), (1, 1, 3, 3), padding=(1, 1)),
    Case("groups", (2, 6, 8, 9), (9, 2, 3, 3), padding=(1, 1), groups=3),
    Case("groups_of_odd_sizes", (1, 15, 7, 8), (21, 5, 3, 2), stride=(2, 1), groups=3),
    Case("groups_of_four", (3, 12, 13, 16), (12, 4, 3, 3), padding=(1, 1), groups=3),
    Case("groups_of_four_strided", (2, 8, 14, 16), (8, 4, 3, 3), (2, 2), (1, 1), groups=2),
    Case("groups_of_ten", (2, 20, 9, 11), (12, 10, 5, 4), (1, 1), (2, 1), (1, 2), 2),
    Case("depthwise", (2, 7, 9, 10), (7, 1, 3, 3), padding=(1, 1), groups=7),
    Case("depthwise_wide", (1, 33, 12, 12), (33, 1, 5, 5), (2, 2), (2, 2), groups=33, bias=False),
    Case("depthwise_multiplier", (2, 5, 8, 8), (15, 1, 3, 3), (1, 2), (1, 1), (2, 1), 5),
    Case("depthwise_of_eight", (3, 8, 9, 10), (8, 1, 3, 3), padding=(1, 1), groups=8),
    Case("depthwise_of_eight_strided", (2, 8, 13, 12), (8, 1, 3, 3), (2, 2), (1, 1), groups=8),
    Case("depthwise_small_planes", (5, 9, 7, 7), (9, 1, 3, 3), padding=(1, 1), groups=9),
    Case("depthwise_large_kernel", (1, 3, 20, 33), (3, 1, 13, 31), padding=(6, 15), groups=3),
    Case("depthwise_stride_three", (2, 8, 19, 24), (8, 1, 5, 4), (3, 3), (2, 1), groups=8),
    Case("depthwise_dilated", (2, 4, 18, 20), (4, 1, 3, 3), (1, 1), (2, 0, 3, 4), (2, 3), 4),
    Case("one_filter_per_group", (1, 12, 6, 6), (4, 3, 3, 3), padding=(1, 1), groups=4),
    Case("channels_of_eight", (2, 24, 9, 11), (40, 24, 3, 3), padding=(1, 1)),
    Case("channels_of_eight_strided", (3, 16, 13, 12), (24, 16, 3, 3), (2, 2), (1, 1), bias=False),
    Case("batch_one", (1, 8, 10, 10), (8, 8, 3, 3), padding=(1, 1)),
    Case("big_batch_of_small_images", (33, 3, 3, 4), (5, 3, 2, 2)),
    Case("empty_batch", (0, 4, 6, 7), (5, 4, 3, 3), padding=(1, 1)),
    # Rows and columns that no output reads: their input gradient is zero.
    Case("unread_pixels_between", (2, 3, 11, 13), (4, 3, 1, 2), stride=(4, 5)),
    Case("unread_pixels_at_the_end", (2, 3, 12, 13), (4, 3, 3, 3), stride=(5, 7)),
]

# The three reference workloads, with smaller images and channels.
WORKLOADS = [
    Case("seed62", (2, 8, 24, 32), (16, 8, 5, 9)),
    Case("seed63", (2, 4, 32, 34), (32, 4, 3, 3)),
    Case("seed80", (2, 8, 24, 36), (16, 8, 5, 9), padding=(2, 4), dilation=(2, 3)),
]

CASES = EDGES + WORKLOADS


def named(*names: str) -> list[Case]:
    """The cases of these names, for tests that need only some."""
    by_name = {case.name: case for case in CASES}
    return [by_name[name] for name in names]


# A few cases of different kinds, for tests that are slow or about something else.
SAMPLER = named(
    "odd_channels",
    "dilation_per_axis",
    "four_sided_padding_strided",
    "depthwise_multiplier",
    "one_by_one",
    "unread_pixels_between",
)
