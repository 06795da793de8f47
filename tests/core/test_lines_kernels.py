"""The kernels and launches of cuda_lines, run on the host from their own source, against float64.

Barriers, copies and tensor cores are emulated (emulated_cuda/device), copies and products as badly
timed as the hardware may; a GPU runs the same code in tests/engines. Tests wish for shapes that the
cost model would not choose for problems this small.
"""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType

import pytest
import reference
import torch
from cases import EDGES, WORKLOADS, Case
from kernel_tester import SPREADS, spread
from lines_tester import CUTS, DIRECTIONS, MATH, either_way, run, run_and_check
from problems import h200

COLUMNS = {math: [256, 224, 192, 128, 64] for math in MATH} | {
    "ieee": [160, 128, 96, 64],
    "half ieee": [96, 64],
}


# For each cut something that has several tiles, and rows and images that end within windows.
CUT_CASES = {
    "stretches": Case("stretches", (3, 20, 14, 14), (70, 20, 3, 3), padding=(1, 1)),
    "strips": Case("strips", (2, 9, 7, 70), (70, 9, 3, 3), (1, 1), (1, 0, 2, 1), (2, 1)),
    "rows": Case("rows", (2, 17, 6, 150), (66, 17, 3, 2), padding=(1, 1)),
    "pairs": Case("pairs", (2, 12, 9, 140), (65, 12, 2, 3), (1, 1), (2, 2), (2, 1)),
    "overlapping stretches": Case("overlapping", (3, 20, 13, 30), (70, 20, 3, 3), padding=(1, 1)),
    "overlapping rows": Case("overlapping_rows", (2, 9, 5, 152), (66, 9, 2, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("case", [c for c in EDGES + WORKLOADS if c.x[0] > 0], ids=str)
def test_edges(core: ModuleType, case: Case, math: str) -> None:
    """As the engine would run them, in either format and direction, by turns."""
    turn = len(case.name) + MATH.index(math)
    last, direction = turn % 2 == 1, DIRECTIONS[turn // 2 % 2]
    options = {"formats": (last, last, last), "before": len(case.name) % 3}
    said = run_and_check(core, case, math, direction=direction, **options)
    if direction == "forward":
        assert said is not None or case.w[2] * case.w[3] > 256 or case.stride > (2, 2)
    else:  # strides may have phases that no tap reaches
        assert said is not None or case.w[2] * case.w[3] > 256 or case.stride != (1, 1)


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("cut", CUTS)
def test_every_cut_and_window(core: ModuleType, cut: str, math: str) -> None:
    for i, columns in enumerate(COLUMNS[math]):
        wish = {"cut": cut, "columns": columns, "splits": 1, "seed": i}
        options = either_way(CUT_CASES[cut], DIRECTIONS[i % 2])
        said = run_and_check(core, **options, math=math, wish=wish, before=2 * (i % 3))
        assert said is not None
        assert said["cut"] == cut
        assert said["columns"] == columns


def random_case(rng: random.Random) -> Case:
    while True:
        groups = rng.choice([1, 1, 1, 2, 3])
        c, k = rng.choice([1, 3, 8, 16, 17, 40]), rng.choice([1, 3, 8, 64, 65, 72])
        r, s = rng.choice([(1, 1), (3, 3), (3, 3), (2, 3), (5, 4), (1, 5), (7, 1)])
        case = Case(
            "random",
            (rng.choice([1, 2, 3, 7]), groups * c, rng.choice([1, 2, 5, 8, 14, 20]),
             rng.choice([1, 3, 4, 7, 10, 16, 28, 33, 70])),
            (groups * k, c, r, s),
            (rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 1, 1, 2, 3])),
            tuple(rng.choice([0, 1, 2, 4]) for _ in range(4)),
            (rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 4])),
            groups,
            rng.random() < 0.5,
        )  # fmt: skip
        n, _, p, q = case.y
        if p >= 1 and q >= 1 and n * p * q * max(k, 64) * max(c, 16) * r * s * groups < 3e7:
            return case


