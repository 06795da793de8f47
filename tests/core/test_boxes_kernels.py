"""The kernels of boxes, run on the host from their own source, against float64.

Barriers, copies of boxes and tensor cores are emulated (emulated_cuda/device); a GPU runs the same
code in tests/engines.
"""

from __future__ import annotations

import itertools
import json
import random
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from kernel_tester import Guarded, make_problem
from problems import h200
from torch import Tensor

MATH = [
    (torch.float32, "tf32"),
    (torch.bfloat16, "ieee"),
    (torch.float16, "ieee"),
]

CASES = [
    Case("one_box", (1, 64, 8, 16), (64, 64, 1, 1)),
    Case("pixels_in_a_row", (3, 72, 7, 9), (72, 72, 1, 1)),
    Case("few_channels_and_filters", (2, 8, 9, 11), (8, 8, 1, 1), bias=False),
    Case("two_tiles_of_filters", (1, 40, 12, 12), (136, 40, 1, 1)),
    Case("strided_pixels", (2, 40, 12, 14), (64, 40, 1, 1), stride=(2, 2)),
    Case("odd_image_strided", (3, 16, 9, 11), (24, 16, 1, 1), stride=(2, 3)),
    Case("padded", (2, 24, 9, 10), (72, 24, 3, 3), padding=(1, 1)),
    Case("four_sides", (2, 16, 7, 8), (16, 16, 3, 4), padding=(0, 2, 3, 1)),
    Case("strided", (2, 24, 15, 14), (40, 24, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("dilated", (1, 24, 16, 17), (16, 24, 3, 3), padding=(2, 4), dilation=(2, 3)),
    Case("rows_of_taps", (1, 16, 6, 40), (16, 16, 1, 9), padding=(0, 4), bias=False),
    Case("small_images", (20, 40, 4, 5), (32, 40, 3, 3), padding=(1, 1)),
    Case("wide_image", (1, 16, 3, 300), (16, 16, 3, 3), padding=(1, 1)),
    Case("kernel_larger_than_image", (2, 8, 4, 5), (8, 8, 7, 9), padding=(3, 4)),
    Case("many_taps", (1, 8, 9, 9), (8, 8, 5, 7), padding=(2, 3)),
    Case("many_chunks", (1, 264, 5, 6), (24, 264, 3, 3), padding=(1, 1)),
    # Pixels that begin anywhere: those of the source are copied first.
    Case("odd_channels", (2, 37, 9, 10), (72, 37, 3, 3), padding=(1, 1)),
    Case("odd_filters", (2, 40, 7, 9), (53, 40, 1, 1)),
    Case("channels_of_two", (3, 70, 7, 9), (90, 70, 1, 1)),
    Case("odd_units", (2, 100, 8, 9), (60, 100, 1, 1)),
    Case("pieces_of_8_bytes", (2, 40, 9, 10), (132, 40, 1, 1)),
    Case("pieces_of_4_bytes", (1, 24, 10, 13), (134, 24, 1, 1), bias=False),
    Case("many_odd_filters", (1, 24, 9, 31), (131, 24, 1, 1)),
    Case("one_strided_row", (1, 16, 1, 500), (68, 16, 1, 1), stride=(1, 8)),
    Case("three_channels", (2, 3, 15, 14), (7, 3, 3, 3), stride=(2, 2), padding=(1, 1)),
    # All filters of a tile follow each other: stored by units, the last ones value by value.
    Case("odd_pixels_and_filters", (3, 37, 11, 13), (29, 37, 1, 1)),
    Case("seven_filters", (2, 24, 9, 17), (7, 24, 1, 1), bias=False),
    Case("one_filter", (1, 16, 13, 21), (1, 16, 1, 1)),
    Case("one_channel_and_filter_last", (2, 1, 9, 9), (1, 1, 3, 3), padding=(1, 1)),
]


def random_case(seed: int) -> Case:
    random_of = random.Random(seed)
    kernel = (random_of.randint(1, 4), random_of.randint(1, 4))
    dilation = (random_of.randint(1, 2), random_of.randint(1, 3))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    unit = random_of.choice((1, 2, 4, 8, 8, 8))
    x = (
        random_of.randint(1, 5),
        unit * random_of.randint(1, 12),
        random_of.randint(reach[0], 16),
        random_of.randint(reach[1], 24),
    )
    return Case(
        f"random{seed}",
        x,
        (unit * random_of.randint(1, 12), x[1], *kernel),
        stride=(random_of.randint(1, 3), random_of.randint(1, 3)),
        padding=tuple(random_of.randint(0, 2) for _ in range(4)),
        dilation=dilation,
        bias=random_of.random() < 0.5,
    )


def run(
    core: ModuleType,
    case: Case,
    math: tuple[torch.dtype, str],
    direction: str = "forward",
    *,
    before: int = 0,
    filters_last: bool = False,
    filters: int = 0,
    resident: int = -1,
    descending: bool = False,
    sm_count: int = 2,
    planes: bool = False,
    source_is_last: bool | None = None,
    pieces: int = 0,
    in_turn: int = -1,
    parts: int = 0,
    flat: int = -1,
    workspace_limit: int | None = None,
) -> Any:
    """What the problem was fitted to, the refusal, or None if it cannot be as wished; checks the
    result."""
    dtype, precision = math
    last = not planes
    from_last = last if source_is_last is None else source_is_last
    problem = make_problem(core, case, dtype, channels_last=last)
    problem.precision = getattr(core.Precision, precision)
    problem.pass_ = getattr(core.Pass, direction)
    forward = direction == "forward"
    problem.has_bias = case.bias and forward
    if filters_last:
        problem.w_strides = core.channels_last_strides(*case.w[1:])
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    target = Guarded(torch.full_like(y if forward else x, torch.nan), last, before)
    source = Guarded(x if forward else y, from_last, before)
    if from_last != last:
        strides = core.channels_last_strides if from_last else core.contiguous_strides
        setattr(
            problem,
            "x_strides" if forward else "y_strides",
            strides(*(x if forward else y).shape[1:]),
        )
    weights = Guarded(w, filters_last, before)
    x_at, y_at = (source, target) if forward else (target, source)
    pointers = [t.tensor.data_ptr() for t in (x_at, weights, y_at)]
    caps = h200(core)
    caps.sm_count = sm_count  # so that blocks have several tiles
    if workspace_limit is not None:
        caps.workspace_limit = workspace_limit
    bias = b.data_ptr() if b is not None and forward else 0
    said = core.run_boxes(
        problem, caps, *pointers, bias, filters, resident, descending, pieces, in_turn, parts, flat
    )
    if said is None or isinstance(said, str):
        return said
    tf32 = precision == "tf32"
    if forward:
        reference.check_forward(target.tensor, case, x, w, b, tf32=tf32)
    else:
        reference.check_gradients((target.tensor, None, None), case, x, w, y, tf32=tf32)
    assert target.is_whole()
    assert source.is_whole()
    return said


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str
) -> None:
    said = run(core, case, math, direction)
    assert isinstance(said, dict), said


@pytest.mark.parametrize("seed", range(30))
def test_random_cases(core: ModuleType, seed: int) -> None:
    case = random_case(seed)
    for direction in ("forward", "input_grad"):
        said = run(
            core,
            case,
            MATH[seed % 3],
            direction,
            before=seed % 2 * 3,
            filters_last=seed % 5 > 2,
            filters=(0, 64, 128, 256, 192)[seed % 5],
            resident=(-1, 0)[seed % 3 > 1],
            descending=seed % 7 > 3,
            in_turn=seed // 2 % 2,
        )
        assert isinstance(said, dict), said


@pytest.mark.parametrize("filters", [64, 128, 192, 256])
@pytest.mark.parametrize("math", MATH[1:], ids=str)
def test_filters_by_columns(core: ModuleType, math: tuple[torch.dtype, str], filters: int) -> None:
    """Input gradients read 16-bit channels_last filters as they are."""
    for case, resident in (
        (Case("few", (2, 24, 9, 10), (72, 24, 3, 3), padding=(1, 1)), 1),
        (Case("two_boxes", (2, 136, 6, 7), (72, 136, 3, 2), padding=(1, 0)), 0),
        (Case("two_tiles", (1, 264, 7, 9), (136, 264, 1, 1)), 0),
        (Case("odd_filters", (1, 16, 9, 11), (37, 16, 3, 3), dilation=(2, 1)), -1),
        (Case("strided", (2, 72, 9, 11), (40, 72, 3, 3), stride=(2, 2), padding=(1, 1)), -1),
    ):
        wish = {"filters": filters, "resident": resident}
        said = run(core, case, math, "input_grad", filters_last=True, **wish)
        assert said is not None or resident > 0
        assert said is None or said["filter_columns"]
    # Filters that start between multiples of 16 bytes are packed.
    run(core, case, math, "input_grad", filters_last=True, before=1, filters=filters)


PHASES = [
    Case("kernel_of_two", (2, 24, 8, 10), (40, 24, 2, 2), stride=(2, 2)),
    Case("unequal_phases", (3, 72, 7, 9), (24, 72, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("unreached_rows", (2, 136, 9, 12), (16, 136, 1, 3), stride=(2, 2), padding=(0, 1)),
    Case("no_tap_at_all", (2, 16, 1, 1), (24, 16, 1, 1), stride=(2, 2), padding=(1, 1)),
    Case("dilated", (1, 16, 11, 13), (24, 16, 3, 2), stride=(2, 2), dilation=(2, 3)),
    Case("odd_channels", (2, 37, 9, 10), (21, 37, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("rows_of_odd_channels", (1, 29, 2, 40), (16, 29, 2, 1), stride=(2, 1)),
    Case("columns_of_even_channels", (1, 134, 1, 41), (16, 134, 1, 3), stride=(1, 2)),
]


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", PHASES, ids=str)
def test_phases_share_a_launch(core: ModuleType, case: Case, math: tuple[torch.dtype, str]) -> None:
    for filters, resident, before in ((0, -1, 0), (64, 1, 0), (128, 0, 1), (256, 0, 0)):
        said = run(
            core,
            case,
            math,
            "input_grad",
            filters=filters,
            resident=resident,
            before=before,
            filters_last=before == 0,
            in_turn=resident,
        )
        assert said is not None or resident > 0
        if said is not None:
            steps = (min(case.stride[0], case.x[2]), min(case.stride[1], case.x[3]))
            assert (said["launches"], said["phases"]) == (1, steps[0] * steps[1])


def test_many_phases(core: ModuleType) -> None:
    for stride, launches in (((1, 4), 1), ((3, 3), 3), ((4, 4), 4)):
        case = Case("phases", (2, 16, 13, 15), (24, 16, 4, 5), stride=stride, padding=(1, 2))
        for math in MATH[:2]:
            said = run(core, case, math, "input_grad")
            assert (said["launches"], said["phases"]) == (launches, 4)


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize("filters", [64, 128, 192, 256])
@pytest.mark.parametrize("math", MATH, ids=str)
def test_tiles_of_so_many_filters(
    core: ModuleType, math: tuple[torch.dtype, str], filters: int, resident: int
) -> None:
    case = Case("filters", (1, 56, 10, 26), (264, 56, 1, 1))
    said = run(core, case, math, filters=filters, resident=resident, pieces=1)
    assert (said["filters"], said["resident"]) == (filters, resident)
    if not resident:
        assert said["stages"] == {64: 3, 128: 6, 192: 4, 256: 4}[filters]
    else:
        assert said["grid"] % -(-264 // filters) == 0
    assert said["filters_in_place"]
    for other, direction in ((case, "forward"), (CASES[6], "input_grad"), (CASES[8], "forward")):
        said = run(
            core,
            other,
            math,
            direction,
            filters=filters,
            resident=resident,
            descending=True,
            before=1,
        )
        assert said is not None or resident


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize("math", MATH, ids=str)
def test_tiles_in_turn(core: ModuleType, math: tuple[torch.dtype, str], resident: int) -> None:
    """Every tile is taken once, by whichever block; those of all filters where filters stay."""
    for case, planes in (
        (Case("tiles", (3, 40, 13, 25), (200, 40, 1, 1)), False),
        (PLANES[2], True),
    ):
        for filters, sm_count in itertools.product((64, 128), (1, 3)):
            said = run(
                core,
                case,
                math,
                filters=filters,
                resident=resident,
                sm_count=sm_count,
                planes=planes,
                in_turn=1,
            )
            assert said["in_turn"]
            assert said["tiles"] > said["grid"]


def run_planes(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str, **wish: int
) -> Any:
    """The same in NCHW; blocks in both orders, by what is wished."""
    return run(core, case, math, direction, planes=True, descending=wish["filters"] == 128, **wish)


PLANES = [
    Case("one_tile_of_planes", (1, 64, 8, 16), (64, 64, 1, 1)),
    Case("lines_of_several_images", (5, 40, 4, 6), (72, 40, 1, 1)),
    Case("planes_that_end_within_lines", (3, 72, 14, 20), (24, 72, 1, 1), bias=False),
    Case("more_filters_than_a_tile", (2, 24, 8, 9), (264, 24, 1, 1)),
    Case("one_channel_and_filter", (2, 1, 8, 8), (1, 1, 1, 1)),
    Case("odd_channels_and_filters", (2, 37, 8, 10), (53, 37, 1, 1)),
    Case("several_chunks", (1, 200, 16, 20), (136, 200, 1, 1)),
]


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", PLANES, ids=str)
def test_planes(core: ModuleType, case: Case, math: tuple[torch.dtype, str], resident: int) -> None:
    """1x1 layers of NCHW tensors; also at odd addresses."""
    for direction in ("forward", "input_grad"):
        for before, filters in ((0, 0), (0, 256), (1, 64), (0, 128)):
            wish = {"resident": resident, "filters": filters, "before": before}
            said = run_planes(core, case, math, direction, **wish)
            assert isinstance(said, dict) or resident, said


# Of odd planes, which are copied with all others of a chunk; channels are whole units of 16 bytes.
IMAGES = [
    Case("planes_of_49", (5, 72, 7, 7), (136, 72, 1, 1)),
    Case("planes_of_25", (6, 40, 5, 5), (72, 40, 1, 1), bias=False),
    Case("planes_of_9", (31, 8, 3, 3), (24, 8, 1, 1)),
    Case("planes_of_81", (2, 200, 9, 9), (40, 200, 1, 1)),
    Case("planes_of_121", (2, 64, 11, 11), (128, 64, 1, 1)),
    Case("planes_of_169", (2, 72, 13, 13), (72, 72, 1, 1)),
    Case("planes_of_a_row", (4, 16, 1, 37), (264, 16, 1, 1)),
    Case("planes_of_a_column", (3, 136, 127, 1), (8, 136, 1, 1), bias=False),
    Case("planes_of_a_pixel", (150, 24, 1, 1), (40, 24, 1, 1)),
    Case("fewer_images_than_a_tile", (1, 48, 7, 7), (56, 48, 1, 1)),
]
HALF_IMAGES = [  # of an even number of pixels: two are a word
    Case("planes_of_196", (3, 80, 14, 14), (136, 80, 1, 1)),
    Case("planes_of_250", (2, 16, 25, 10), (24, 16, 1, 1), bias=False),
    Case("planes_of_36", (11, 24, 6, 6), (40, 24, 1, 1)),
]
FLOAT_IMAGES = [  # units have half as many channels
    Case("channels_of_four", (4, 36, 7, 7), (76, 36, 1, 1)),
    Case("one_unit", (15, 4, 3, 3), (4, 4, 1, 1)),
]


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize(
    ("case", "math"),
    [
        *((case, math) for case in IMAGES for math in MATH),
        *((case, math) for case in HALF_IMAGES for math in MATH[1:]),
        *((case, MATH[0]) for case in FLOAT_IMAGES),
    ],
    ids=str,
)
def test_images(core: ModuleType, case: Case, math: tuple[torch.dtype, str], resident: int) -> None:
    """1x1 layers of NCHW tensors whose planes end within units; also at odd addresses."""
    plane = case.x[2] * case.x[3]
    one_piece = (128,) if math[0] == torch.float32 else (128, 256)
    wishes = [(0, 0, 0)]  # as is best
    for pieces, tiles in ((1, one_piece), (2, (64, 128))):
        wishes += [(pieces, tiles[0], 0), (pieces, tiles[0], 1), (pieces, tiles[-1], 0)]
    for direction, (pieces, filters, before) in itertools.product(
        ("forward", "input_grad"), wishes
    ):
        wish = {"resident": resident, "filters": filters, "before": before, "pieces": pieces}
        said = run_planes(core, case, math, direction, **wish)
        if said is None:
            # Filters do not fit, or a tile has less than an image, or less than its first piece;
            # pairs always have two.
            images = min(case.x[0], pieces * 128 // plane)
            pairs = math[0] != torch.float32 and plane % 2 == 0
            assert resident or images * plane <= (pieces - 1) * 128 or (pairs and pieces == 1)
            continue
        images = min(case.x[0], said["pieces"] * 128 // plane)
        assert said["box"] == (plane, 1, images)
        filter_tiles = -(-case.w[direction == "input_grad"] // said["filters"])
        assert said["tiles"] == -(-case.x[0] // images) * filter_tiles
        assert filters in (0, said["filters"])
        assert pieces in (0, said["pieces"])


@pytest.mark.parametrize("math", MATH, ids=str)
def test_images_apart(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """Of a tensor with more channels, some."""
    case = Case("images_apart", (5, 24, 7, 7), (40, 24, 1, 1))
    x, w, b = case.tensors(math[0])
    wide = Guarded(torch.full((5, 32, 7, 7), torch.nan, dtype=math[0]))
    source = wide.tensor[:, 8:]
    source.copy_(x)
    target = Guarded(torch.full(case.y, torch.nan, dtype=math[0]))
    problem = make_problem(core, case, math[0])
    problem.precision = getattr(core.Precision, math[1])
    problem.x_strides = core.Strides(*source.stride())
    assert b is not None
    pointers = [t.data_ptr() for t in (source, w, target.tensor, b)]
    assert isinstance(core.run_boxes(problem, h200(core), *pointers), dict)
    reference.check_forward(target.tensor, case, x, w, b, tf32=math[1] == "tf32")
    assert target.is_whole()


# Of planes that begin anywhere.
SPANS = [
    Case("planes_of_289", (2, 72, 17, 17), (136, 72, 1, 1)),
    Case("planes_of_257", (1, 40, 257, 1), (264, 40, 1, 1), bias=False),
    Case("one_odd_plane", (1, 1, 19, 15), (1, 1, 1, 1)),
    Case("odd_channels_and_filters", (3, 37, 7, 7), (53, 37, 1, 1)),
    Case("odd_channels", (3, 35, 5, 11), (16, 35, 1, 1), bias=False),
    Case("odd_filters", (2, 16, 9, 9), (21, 16, 1, 1)),
    Case("several_chunks_of_spans", (2, 201, 13, 21), (70, 201, 1, 1)),
]


@pytest.mark.parametrize("resident", [0, 1])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", SPANS, ids=str)
def test_spans(core: ModuleType, case: Case, math: tuple[torch.dtype, str], resident: int) -> None:
    """Nothing is written around the target; at any address."""
    for direction in ("forward", "input_grad"):
        for before, filters in ((0, 0), (3, 256), (1, 64), (2, 128)):
            wish = {"resident": resident, "filters": filters, "before": before}
            said = run_planes(core, case, math, direction, **wish)
            assert isinstance(said, dict) or resident, said
            if said is not None:
                tiles = -(-case.x[2] * case.x[3] // 128) * case.x[0]
                targets = case.w[direction == "input_grad"]
                assert said["box"] == (128, 1, 1)
                assert said["tiles"] == tiles * -(-targets // said["filters"])


@pytest.mark.parametrize("math", MATH, ids=str)
def test_odd_addresses(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """Tensors that start between multiples of 16 bytes have no maps."""
    for case in (CASES[1], CASES[8]):
        run(core, case, math, before=1)
        run(core, case, math, before=3, filters_last=True)


def test_the_workspace_bounds_what_is_copied(core: ModuleType) -> None:
    problem = make_problem(
        core, Case("large", (4, 37, 9, 10), (8, 37, 3, 3)), torch.bfloat16, channels_last=True
    )
    caps = h200(core)
    padded_bytes = 4 * 9 * 10 * 40 * 2

    def ask() -> dict[str, Any]:
        said = json.loads(core.choose("cuda", problem, caps, "auto"))
        return next(each for each in said["candidates"] if each["name"] == "cuda_boxes")

    assert ask()["workspace_bytes"] > padded_bytes
    caps.workspace_limit = padded_bytes
    assert ask()["refusal"] == "a padded source does not fit in the workspace"


def test_shapes_are_what_they_should_be(core: ModuleType) -> None:
    bfloat16 = MATH[1]
    # Pixels of all images are one row.
    said = run(core, Case("flat", (5, 64, 7, 7), (64, 64, 1, 1)), bfloat16)
    assert (said["box"], said["tiles"]) == ((128, 1, 1), 2)
    assert said["filters_in_place"]
    # Images of 14 x 14 pixels leave nothing over in boxes of 2 x 2 pixels of 32 images.
    said = run(core, Case("fourteen", (32, 8, 14, 14), (8, 8, 3, 3), padding=(1, 1)), bfloat16)
    assert said["tiles"] == 49
    assert not said["filters_in_place"]
    case = Case("filters_last", (2, 16, 9, 9), (16, 16, 3, 3))
    assert run(core, case, bfloat16, filters_last=True)["filters_in_place"]
    said = run(core, case, bfloat16, "input_grad", filters_last=True)
    assert (said["filters_in_place"], said["filter_columns"]) == (False, True)
    # TF32 operands have to be K-major.
    said = run(core, case, MATH[0], "input_grad", filters_last=True)
    assert (said["filters_in_place"], said["filter_columns"]) == (False, False)


@pytest.mark.parametrize(
    ("case", "math", "said"),
    [
        (CASES[0], (torch.float32, "ieee"), "it computes float32 as TF32 only"),
        (
            Case("groups", (1, 16, 9, 9), (16, 8, 3, 3), groups=2),
            MATH[1],
            "it computes one group only",
        ),
        (
            Case("stride", (1, 16, 30, 30), (16, 16, 1, 1), stride=(1, 9)),
            MATH[1],
            "the stride is above 8",
        ),
        (Case("no_images", (0, 16, 7, 7), (16, 16, 1, 1)), MATH[1], "there are no images"),
    ],
    ids=str,
)
def test_refusals(core: ModuleType, case: Case, math: tuple[torch.dtype, str], said: str) -> None:
    assert run(core, case, math) == said


def check_not_finite(
    core: ModuleType,
    case: Case,
    math: tuple[torch.dtype, str],
    tensors: tuple[Tensor, Tensor, Tensor | None],
    *,
    channels_last: bool,
    sm_count: int = 132,
    parts: int = 0,
    flat: int = -1,
) -> None:
    """The result is NaN or infinite where it should be, and nowhere else."""
    x, w, b = tensors
    problem = make_problem(core, case, math[0], channels_last=channels_last)
    problem.precision = getattr(core.Precision, math[1])
    source = Guarded(x, channels_last)
    target = Guarded(torch.zeros(case.y, dtype=math[0]), channels_last)
    assert b is not None
    pointers = [t.data_ptr() for t in (source.tensor, w, target.tensor, b)]
    caps = h200(core)
    caps.sm_count = sm_count
    assert isinstance(core.run_boxes(problem, caps, *pointers, parts=parts, flat=flat), dict)
    want = reference.conv2d(case, x, w, b).float()
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(target.tensor.float()), test(want))


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_nan_and_infinity_stay_where_they_belong(
    core: ModuleType, math: tuple[torch.dtype, str], value: float, operand: str
) -> None:
    """Also where a tile ends: behind the last channel and filter, and outside of the image."""
    case = Case("not_finite", (2, 24, 7, 9), (40, 24, 3, 3), padding=(1, 1))
    x, w, b = case.tensors(math[0])
    (x if operand == "x" else w)[1, 2, 0, 0] = value
    check_not_finite(core, case, math, (x, w, b), channels_last=True, parts=1)


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_nan_and_infinity_of_images(
    core: ModuleType, math: tuple[torch.dtype, str], value: float
) -> None:
    """A stage keeps what lay behind the last channel, and rows of no image read any other's."""
    for case in (
        Case("not_finite_images", (7, 72, 7, 7), (24, 72, 1, 1)),
        Case("not_finite_spans", (5, 71, 11, 13), (24, 71, 1, 1)),
    ):
        x, w, b = case.tensors(math[0])
        x[0, 30, 0, 0] = x[3, -1, -1, -1] = value
        # By one multiprocessor, so that stages are used again.
        check_not_finite(core, case, math, (x, w, b), channels_last=False, sm_count=1)
