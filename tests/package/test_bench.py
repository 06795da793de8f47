"""The benchmark: rows, files, verdicts."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import conv2d_ext
from conv2d_ext import _ops
from conv2d_ext._fused import ACTIVATIONS
from conv2d_ext._precision import PRECISIONS, dtype_of, precision_name
from conv2d_ext._shape import LAYOUTS, PASSES, Shape
from conv2d_ext.bench import measure, peers, report
from conv2d_ext.bench.accuracy import WRONG_ABOVE
from conv2d_ext.bench.reference import sampled_error, worst_sampled_error
from conv2d_ext.cli import main
from conv2d_ext.explain import Candidate, Explanation, explain_case
from conv2d_ext.measuring import roofline
from conv2d_ext.measuring.case import Case, Operands, join_engines
from conv2d_ext.measuring.roofline import floor_seconds, least_seconds, measure_ceilings
from conv2d_ext.measuring.timing import Timer, scratch_bytes
from conv2d_ext.tuning import clear_tuned

PERFORMANCE = Path(__file__).resolve().parents[2] / "docs/performance"
# Rows of layers; that file has rows of models.
MODELS = {PERFORMANCE / "h200-models.json"}
COMMITTED = sorted(set(PERFORMANCE.glob("*.json")) - MODELS)
TINY = "n1c4h6w7 k4r3s3 pad1,0,2,1"
CPU = torch.device("cpu")
QUICK = ["bench", TINY, "--device", "cpu", "--seconds", "0.001"]


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_check_notices_a_wrong_element(direction: str, layout: str) -> None:
    shape = Shape.parse("n2c4h5w6 k6r3s2 stride2x1 pad1,0,2,1 dilation1x2 groups2")
    operands = Operands(Case(shape, direction, "ieee", layout), torch.device("cpu"))
    tensors = operands.x, operands.w, operands.g
    for result in (operands.ours(), operands.theirs()):
        assert sampled_error(direction, shape, result, *tensors) < 1e-6
        assert sampled_error(direction, shape, result + 1, *tensors) > 1e-2


def test_a_bias_takes_part_in_the_forward_pass() -> None:
    shape = Shape.parse(TINY)
    case = Case(shape, "fwd", "fp64", "nchw", bias=True)
    operands = Operands(case, torch.device("cpu"))
    assert operands.b is not None
    with_bias = operands.ours()
    torch.testing.assert_close(with_bias, operands.theirs())
    operands.b += 1
    torch.testing.assert_close(operands.ours(), with_bias + 1)


def test_graphs_need_a_gpu(capsys: pytest.CaptureFixture) -> None:
    assert main([*QUICK, "--graphs"]) != 0
    assert "CUDA graphs are timed on a GPU" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other workers use the GPU as well")
def test_graphs_take_as_long_as_calls() -> None:
    device = torch.device("cuda")
    x = torch.randn(1 << 26, device=device)
    timers = [Timer(device, budget_s=0.05, graphs=graphs) for graphs in (False, True)]
    turns = [[timer.median_ms(x.cos) for timer in timers] for _ in range(10)]
    times = [min(of_timer) for of_timer in zip(*turns, strict=True)]  # others add to it
    assert times[1] == pytest.approx(times[0], rel=0.2)


def test_what_is_compared_takes_turns() -> None:
    order: list[int] = []
    calls = [lambda i=i: order.append(i) for i in range(3)]
    times = Timer(torch.device("cpu"), budget_s=0).medians_ms(calls)
    assert len(times) == 3
    assert order[-15:] == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2, 1, 2, 0]


def test_tuning_shows_what_is_taken_without(tmp_path: Path) -> None:
    out = tmp_path / "tuned.json"
    assert main([*QUICK, "--tune", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert all(row["untuned"].startswith("cpu_") and row["untuned_ms"] > 0 for row in rows)
    clear_tuned()
    assert main([*QUICK, "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert all(row["untuned"] is None and row["untuned_ms"] is None for row in rows)


def test_writes_rows_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "new folder" / "rows.json"
    command = [*QUICK, "--json", str(out)]
    assert main(command) == 0
    document = json.loads(out.read_text())
    assert {"device", "torch", "revision"} <= set(document["machine"])
    limits = {"bytes_per_s", "cache_bytes_per_s", "cache_bytes", "ieee"}
    assert set(document["ceilings"]) == limits
    assert [row["direction"] for row in document["rows"]] == ["fwd", "dgrad", "wgrad"]
    keys = "shape direction precision layout engine ours_ms cudnn_ms ratio floor_ms rel_error"
    for row in document["rows"]:
        assert set(keys.split()) <= set(row)
        assert row["ratio"] == pytest.approx(row["cudnn_ms"] / row["ours_ms"])
        assert row["rel_error"] < 1e-5
    assert main([*command, "--compare", str(out)]) == 0
    assert "before ms" in capsys.readouterr().out
    assert main([*command, "--require", "1e9"]) == 1
    assert main([*command, "--require-mean", "1e9"]) == 1
    assert "below --require" in capsys.readouterr().out


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_results_can_be_read(path: Path) -> None:
    """Files that earlier versions wrote, too."""
    rows, about = report.read_json(path)
    assert rows
    assert about["machine"]["torch"]
    assert "change" in report.format_comparison(rows, rows)


def test_csv_has_what_json_has(tmp_path: Path) -> None:
    files = tmp_path / "rows.csv", tmp_path / "rows.json"
    assert main([*QUICK, "--csv", str(files[0]), "--json", str(files[1])]) == 0
    with files[0].open(newline="") as file:
        lines = list(csv.DictReader(file))
    rows, about = report.read_json(files[1])
    assert [line["engine"] for line in lines] == [row.engine for row in rows]
    assert [float(line["ours_ms"]) for line in lines] == [row.ours_ms for row in rows]
    assert lines[0]["text"] == TINY
    assert "machine" in about


def test_every_precision_and_layout(capsys: pytest.CaptureFixture) -> None:
    names = ",".join(PRECISIONS)
    assert main([*QUICK, "--precisions", names, "--layouts", "nchw,nhwc"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(TINY) for line in lines) == 3 * 2 * len(PRECISIONS)


@pytest.mark.parametrize("name", PRECISIONS)
def test_precision_names(name: str) -> None:
    assert precision_name(dtype_of(name), "tf32" if name == "tf32" else "ieee") == name
    assert 0 < WRONG_ABOVE[name] < 0.1


def test_presets_with_fewer_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Timer, "medians_ms", lambda self, calls: [1.0] * len(calls))
    rest = ["--batch", "1", "--device", "cpu", "--directions", "fwd"]
    assert main(["bench", "--preset", "convnext,check", *rest]) == 0
    out = capsys.readouterr().out
    assert "cnx_56_7x7_96_dw" in out
    assert "chk_3x3" in out


def test_inductor_is_a_second_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """torch.compile returns its argument here, because compiling takes minutes."""
    asked = []

    def compile_nothing(function, **options):
        asked.append(options["mode"])
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    out = tmp_path / "rows.json"
    assert main([*QUICK, "--vs", "cudnn,inductor", "--json", str(out)]) == 0
    assert asked == ["max-autotune-no-cudagraphs"] * 3
    assert "inductor ms" in capsys.readouterr().out
    rows, _ = report.read_json(out)
    assert all(row.inductor_ms > 0 for row in rows)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("bias", [False, True])
def test_cublas_is_a_peer_of_1x1_layers(bias: bool, layout: str) -> None:
    def made(text: str, direction: str = "fwd") -> Operands:
        case = Case(Shape.parse(text), direction, "fp64", layout, bias=bias)
        return Operands(case, torch.device("cpu"))

    operands = made("n2c3h5w4 k6r1s1")
    product = peers.cublas(operands)
    assert product is not None
    y = product()
    want = operands.theirs()
    if layout == "nhwc":
        want = want.permute(0, 2, 3, 1)
    torch.testing.assert_close(y.flatten(), want.flatten())
    for text in ("n2c3h5w4 k6r1s2", "n2c3h5w4 k6r1s1 stride2x1", "n2c4h5w4 k6r1s1 groups2"):
        assert peers.cublas(made(text)) is None
    assert peers.cublas(made("n2c3h5w4 k6r1s1", "dgrad")) is None


def test_bias_and_cublas_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "rows.json"
    shape = "n1c4h6w7 k4r1s1"
    options = ["--device", "cpu", "--directions", "fwd", "--seconds", "0.001"]
    asked = ["--bias", "--vs", "cublas", "--json", str(out)]
    assert main(["bench", shape, *options, *asked]) == 0
    text = capsys.readouterr().out
    assert "cublas ms" in text
    assert "forward +bias" in text
    rows, _ = report.read_json(out)
    assert all(row.bias and row.cublas_ms > 0 for row in rows)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--activation", "relu"], "forward +relu"),
        (["--residual"], "forward +residual"),
        (["--activation", "silu", "--residual", "--bias"], "forward +bias +residual +silu"),
    ],
)
def test_epilogues_are_measured_against_separate_operators(
    asked: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "rows.json"
    options = ["--device", "cpu", "--direction", "forward", "--seconds", "0.001"]
    assert main(["bench", "n1c4h6w7 k4r3s3", *options, *asked, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert words in text
    assert "unfused ms" in text
    (row,), _ = report.read_json(out)
    assert row.residual == ("--residual" in asked)
    assert row.activation == (asked[1] if asked[0] == "--activation" else "none")
    assert row.unfused_ms > 0
    assert row.rel_error < 1e-6
    assert row.cudnn_rel_error < 1e-6


def test_layers_without_and_with_a_residual(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--device", "cpu", "--direction", "forward", "--seconds", "0.001"]
    asked = ["--activation", "relu", "--residual", "both", "--json", str(out)]
    assert main(["bench", "n1c4h6w7 k4r3s3", *options, *asked]) == 0
    rows, _ = report.read_json(out)
    assert [row.residual for row in rows] == [False, True]


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_peers_finish_as_a_fused_call_does(activation: str) -> None:
    shape = Shape.parse("n2c3h5w4 k6r3s3")
    case = Case(shape, "fwd", "fp64", "nchw", bias=True, activation=activation, residual=True)
    operands = Operands(case, torch.device("cpu"))
    torch.testing.assert_close(operands.ours(), operands.theirs())
    torch.testing.assert_close(operands.ours(), operands.unfused())


@pytest.mark.parametrize("asked", [["--residual"], ["--activation", "relu", "--host"]])
def test_epilogues_belong_to_the_forward_pass(
    asked: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main([*QUICK, *asked]) != 0
    assert "--activation and --residual need --direction forward" in capsys.readouterr().err


def test_a_failing_inductor_costs_only_its_own_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(peers, "_compiled_convolution", lambda case: fail)
    with pytest.warns(UserWarning, match="no inductor time for n1c4h6w7.*: no compiler$"):
        assert main([*QUICK, "--vs", "inductor"]) == 0
    assert "ratio" in capsys.readouterr().out


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operands, "ours", lambda self: self.theirs() * 1.01)
    assert main(QUICK) == 1


def test_engines_by_name_and_with_their_variants() -> None:
    candidates = (
        Candidate("one", refusal="it cannot", variants=("large",)),
        Candidate("two", variants=("large", "small")),
    )
    explanation = Explanation("", "forward", "ieee", "two", 0, 0, candidates)
    for asked, able in {
        ("auto",): ["auto"],
        ("one", "two"): ["two"],
        ("one:*", "two:*"): ["two", "two:large", "two:small"],
        ("one:large", "two:large", "three"): ["two:large", "three"],
        ("two:small", "two:tiny"): ["two:small"],
    }.items():
        assert measure.able_engines(asked, [explanation]) == able


def test_an_engine_of_a_training_step_has_to_run_all_passes() -> None:
    def explained(**refusals: str | None) -> Explanation:
        candidates = [
            Candidate(name, refusal=why, variants=("v",)) for name, why in refusals.items()
        ]
        return Explanation("", "forward", "ieee", "one", 0, 0, tuple(candidates))

    passes = [explained(one=None, two=None), explained(one="it cannot", two=None)]
    assert measure.able_engines(["auto", "one", "two:*"], passes) == ["auto", "two", "two:v"]


STEP_SHAPE = Shape.parse("n2c4h5w6 k6r3s2 stride2x1 pad1,0,2,1 dilation1x2 groups2", "step")


def make_step(bias: bool, layout: str = "nchw", precision: str = "ieee") -> Operands:
    return Operands(Case(STEP_SHAPE, "train", precision, layout, bias=bias), CPU)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_training_step_is_what_autograd_computes(bias: bool, layout: str) -> None:
    operands = make_step(bias, layout, "fp64")
    leaves = [t for t in (operands.x, operands.w, operands.b) if t is not None]
    for leaf in leaves:
        leaf.requires_grad_()
    s = STEP_SHAPE
    x, w, b = (operands.x, operands.w, operands.b)
    y = conv2d_ext.conv2d(x, w, b, s.stride, s.pad, s.dilation, s.groups)
    want = [y.detach(), *torch.autograd.grad(y, leaves, operands.g)]
    with torch.no_grad():
        for results in (operands.ours(), operands.theirs()):
            assert isinstance(results, tuple)
            assert len(results) == (4 if bias else 3)
            for result, expected in zip(results, want, strict=True):
                torch.testing.assert_close(result, expected)


def test_the_error_of_a_training_step_is_that_of_its_worst_result() -> None:
    operands = make_step(bias=True)
    rest = operands.x, operands.w, operands.g, operands.b
    results = operands.ours()
    assert worst_sampled_error("train", STEP_SHAPE, results, *rest) < 1e-6
    for i in range(4):
        for change in (1.0, torch.nan):
            wrong = tuple(t + change if i == j else t for j, t in enumerate(results))
            assert not worst_sampled_error("train", STEP_SHAPE, wrong, *rest) < 1e-2


def test_a_training_step_calls_each_pass_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for bias in (False, True):
        operands = make_step(bias)
        called = []

        def count(name: str, called: list[str] = called) -> None:
            function = getattr(_ops, name)

            def counted(*args, **kwargs):
                called.append(name)
                return function(*args, **kwargs)

            monkeypatch.setattr(_ops, name, counted)

        for name in ("conv2d", "input_grad", "weight_grad", "bias_grad"):
            count(name)
        operands.ours()
        assert called == ["conv2d", "input_grad", "weight_grad", "bias_grad"][: 4 if bias else 3]
        monkeypatch.undo()


def test_training_steps_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out, table = tmp_path / "rows.json", tmp_path / "rows.csv"
    asked = ["--direction", "training_step,all", "--bias", "--json", str(out), "--csv", str(table)]
    assert main([*QUICK, *asked]) == 0
    assert "training_step +bias" in capsys.readouterr().out
    rows, about = report.read_json(out)
    assert [row.direction for row in rows] == ["fwd", "dgrad", "wgrad", "train"]
    *passes, step = rows
    assert step.bias
    assert step.floor_ms == pytest.approx(sum(row.floor_ms for row in passes))
    assert step.tflops == pytest.approx(3 * Shape.parse(TINY).flops / step.ours_ms / 1e9)
    assert step.engine == join_engines([row.engine for row in passes])
    assert set(step.engine.split("+")) <= {"cpu_direct", "cpu_gemm"}
    assert step.chosen
    assert step.rel_error < 1e-5
    assert main([*QUICK, "--direction", "train", "--bias", "--compare", str(out)]) == 0
    assert re.search(r"training_step \+bias.*[+-]\d", capsys.readouterr().out.split("before ms")[1])
    assert about["ceilings"]


def test_a_training_step_by_one_engine_and_tuned(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [*QUICK, "--direction", "training_step", "--json", str(out)]
    assert main([*command, "--engines", "cpu_direct"]) == 0
    (row,), _ = report.read_json(out)
    assert row.engine == "cpu_direct"
    assert main([*command, "--tune", "--vs", "cublas"]) == 0
    clear_tuned()
    (row,), _ = report.read_json(out)
    assert row.untuned is not None
    assert row.untuned_ms > 0
    assert row.cublas_ms is None


def test_passes_of_a_training_step_have_engines_of_their_own() -> None:
    names = ("cpu_gemm", "cpu_gemm", "cpu_direct")
    text = join_engines(names)
    assert text == "cpu_gemm+cpu_gemm+cpu_direct"
    operands = make_step(bias=False).by_engine(text)
    assert operands.engines == names
    assert join_engines(["cpu_gemm"] * 3) == "cpu_gemm"
    assert operands.by_engine("auto").engines == ("auto",) * 3
    with pytest.raises(RuntimeError, match="nothing"):
        operands.by_engine("cpu_gemm+cpu_gemm+nothing").ours()


@pytest.mark.parametrize("command", ["scan", "explain"])
def test_other_commands_know_no_training_steps(command: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main([command, TINY, "--direction", "training_step"])
    assert "'training_step' is none of forward" in capsys.readouterr().err


def test_engines_that_refuse_have_no_row(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    whole = measure.explain_passes

    def explain(case, device):
        (said,) = whole(case, device)
        candidates = [
            replace(c, refusal="it is tired") if c.name == "cpu_gemm" else c
            for c in said.candidates
        ]
        return [replace(said, candidates=tuple(candidates))]

    monkeypatch.setattr(measure, "explain_passes", explain)
    assert main([*QUICK, "--engines", "cpu_gemm,cpu_direct"]) == 0
    out = capsys.readouterr().out
    assert "cpu_direct" in out
    assert "cpu_gemm" not in out


def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    whole = measure.measure

    def interrupted(case, *rest):
        if case.direction == "wgrad":
            raise KeyboardInterrupt
        return whole(case, *rest)

    monkeypatch.setattr(measure, "measure", interrupted)
    assert main(QUICK) == 130
    captured = capsys.readouterr()
    assert "stopped: 2 of 3 cases done\nconvx bench: interrupted\n" in captured.err
    assert "input_grad" in captured.out


def test_a_file_that_is_no_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    wrong = tmp_path / "wrong.json"
    row = json.loads((PERFORMANCE / "cpu.json").read_text())["rows"][0]
    changes = {
        "ours_ms": "fast",
        "text": "n1",
        "direction": "back",
        "precision": "fp8",
        "layout": "chwn",
    }
    damaged = [{**row, name: value} for name, value in changes.items()]
    for document in ({"rows": [{"shape": 1}]}, [], {"rows": 1}, *({"rows": [r]} for r in damaged)):
        wrong.write_text(json.dumps(document))
        assert main([*QUICK, "--compare", str(wrong)]) == 2
        assert "wrong.json is not a file that `convx bench --json` wrote" in capsys.readouterr().err


def test_comparison_is_with_what_the_file_had_before(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """--json may replace the file of --compare."""
    path = tmp_path / "rows.json"
    assert main([*QUICK, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    for row in document["rows"]:
        row["ours_ms"] = 1e6
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert main([*QUICK, "--json", str(path), "--compare", str(path)]) == 0
    assert capsys.readouterr().out.count("-100.0%") == 3
    assert all(row.ours_ms < 1e6 for row in report.read_json(path)[0])


def test_the_text_of_a_shape_says_its_precision(capsys: pytest.CaptureFixture) -> None:
    command = ["bench", f"{TINY} bfloat16", *QUICK[2:], "--direction", "forward"]
    assert main(command) == 0
    assert " bf16 " in capsys.readouterr().out
    assert main([*command, "--precision", "ieee"]) == 0
    assert " bf16 " not in capsys.readouterr().out


def test_a_mean_of_nothing_meets_no_requirement(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    said = explain_case(Case(Shape.parse(TINY), "fwd", "ieee", "nchw"), CPU)
    (other,) = {"cpu_gemm", "cpu_direct"} - {said.engine}
    command = [*QUICK, "--direction", "forward", "--engines", other]
    assert main(command) == 0
    assert main([*command, "--require-mean", "0.0001"]) == 1
    capsys.readouterr()
    assert main([*command, "--plot", str(tmp_path / "x.svg")]) == 2
    captured = capsys.readouterr()
    assert "add auto to --engines" in captured.err
    assert captured.out == "", "there is nothing to draw, so nothing is measured"


@pytest.mark.parametrize("path", sorted(PERFORMANCE.glob("*.json")), ids=lambda path: path.name)
def test_committed_results_are_of_clean_revisions(path: Path) -> None:
    machine = json.loads(path.read_text())["machine"]
    assert re.fullmatch("[0-9a-f]{7,40}", str(machine["revision"])), machine["revision"]
    built = machine["library_revision"]
    assert built is None or built == machine["revision"], "the libraries are of another revision"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_no_committed_time_is_below_its_floor(path: Path) -> None:
    rows, about = report.read_json(path)
    for row in rows:
        least = floor_seconds(
            Shape.parse(row.text), row.direction, row.precision, about["ceilings"], row.residual
        )
        assert row.floor_ms == pytest.approx(least * 1e3)
        times = row.ours_ms, row.cudnn_ms, row.cublas_ms, row.inductor_ms, row.untuned_ms
        assert row.floor_ms <= min(time for time in times if time is not None), row


def test_ceilings_are_of_what_was_asked() -> None:
    ceilings = measure_ceilings(torch.device("cpu"), ["fp64", "ieee"], budget_s=0.001)
    limits = ["bytes_per_s", "cache_bytes_per_s", "cache_bytes"]
    assert list(ceilings) == [*limits, "fp64", "ieee"]
    assert all(rate > 1e6 for rate in ceilings.values())
    assert ceilings["cache_bytes_per_s"] >= ceilings["bytes_per_s"]


def test_the_least_time_is_of_arithmetic_memory_or_cache() -> None:
    shape = Shape.parse("n1c1h100w100 k1r1s1")  # 20,000 flops, and 20,001 elements
    ceilings = {"bytes_per_s": 1e3, "cache_bytes_per_s": 1e4, "cache_bytes": 0.0, "ieee": 1e3}
    assert least_seconds(shape, "fwd", "ieee", ceilings) == (20.0, pytest.approx(80.004))
    ceilings["cache_bytes"] = 40_004.0  # the rest comes from memory
    assert least_seconds(shape, "fwd", "ieee", ceilings)[1] == pytest.approx(40.0)
    ceilings["cache_bytes"] = 1e6  # everything fits, and still has to pass the cache
    assert least_seconds(shape, "fwd", "ieee", ceilings)[1] == pytest.approx(8.0004)
    older = {"bytes_per_s": 1e3, "bf16": 1e3}  # a file that says nothing about a cache
    assert least_seconds(shape, "fwd", "bf16", older)[1] == pytest.approx(40.002)


def test_products_are_those_that_a_precision_is_computed_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU float32 is multiplied as scaled float16: three products for one, or one for TF32."""
    rates = {torch.float16: 900.0, torch.bfloat16: 880.0, torch.float32: 50.0, torch.float64: 60.0}

    def best_rate(self: roofline._ProductRates, dtype: torch.dtype) -> float:
        tf32 = dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
        return 400.0 if tf32 else rates[dtype]

    monkeypatch.setattr(roofline._ProductRates, "_best_rate", best_rate)
    asked = {"ieee": 300.0, "tf32": 900.0, "bf16": 900.0, "fp16": 900.0, "fp64": 60.0}
    gpu = roofline._ProductRates(SimpleNamespace(device=torch.device("cuda")))
    assert {name: gpu.of(name) for name in asked} == asked
    rates[torch.float32] = 320.0  # a GPU whose float32 units are faster than that
    gpu = roofline._ProductRates(SimpleNamespace(device=torch.device("cuda")))
    assert gpu.of("ieee") == 320.0
    cpu = roofline._ProductRates(SimpleNamespace(device=torch.device("cpu")))
    rates[torch.bfloat16] = 1.0  # emulated, so float32 products are used
    assert cpu.of("bf16") == 320.0


