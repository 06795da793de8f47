"""The heuristic: cheapest wins, a name overrides, and golden files show every choice."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from problems import a100, avx512, h200, make_problem, rtx4090

from conv2d_ext.bench.shapes import Shape, load_suite

GOLDEN = Path(__file__).resolve().parent / "golden"
DIRECTIONS = ("forward", "input_grad", "weight_grad")
SHAPE = load_suite("cpu")[0]
# By the name of their golden file.
MACHINES = {"cpu": avx512, "cuda": h200, "cuda_a100": a100, "cuda_rtx4090": rtx4090}


def choose(core: ModuleType, device: str, problem, caps, algorithm: str = "auto") -> dict:
    return json.loads(core.choose(device, problem, caps, algorithm))


def caps_of(core: ModuleType, device: str):
    return h200(core) if device == "cuda" else avx512(core)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_smallest_predicted_time_wins(core: ModuleType, device: str, direction: str) -> None:
    for shape in load_suite("full") + load_suite("cpu"):
        choice = choose(core, device, make_problem(core, shape, direction), caps_of(core, device))
        able = [c for c in choice["candidates"] if not c["refusal"] and not c["by_name_only"]]
        best = min(able, key=lambda candidate: candidate["predicted_us"])
        assert choice["engine"] == best["name"]
        assert best["predicted_us"] > 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_empty_batch_is_planned_too(core: ModuleType, device: str, direction: str) -> None:
    problem = make_problem(core, Shape.parse("n0c4h9w9 k8r3s3"), direction)
    choice = choose(core, device, problem, caps_of(core, device))
    assert choice["engine"] != ""
    for candidate in choice["candidates"]:
        assert candidate["refusal"] or candidate["predicted_us"] >= 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_name_overrides(core: ModuleType, device: str) -> None:
    problem, caps = make_problem(core, SHAPE), caps_of(core, device)
    candidates = choose(core, device, problem, caps)["candidates"]
    names = [c["name"] for c in candidates if not c["refusal"]]
    assert len(names) >= 2
    for name in names:
        choice = choose(core, device, problem, caps, name)
        assert choice["engine"] == name
        assert choice["error"] == ""


def test_unknown_names_are_refused_with_the_known_ones(core: ModuleType) -> None:
    choice = choose(core, "cpu", make_problem(core, SHAPE), avx512(core), "magic")
    assert choice["engine"] == ""
    assert "'magic'" in choice["error"]
    for candidate in choice["candidates"]:
        assert f"'{candidate['name']}'" in choice["error"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_workspace_is_bounded(core: ModuleType, direction: str) -> None:
    for shape in load_suite("full"):
        for dtype in ("float32", "float64", "bfloat16"):
            problem = make_problem(core, shape, direction, dtype)
            for threads in (1, 2, 64, 256):
                for candidate in choose(core, "cpu", problem, avx512(core, threads))["candidates"]:
                    assert candidate["workspace_bytes"] <= 64 << 20
            for limit in (4 << 20, 256 << 20):
                caps = h200(core)
                caps.workspace_limit = limit
                for candidate in choose(core, "cuda", problem, caps)["candidates"]:
                    if not candidate["refusal"]:
                        assert candidate["workspace_bytes"] <= limit, (shape, candidate)


def test_the_stated_workspace_is_that_of_aligned_tensors(core: ModuleType) -> None:
    """TMA reads rows of aligned tensors in place; others are packed, which takes 68 MB here."""
    shape = Shape.parse("n16c64h56w56 k256r1s1")
    problem = make_problem(core, shape, "weight_grad", "float32", "tf32")
    choice = json.loads(core.choose("cuda", problem, h200(core), "auto"))
    stated = {c["name"]: c.get("workspace_bytes") for c in choice["candidates"]}
    assert stated["cuda_weight_grad"] < 16 << 20
    planned = core.plan_weight_grad(problem, h200(core))
    assert planned["workspace"] > 64 << 20


def test_cache_tells_problems_machines_and_algorithms_apart(core: ModuleType) -> None:
    cache, caps = core.PlanCache(), avx512(core)

    def find(problem, caps=caps, device=0, algorithm="auto"):
        return cache.find("cpu", problem, caps, device, algorithm)

    first = make_problem(core, SHAPE)
    known = find(first)
    assert known[0] != 0
    assert known == find(make_problem(core, SHAPE))
    others = [
        find(make_problem(core, SHAPE, "input_grad")),
        find(first, avx512(core, 7)),
        find(first, device=1),
        find(first, algorithm="cpu_gemm"),
    ]
    assert len({known, *others}) == 5
    nothing, error = find(first, algorithm="magic")
    assert nothing == 0
    assert "'magic'" in error


def test_cache_works_past_its_capacity(core: ModuleType) -> None:
    cache, caps, problem = core.PlanCache(), avx512(core), make_problem(core, SHAPE)
    for device in range(5000):
        address, error = cache.find("cpu", problem, caps, device, "cpu_direct")
        assert address != 0, error
    assert cache.find("cpu", problem, caps, 4999, "cpu_direct")[0] == address


def test_variants_are_other_plans_of_an_engine(core: ModuleType) -> None:
    caps = h200(core)
    problem = make_problem(core, Shape.parse("n2c600h13w13 k304r1s1"), dtype="bfloat16")
    said = choose(core, "cuda", problem, caps)
    variants = {c["name"]: c.get("variants", []) for c in said["candidates"]}
    lt_0 = ["lt_0", *(f"lt_0_{which}" for which in range(2, 9))]  # cuBLASLt's proposals
    assert variants["cuda_gemm"] == ["planes", "side_by_side", "cublas", *lt_0, "lt_1", "lt_32"]
    boxes = next(c for c in said["candidates"] if c["name"] == "cuda_boxes")
    # Of planes of 169 pixels 128 filters are the most; of ten chunks parts have two at least.
    filters, parts = boxes["tile"][1], boxes["split"]
    others = ["tiles_64", "tiles_128", "parts_2", "parts_3", "parts_4", "parts_5"]
    others.remove(f"tiles_{filters}" if parts == 1 else f"parts_{parts}")
    assert variants["cuda_boxes"] == others
    assert not variants["cuda_direct"]

    def bytes_of(algorithm: str) -> int:
        said = choose(core, "cuda", problem, caps, algorithm)
        assert (said["error"], said["engine"]) == ("", "cuda_gemm")
        assert said["variant"] == algorithm.partition(":")[2]
        found = next(c for c in said["candidates"] if c["name"] == "cuda_gemm")
        return found["workspace_bytes"]

    assert bytes_of("cuda_gemm:planes") < bytes_of("cuda_gemm:side_by_side")
    assert bytes_of("cuda_gemm:lt_1") - bytes_of("cuda_gemm:lt_0") == 1 << 20
    unknown = choose(core, "cuda", problem, caps, "cuda_gemm:lt_2")["error"]
    assert "'cuda_gemm:lt_2' is none" in unknown
    assert "'cuda_gemm:lt_0', 'cuda_gemm:lt_0_2'" in unknown
    assert "'cuda_boxes:tiles_" in choose(core, "cuda", problem, caps, "cuda_boxes:a")["error"]
    direct = choose(core, "cuda", problem, caps, "cuda_direct:a")["error"]
    assert "cuda_direct has no variants" in direct
    wide = make_problem(core, Shape.parse("n2c600h13w13 k304r1s1"), precision="tf32")
    for variant in ("lt_1_8", "lt_32_2"):  # other proposals than without memory
        assert not choose(core, "cuda", wide, caps, f"cuda_gemm:{variant}")["error"]
        assert choose(core, "cuda", problem, caps, f"cuda_gemm:{variant}")["error"]
    problem.has_bias = True  # which cuBLAS cannot add
    assert choose(core, "cuda", problem, caps, "cuda_gemm:cublas")["error"]
    other = make_problem(core, Shape.parse("n2c64h13w13 k64r3s3"), dtype="bfloat16")
    assert "has no variants" in choose(core, "cuda", other, caps, "cuda_gemm:lt_0")["error"]


def test_cache_takes_what_was_measured(core: ModuleType) -> None:
    cache, caps = core.PlanCache(), h200(core)
    problem = make_problem(core, Shape.parse("n2c600h13w13 k304r1s1"), dtype="bfloat16")

    def engine(device: int = 0, algorithm: str = "auto") -> tuple[str, str, bool]:
        said = json.loads(cache.choose("cuda", problem, caps, device, algorithm))
        return said["engine"], said["variant"], said["tuned"]

    default = engine()
    assert not default[2]
    assert cache.find_engine("cuda", problem, caps, 0) == default[0] != "cuda_lines"
    cache.prefer(problem, 0, "cuda_lines")
    assert engine() == ("cuda_lines", "", True)
    assert cache.find_engine("cuda", problem, caps, 0) == "cuda_lines"
    assert engine(device=1) == default
    problem.w_strides.h, problem.w_strides.w = 7, 5  # of a single tap: they say nothing
    assert engine() == ("cuda_lines", "", True)
    assert engine(algorithm="cuda_boxes") == ("cuda_boxes", "", False)
    cache.prefer(problem, 0, "cuda_gemm:lt_32")
    assert engine() == ("cuda_gemm", "lt_32", True)
    cache.prefer(problem, 0, "cuda_gemm:side_by_side")
    caps.workspace_limit = 4096  # not within this
    assert not engine()[2]
    caps = h200(core)
    cache.prefer(problem, 0, "auto")
    assert engine() == default


def test_cache_notes_what_is_called(core: ModuleType) -> None:
    cache, caps = core.PlanCache(), avx512(core)
    first, second = make_problem(core, SHAPE), make_problem(core, SHAPE, "weight_grad")
    cache.find("cpu", first, caps, 0, "auto")
    assert cache.record(True) == []
    for problem in (first, second, first):
        cache.find("cpu", problem, caps, 0, "auto")
    cache.find("cpu", first, avx512(core, 7), 0, "auto")  # the same problem
    cache.find("cpu", first, caps, 0, "cpu_gemm")  # not for tuning to decide
    calls = cache.record(False)
    assert [json.loads(text)["direction"] for text, _ in calls] == ["forward", "weight_grad"]
    cache.find("cpu", second, caps, 1, "auto")
    assert cache.record(True) == []


@pytest.mark.parametrize("machine", MACHINES)
def test_golden_choices(core: ModuleType, machine: str) -> None:
    """A change of the heuristic shows here, shape by shape.

    CONVX_UPDATE_GOLDEN=1 writes the file anew; the difference belongs in the change's review.
    """
    device, caps = machine.split("_")[0], MACHINES[machine](core)
    modes = [("float32", "ieee"), ("bfloat16", "ieee")]
    if device == "cuda":
        modes.insert(1, ("float32", "tf32"))
    rows = [["shape", "direction", "dtype", "precision", "layout", "engine"]]
    for shape in load_suite("full" if device == "cuda" else "cpu"):
        for direction in DIRECTIONS:
            for dtype, precision in modes:
                for layout in ("nchw", "nhwc"):
                    problem = make_problem(
                        core, shape, direction, dtype, precision, layout == "nhwc"
                    )
                    engine = choose(core, device, problem, caps)["engine"]
                    rows.append([shape.name, direction, dtype, precision, layout, engine])
    path = GOLDEN / f"engine_choice_{machine}.csv"
    if os.environ.get("CONVX_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == rows


@pytest.mark.parametrize("machine", MACHINES)
def test_every_plan_describes_its_geometry(core: ModuleType, machine: str) -> None:
    """In a line of its own: variants are other ways to compute the same problem."""
    device, caps = machine.split("_")[0], MACHINES[machine](core)
    engines = set()
    for problem in list_problems(core, load_suite("full" if device == "cuda" else "cpu")):
        plans = core.describe_plans(device, problem, caps)
        for engine, variant, line in plans:
            assert re.fullmatch(r"[a-zA-Z0-9].*[a-zA-Z0-9)]", line), (engine, variant, line)
        variants = [(engine, line) for engine, variant, line in plans if variant]
        assert len(set(variants)) == len(variants), (core.to_text(problem), variants)
        engines |= {engine for engine, _, _ in plans}
    names = choose(core, device, make_problem(core, SHAPE), caps)["candidates"]
    assert engines >= {c["name"] for c in names if device == "cpu" or machine == "cuda"}


def test_a_geometry_is_read_by_its_engine_alone(core: ModuleType) -> None:
    problem, caps = make_problem(core, SHAPE, precision="tf32"), h200(core)
    said = choose(core, "cuda", problem, caps)
    geometries = {c["name"]: c["geometry"] for c in said["candidates"] if not c["refusal"]}
    assert core.describe_as_gemm("cuda_gemm", problem, caps) == geometries["cuda_gemm"]
    with pytest.raises(RuntimeError, match="another engine's plan"):
        core.describe_as_gemm("cuda_lines", problem, caps)


# Shapes at the edges of what engines compute: empty, flattened, cut into bands, large strides.
EDGES = (
    "n0c4h9w9 k8r3s3",
    "n2c600h13w13 k304r1s1",
    "n256c64h7w7 k64r3s3 pad1,1,1,1",
    "n1c8h2000w2000 k64r5s5 pad2,2,2,2",
    "n4c3h224w224 k96r11s11 stride4x4 pad2,2,2,2",
    "n2c64h31w33 k64r3s3 groups8 stride2x2 pad1,1,1,1",
)
MODES = (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"))


def list_problems(core: ModuleType, shapes: list[Shape]):
    for shape in shapes:
        for direction in DIRECTIONS:
            for dtype, precision in MODES:
                for channels_last in (False, True):
                    yield make_problem(core, shape, direction, dtype, precision, channels_last)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_chooses_what_explain_shows(core: ModuleType, machine: str) -> None:
    """A call leaves out engines that cannot win; a bound above a prediction would hide a winner."""
    device, caps = machine.split("_")[0], MACHINES[machine](core)
    shapes = [Shape.parse(text) for text in EDGES]
    bounds = 0
    for problem in list_problems(core, load_suite("full" if device == "cuda" else "cpu") + shapes):
        said = choose(core, device, problem, caps)
        able = {c["name"]: c for c in said["candidates"] if not c["refusal"]}
        best = able[said["engine"]]
        chosen = (best["name"], best["predicted_us"], best["workspace_bytes"])
        assert core.choose_for_call(device, problem, caps) == chosen, core.to_text(problem)
        for name, bound in core.bounds(device, problem, caps).items():
            if name in able:
                bounds += 1
                assert 0 <= bound <= able[name]["predicted_us"], (name, core.to_text(problem))
    assert bounds > 0 or machine != "cuda"


def draw_shape(random: Random) -> Shape | None:
    """Any layer, if its kernel fits: dense, grouped or depthwise, and of odd sizes, too."""
    channels = (1, 3, 4, 8, 12, 16, 20, 32, 48, 64, 80, 96, 128, 200, 256, 384, 512, 1024)
    extents = (1, 2, 5, 7, 8, 13, 14, 17, 28, 32, 50, 56, 64, 100, 112, 224)
    C, K, groups = random.choice(channels), random.choice(channels), 1
    if random.random() < 0.35:
        groups = random.choice([C, *(d for d in range(1, C + 1) if C % d == 0)])
        K = groups * random.choice((1, 1, 2, 8, 16))
    R, S = (random.choice((1, 1, 2, 3, 3, 3, 5, 7, 11)) for _ in range(2))
    H, W = (random.choice(extents) for _ in range(2))
    stride, dilation = random.choice((1, 1, 1, 2, 2, 3, 4)), random.choice((1, 1, 1, 1, 2, 3))
    pad = [random.choice((0, (kernel - 1) * dilation // 2)) for kernel in (R, S)]
    reach = [(kernel - 1) * dilation - 2 * p for kernel, p in zip((R, S), pad, strict=True)]
    if min(H - reach[0], W - reach[1]) <= 0:
        return None
    return Shape.parse(
        f"n{random.choice((1, 1, 2, 8, 32, 128))}c{C}h{H}w{W} k{K}r{R}s{S} "
        f"stride{stride}x{stride} pad{pad[0]},{pad[0]},{pad[1]},{pad[1]} "
        f"dilation{dilation}x{dilation} groups{groups}"
    )


def test_bounds_are_below_predictions(core: ModuleType) -> None:
    """For random layers: a bound above a prediction would hide a winner where nobody looks."""
    random, caps = Random(1), h200(core)
    counts: dict[str, int] = defaultdict(int)
    for _ in range(1500):
        if (shape := draw_shape(random)) is None:
            continue
        direction, layout = random.choice(DIRECTIONS), random.random() < 0.5
        problem = make_problem(core, shape, direction, *random.choice(MODES), layout)
        said = choose(core, "cuda", problem, caps)
        able = {c["name"]: c["predicted_us"] for c in said["candidates"] if not c["refusal"]}
        for name, bound in core.bounds("cuda", problem, caps).items():
            if name in able:
                counts[name] += 1
                assert 0 <= bound <= able[name], (name, core.to_text(problem))
        if direction != "weight_grad" and tuple(shape.stride) == (1, 1):
            assert core.bound_inner(problem, caps) <= min(able.values()), core.to_text(problem)
        call = core.choose_for_call("cuda", problem, caps)
        assert call[:2] == (said["engine"], able[said["engine"]]), core.to_text(problem)
    assert min(counts.values()) > 10


def test_a_named_engine_is_considered_alone(core: ModuleType) -> None:
    """The others are not planned: a call by name takes less than planning all of them does."""
    caps = h200(core)
    problem = make_problem(core, Shape.parse("n8c64h56w56 k64r3s3 pad1,1,1,1"))
    times = core.time_choice("cuda", problem, caps, 5)
    everything = sum(us for name, us in times.items() if name not in ("auto", "by_name"))
    assert times["by_name"] < everything * 2 / 3


def test_planning_is_fast(core: ModuleType) -> None:
    """Ten times what it takes where the wheel's compiler options are used: docs/choosing.md."""
    times = []
    for problem in list_problems(core, load_suite("full")):
        times.append(core.time_choice("cuda", problem, h200(core), 1)["auto"])
    times.sort()
    assert times[-1] < 5_000
    assert times[len(times) // 2] < 600


def test_tensor_core_engines_know_the_limits_of_a_grid(core: ModuleType) -> None:
    """More chunks of the reduction than a grid has rows."""
    problem = make_problem(core, Shape.parse("n1c3000000h1w2 k8r1s1"), precision="tf32")
    candidates = choose(core, "cuda", problem, h200(core))["candidates"]
    refusals = {candidate["name"]: candidate["refusal"] for candidate in candidates}
    assert "no tile fits" in refusals["cuda_pixels"]
    assert "no tile fits" in refusals["cuda_lines"]
    assert "no tile fits" in refusals["cuda_mma"]
    assert refusals["cuda_direct"] == ""


def test_portable_tensor_cores(core: ModuleType) -> None:
    """From sm_80 on, and with code that has their instructions."""
    problem = make_problem(core, Shape.parse("n8c64h56w56 k64r3s3 pad1,1,1,1"), precision="tf32")

    def refusal(caps) -> str:
        candidates = choose(core, "cuda", problem, caps)["candidates"]
        return next(c["refusal"] for c in candidates if c["name"] == "cuda_mma")

    def is_by_name_only(caps) -> bool:
        candidates = choose(core, "cuda", problem, caps)["candidates"]
        return next(c["by_name_only"] for c in candidates if c["name"] == "cuda_mma")

    for machine in (a100, rtx4090, h200):
        assert refusal(machine(core)) == ""
        # Its rivals were measured on Hopper, and it was not.
        assert is_by_name_only(machine(core)) == (machine is h200)
    assert choose(core, "cuda", problem, a100(core))["engine"] == "cuda_mma"
    caps = a100(core)
    caps.code_arch = 75  # PTX of an older architecture
    assert "no code" in refusal(caps)
    caps.compute_major, caps.compute_minor = 7, 5
    assert "8.0" in refusal(caps)