@pytest.mark.parametrize("seed", range(144))
def test_random_cases(core: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    case, math = random_case(rng), MATH[seed % len(MATH)]
    caps = h200(core)
    caps.sm_count = rng.choice([1, 2, 132])
    wish = {"cut": rng.choice(CUTS), "splits": rng.choice([0, 1, 1, 2, 3]), "seed": seed}
    formats = (rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.3)
    options = {"formats": formats, "before": rng.choice([0, 1, 2, 3, 4, 6]), "caps": caps}
    direction = DIRECTIONS[seed // len(MATH) % 2]
    run_and_check(core, case, math, wish, direction=direction, **options)


@pytest.mark.parametrize("math", ["tf32", "bfloat16"])
@pytest.mark.parametrize("width", range(2, 26, 2))
def test_narrow_rows(core: ModuleType, width: int, math: str) -> None:
    """A sector may take pixels of several rows from the next window, or part of a window."""
    for cut in ("overlapping rows", "overlapping stretches", "rows", "stretches"):
        for s in (3, 1 + width // 2):
            case = Case("narrow", (2, 3, 19, width), (7, 3, 3, s), padding=(1, 1, s // 2, s // 2))
            if case.y[3] > 0:
                run_and_check(core, case, math, {"cut": cut, "splits": 1, "seed": width + s})


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("cut", CUTS)
def test_batches_of_images(core: ModuleType, cut: str, math: str) -> None:
    """Where the workspace has no room for the lines of all images, there are as few as need be."""
    case = Case("batches", (5, 9, 6, 70), (20, 9, 3, 3), padding=(1, 1))
    wish = {"cut": cut, "columns": 128, "filter_groups": 1, "lane_bytes": 32, "splits": 1}
    caps = h200(core)
    caps.sm_count = 2
    said = run_and_check(core, case, math, wish, caps=caps)
    assert said is not None
    assert said["images"] == 5
    # What halves leave to other kernels takes more than they do.
    caps.workspace_limit = said["workspace_bytes"] * (2 if "half" in math else 3) // 5
    said = run_and_check(core, case, math, wish, caps=caps)
    assert said is not None
    assert said["workspace_bytes"] <= caps.workspace_limit
    assert said["images"] < 5


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("cut", [*CUTS, "streaming", "carrying", "boxed stretches", "boxed pairs"])
def test_bands_of_rows(core: ModuleType, cut: str, math: str, direction: str) -> None:
    stride = (2, 1) if direction == "input_grad" and MATH.index(math) % 2 == 0 else (1, 1)
    case = Case("bands", (2, 16, 10, 70), (24, 16, 3, 3), stride, padding=(1, 1))
    wish = {"cut": cut, "columns": 128, "splits": 1, "bands": 3}
    last = "boxed" in cut
    said = run_and_check(core, case, math, wish, formats=(last, False, last), direction=direction)
    assert said is not None
    assert said["phases"] == 3 * stride[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("math", ["ieee", "tf32", "bfloat16"])
def test_images_whose_lines_do_not_fit(core: ModuleType, math: str, direction: str) -> None:
    """Are cut into bands of rows by the engine itself."""
    case = Case("tall", (1, 24, 80, 40), (24, 24, 3, 3), padding=(1, 1))
    caps = h200(core)
    whole = run_and_check(core, case, math, caps=caps, direction=direction)
    assert whole is not None
    assert whole["phases"] == 1
    caps.workspace_limit = whole["workspace_bytes"] // 2
    cut = run_and_check(core, case, math, caps=caps, direction=direction)
    assert cut is not None
    assert 2 <= cut["phases"] <= 16
    assert cut["workspace_bytes"] <= caps.workspace_limit
    caps.workspace_limit = 1000
    assert run(core, case, math, caps=caps, direction=direction)[0] is None


STREAMS = {
    "several_rows_in_a_stretch": Case("", (3, 5, 17, 16), (70, 5, 3, 3), padding=(1, 1)),
    "rows_of_several_stretches": Case("", (2, 16, 7, 152), (64, 16, 3, 3)),
    "few_filters": Case("", (2, 3, 20, 72), (3, 3, 3, 3), padding=(1, 1)),
    "many_taps": Case("", (2, 8, 12, 80), (66, 8, 5, 3), padding=(2, 2)),
    "dilated": Case("", (2, 9, 21, 64), (20, 9, 2, 3), padding=(0, 3, 5, 1), dilation=(3, 2)),
    "wide_padding": Case("", (2, 16, 5, 8), (128, 16, 3, 3), padding=(9, 40)),
    "one_image": Case("", (1, 13, 31, 40), (100, 13, 3, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("math", ["bfloat16", "float16", "half tf32"])
@pytest.mark.parametrize("name", STREAMS)
def test_blocks_that_stream(core: ModuleType, name: str, math: str) -> None:
    """They transpose the source themselves; sources that are not aligned are copied otherwise."""
    case = STREAMS[name]
    for blocks, before, last, direction in (
        (2, 0, False, "forward"),
        (3, 3, False, "input_grad"),
        (1, 2, True, "input_grad"),
        (7, 6, False, "forward"),
    ):
        caps = h200(core)
        caps.sm_count = blocks
        options = {"formats": (False, False, last), "before": before, "source_before": before // 3}
        options |= either_way(case, direction) | {"math": math, "wish": {"cut": "streaming"}}
        said = run_and_check(core, caps=caps, **options)
        assert said is not None
        assert said["cut"] == "streaming"
        assert said["aligned_rows"] == (before < 3)
        assert said["images"] == case.x[0]


CARRIES = {
    "rows_of_a_window": Case("", (2, 16, 9, 256), (80, 16, 3, 3), padding=(1, 1)),
    "rows_that_end_in_windows": Case("", (2, 7, 11, 112), (128, 7, 3, 3)),
    "small_images": Case("", (7, 9, 16, 16), (70, 9, 3, 3), padding=(1, 1)),
    "few_pixels_in_a_row": Case("", (3, 16, 40, 16), (66, 16, 1, 9)),
    "gaps_longer_than_a_part": Case("", (2, 8, 9, 248), (65, 8, 2, 3), dilation=(1, 121)),
    "one_by_one": Case("", (3, 16, 13, 24), (97, 16, 1, 1)),
    "long": Case("", (1, 3, 40, 120), (100, 3, 3, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("math", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CARRIES)
def test_blocks_that_carry(core: ModuleType, name: str, math: str) -> None:
    """What does not fill a piece of memory waits for the next window, unless there is none, or the
    image ends. Pairs of pixels that are not aligned leave nothing to carry."""
    case = CARRIES[name]
    for blocks, before, direction in (
        (1, 0, "forward"),
        (2, 6, "input_grad"),
        (3, 30, "forward"),
        (5, 2, "forward"),
        (7, 24, "input_grad"),
        (2, 1, "forward"),
    ):
        caps = h200(core)
        caps.sm_count = blocks
        options = either_way(case, direction) | {"math": math, "wish": {"cut": "carrying"}}
        said = run_and_check(core, caps=caps, before=before, **options)
        assert said is not None
        assert said["cut"] == "carrying"
        assert said["carries"] == (before % 2 == 0)


BOXES = {
    "small_images": Case("", (5, 40, 7, 7), (72, 40, 3, 3), padding=(1, 1)),
    "several_chunks": Case("", (2, 72, 14, 14), (66, 72, 3, 3), padding=(1, 1)),
    "one_by_one": Case("", (2, 24, 9, 30), (70, 24, 1, 1)),
    "strided": Case("", (2, 24, 15, 17), (20, 24, 3, 3), (2, 2), (1, 1)),
    "strided_by_rows": Case("", (2, 16, 9, 90), (20, 16, 3, 3), (1, 2), (1, 1)),
    "dilated": Case("", (2, 8, 12, 60), (20, 8, 3, 2), padding=(2, 1), dilation=(2, 3)),
    "groups": Case("", (2, 32, 9, 12), (6, 16, 3, 3), padding=(1, 1), groups=2),
    "wide_padding": Case("", (2, 16, 5, 8), (65, 16, 3, 3), padding=(4, 9)),
    "wide": Case("", (2, 16, 7, 150), (80, 16, 3, 3), padding=(1, 1)),
}


BOXED_CUTS = ("boxed stretches", "overlapping boxed stretches", "boxed pairs")


@pytest.mark.parametrize("cut", BOXED_CUTS)
@pytest.mark.parametrize("name", BOXES)
def test_tiles_read_by_boxes(core: ModuleType, name: str, cut: str) -> None:
    """Of sources whose channels lie together; those that are not aligned are gathered."""
    case, reached, all_filters = BOXES[name], 0, 0
    turn = list(BOXES).index(name) + BOXED_CUTS.index(cut)
    math = ("bfloat16", "float16")[turn % 2]
    for seed, lane_bytes in enumerate((32, 64, 128)):
        for before in (0, 3):
            wish = {"cut": cut, "lane_bytes": lane_bytes, "splits": 1, "seed": seed + before}
            wish["filter_groups"] = 2 if before == 0 and seed == 1 else 1
            options = {"formats": (True, False, seed == 1), "source_before": before}
            options |= either_way(case, DIRECTIONS[before == 0])
            said = run_and_check(core, math=math, wish=wish, before=2 * seed, **options)
            assert said is not None
            reached += said["cut"] == cut
            all_filters += said["cut"] == cut == "boxed pairs" and said["filter_groups"] == 2
            assert said["cut"] != cut or said["wide_channels"] == (before == 0)
    if "overlapping" in cut:  # rows have an even length, and are not short
        assert reached > 0 or name in {"small_images", "strided", "strided_by_rows", "dilated"}
    else:
        assert reached > 0
    # Where results are stored by boxes as well.
    assert (all_filters > 0) == (cut == "boxed pairs" and case.w[0] > 64 and case.w[0] % 8 == 0)


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("lane_bytes", [32, 64, 128])
def test_steps_of_a_single_tap(core: ModuleType, lane_bytes: int, math: str) -> None:
    """Are multiplied in one group; the last chunk has fewer."""
    for channels in (8, 40, 72):
        case = Case("single_tap", (2, channels, 9, 30), (70, channels, 1, 1), padding=(1, 0))
        for splits in (1, 2):
            wish = {"lane_bytes": lane_bytes, "splits": splits, "seed": channels}
            said = run_and_check(core, case, math, wish)
            assert said is not None
            assert said["lane_bytes"] == lane_bytes


@pytest.mark.parametrize("math", ["bfloat16", "float16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pixels_of_all_images_in_a_row(core: ModuleType, direction: str, math: str) -> None:
    """1x1 layers over pixels that follow each other, where the engine would have it so."""
    flat = 0
    for images, filters in ((6, 64), (4, 136), (3, 72)):
        case = Case("flat", (images, 64, 20, 14), (filters, 64, 1, 1))
        formats = (True, False, True)
        said = run_and_check(core, case, math, formats=formats, direction=direction)
        assert said is not None
        flat += said["flat"]
    assert flat > 0


def test_the_ring_wraps_around(core: ModuleType) -> None:
    """Where shared memory has no more room than the taps need, and a block has many windows."""
    caps = h200(core)
    caps.sm_count = 1
    case = Case("around", (3, 16, 60, 64), (70, 16, 3, 3), padding=(1, 1))
    for math in ("bfloat16", "half tf32"):
        for scarce, cut in ((False, "streaming"), (True, "streaming"), (True, "carrying")):
            if cut == "carrying" and math != "bfloat16":
                continue
            caps.shared_bytes_per_block = h200(core).shared_bytes_per_block
            if scarce:
                caps.shared_bytes_per_block -= 48 << 10
            said = run_and_check(core, case, math, {"cut": cut}, caps=caps)
            assert said is not None
            assert said["cut"] == cut
            assert said["tiles"] * 200 > 3 * said["ring_positions"]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("splits", [2, 3])
@pytest.mark.parametrize("math", MATH)
def test_split_reductions(core: ModuleType, math: str, splits: int, last: bool) -> None:
    caps = h200(core)
    caps.sm_count = 8
    for width in (7, 16):
        channels = 150 if math == "half ieee" else 70  # or all filters would stay
        case = Case("split", (2, channels, 9, width), (66, channels, 3, 3), padding=(1, 1))
        wish = {"splits": splits, "lane_bytes": 32, "columns": 64, "seed": splits}
        options = {"formats": (last, last, last), "before": 3, "caps": caps}
        said = run_and_check(core, case, math, wish, **options)
        assert said is not None
        assert said["splits"] == splits


@pytest.mark.parametrize("before", range(8))
@pytest.mark.parametrize("math", MATH)
def test_misaligned_targets(core: ModuleType, math: str, before: int) -> None:
    """Planes that begin anywhere: of 2, 4 or 8 times an odd number of pixels, and with gaps."""
    for height, width, cut in ((9, 24, "stretches"), (7, 34, "overlapping stretches")):
        case = Case("misaligned", (2, 8, height, width), (68, 8, 3, 3), padding=(1, 1))
        wish = {"cut": cut, "splits": 1, "seed": before, "columns": 128}
        said = run_and_check(core, case, math, wish, before=before)
        assert said is not None
        assert said["even_runs"] == (before % 2 == 0)


@pytest.mark.parametrize("math", MATH)
def test_several_images_in_a_window(core: ModuleType, math: str) -> None:
    """Their runs are staged, and copied, one by one; planes begin at any pair of pixels."""
    for height, width in ((8, 16), (10, 14), (9, 18)):
        case = Case("images", (5, 8, height, width), (67, 8, 3, 3), padding=(1, 1))
        for splits, before in ((1, 0), (1, 2), (2, 0)):
            wish = {"cut": "stretches", "splits": splits, "lane_bytes": 32, "seed": width + before}
            said = run_and_check(core, case, math, wish, before=before)
            if said is not None:
                assert said["even_runs"]


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("cut", CUTS)
def test_channels_last_targets(core: ModuleType, cut: str, math: str) -> None:
    """A pixel of all filters at once, where these are whole 16 bytes; few filters, and groups."""
    bytes_of_one = 2 if "float" in math else 4
    for seed, (filters, groups) in enumerate(((4, 1), (8, 2), (72, 1), (66, 1))):
        shape = (2, 3 * groups, 7, 70)
        case = Case("last", shape, (filters * groups, 3, 2, 3), padding=(1, 1), groups=groups)
        wish = {"cut": cut, "splits": 1, "seed": seed}
        said = run_and_check(core, case, math, wish, formats=(False, False, True))
        assert said is not None
        assert said["wide_target"] == (filters * bytes_of_one % 16 == 0)
        whole = bytes_of_one == 2 and said["wide_target"] and groups == 1
        assert said["boxed_target"] == (whole and "pairs" in said["cut"])


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38], ids=str)
@pytest.mark.parametrize("math", ["ieee", "tf32", "half ieee", "half tf32"])
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, math: str, value: float, operand: str
) -> None:
    """Sums that splitting spoils are formed anew."""
    case = Case("spoilt", (2, 20, 9, 18), (20, 20, 2, 3))
    x, w, b = case.tensors()
    (x if operand == "x" else w)[1, 7, 1, 2] = value
    want = reference.conv2d(case, x, w, b).float()
    ways = [("stretches", 1, False), ("overlapping stretches", 1, False), ("stretches", 2, False)]
    ways += [("pairs", 1, True), ("stretches", 1, True), ("strips", 1, False)]
    for cut, splits, last in ways:
        wish = {"cut": cut, "splits": splits, "lane_bytes": 32, "columns": 64}
        said, y = run(core, case, math, wish, tensors=(x, w, b), formats=(False, False, last))
        assert said is not None
        assert said.get("unfit", True)
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(test(y), test(want))
        finite = want.isfinite()
        close = 1e-4 if "ieee" in math else 1e-1
        assert torch.allclose(y[finite], want[finite], rtol=close, atol=close)


def test_the_cases_reach_every_way(core: ModuleType) -> None:
    """Or the tests above would say less than they seem to."""
    reached: Counter[str] = Counter()
    flags = [
        "even_runs",
        "cut_sectors",
        "wide_target",
        "wide_channels",
        "resident",
    ]
    cases = [
        Case("small", (5, 8, 7, 7), (64, 8, 3, 3), padding=(1, 1)),
        Case("even", (2, 8, 14, 16), (64, 8, 3, 3), padding=(1, 1)),
        Case("gaps", (2, 8, 14, 16), (64, 8, 3, 7), padding=(1, 0)),
        Case("strided", (2, 8, 21, 20), (72, 8, 3, 3), (2, 2), (1, 1)),
        Case("dilated", (1, 40, 20, 30), (130, 40, 3, 3), padding=(4, 4), dilation=(4, 4)),
    ]
    for case in cases:
        for last in (False, True):
            said, _ = run(core, case, "bfloat16", formats=(last, last, last))
            assert said is not None
            for flag in flags:
                reached[f"{flag} {said[flag]}"] += 1
            reached["several lines"] += said["lines"] > 1
            reached["several tiles per block"] += said["tiles"] > said["blocks"]
            reached["second warpgroup late"] += said["lead"] > 1
    assert not {way for way, count in reached.items() if count == 0}
    assert len(reached) == 2 * len(flags) + 3, reached


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(("name", "unfit"), SPREADS)
def test_values_that_lie_apart_are_not_halved(
    core: ModuleType, name: str, unfit: bool, last: bool
) -> None:
    """And either way each sum is as near as float32's own rounding errors would leave it."""
    case = Case("spread", (2, 24, 7, 18), (20, 24, 2, 3))
    x, w = spread(case, name)
    said, y = run(core, case, "half ieee", tensors=(x, w, None), formats=(last, False, last))
    assert said is not None
    assert said["unfit"] == unfit
    want = reference.conv2d(case, x, w, None)
    terms = reference.conv2d(case, x.abs(), w.abs(), None)
    assert ((y - want).abs() <= 4e-7 * terms + 1e-44).all()


@pytest.mark.parametrize(
    ("source", "filters", "careful"),
    [("either", "either", False), ("+", "either", False), ("-", "one", True), ("+", "+", True)],
)
def test_operands_of_one_sign_are_summed_step_by_step(
    core: ModuleType, source: str, filters: str, careful: bool
) -> None:
    """What is truncated would add up."""
    case = Case("signs", (2, 48, 7, 18), (20, 48, 3, 3))
    x, w, _ = case.tensors(torch.float32)
    signed = {"either": x, "+": x.abs(), "-": -x.abs()}[source]
    if filters == "one":
        w[3] = w[3].abs()
    elif filters == "+":
        w = w.abs()
    said, y = run(core, case, "half ieee", tensors=(signed, w, None))
    assert said is not None
    assert not said["unfit"]
    assert said["careful"] == careful
    want = reference.conv2d(case, signed, w, None)
    assert (y - want).norm() <= (1.5e-7 if careful else 4e-7) * want.norm()