def test_ceilings_of_a_busy_machine_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without new ceilings, a demo would say "143% of floor"."""
    timer = Timer(torch.device("cpu"), budget_s=0.001)
    case = Case(Shape.parse(TINY, "tiny"), "fwd", "ieee", "nchw")
    low = {"bytes_per_s": 1e3, "cache_bytes_per_s": 1e3, "cache_bytes": 0.0, "ieee": 1e3}
    true = {"bytes_per_s": 1e12, "cache_bytes_per_s": 1e12, "cache_bytes": 1e6, "ieee": 1e15}
    asked = []

    def measure_again(device: torch.device, precisions: list[str], budget_s: float) -> dict:
        asked.append(precisions)
        return dict(true)

    monkeypatch.setattr(measure, "measure_ceilings", measure_again)
    rows = measure.measure_all([case], ["auto"], timer, low)
    assert asked == [["ieee"]]
    assert low == true, "the file must have the ceilings that its floors come from"
    assert rows[0].floor_ms == max(least_seconds(case.shape, "fwd", "ieee", true)) * 1e3
    measure.measure_all([case], ["auto"], timer, low)
    assert len(asked) == 1


def test_launches_are_no_part_of_the_caches_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two footprints of a GPU whose cache moves 10 bytes in a ms, after 5 ms for each kernel."""

    def traffic(device: torch.device, footprint: int, timer: Timer) -> list[tuple[int, float]]:
        return [(footprint, 5.0 + footprint / 10)]

    monkeypatch.setattr(roofline, "_traffic", traffic)
    rate = roofline._cache_rate(torch.device("cuda"), 400, Timer(torch.device("cpu")))
    assert rate == pytest.approx(10e3)


def test_a_row_says_how_much_memory_was_taken(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(measure, "scratch_bytes", lambda call, device: 3 << 20)
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert "workspace" in out
    assert "3.0 MiB" in out
    assert "largest workspace: convx 3.0 MiB" in out


def test_the_cpu_does_not_tell_how_much_memory_was_taken(capsys) -> None:
    assert scratch_bytes(lambda: torch.empty(3), torch.device("cpu")) is None
    assert main(QUICK) == 0
    assert "workspace" not in capsys.readouterr().out


@pytest.mark.gpu
def test_scratch_is_what_is_beyond_operands_and_result() -> None:
    device = torch.device("cuda")
    x = torch.ones(4 << 20, device=device)

    def twice() -> torch.Tensor:
        return (x + 1) + 1

    assert scratch_bytes(lambda: x + 1, device) == 0
    assert scratch_bytes(twice, device) == 16 << 20
    assert scratch_bytes(lambda: (x + 1)[: 1 << 20], device) == 12 << 20  # a view holds all of it


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *settings, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_revision_is_of_the_package_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "checkout/conv2d_ext"
    package.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONVX_REVISION", raising=False)
    (package / "a.py").write_text("1")
    assert report.find_revision(package) is None
    monkeypatch.setenv("CONVX_REVISION", "1234567")
    assert report.find_revision(package) == "1234567"
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "first")
    git(package.parent, "tag", "v1.0")  # must not take the place of the commit
    commit = git(package.parent, "rev-parse", "--short", "HEAD")
    assert report.find_revision(package) == commit
    (package / "a.py").write_text("2")
    assert report.find_revision(package) == f"{commit}-dirty"
    installed = package.parent / ".venv/site-packages/conv2d_ext"  # inside the checkout, but older
    installed.mkdir(parents=True)
    (installed / "_build_info.json").write_text('{"revision": "7654321"}')
    assert report.find_revision(installed) == "7654321"


def test_geometric_mean() -> None:
    assert report.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
