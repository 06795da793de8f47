"""tune(): the block's convolutions are measured, and "auto" takes the fastest engines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import conv2d_ext
from conv2d_ext import tuning
from conv2d_ext._files import locked
from conv2d_ext.cli import main
from conv2d_ext.measuring.timing import Call, Timer

ENGINES = ("cpu_direct", "cpu_gemm")


@pytest.fixture(autouse=True)
def _untuned() -> Iterator[None]:
    yield
    conv2d_ext.clear_tuned()


@pytest.fixture
def last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last algorithm is twice as fast as the first one, which is the planner's choice."""

    def medians_ms(self: Timer, calls: Sequence[Call]) -> list[float]:
        for call in calls:
            call()
        return [2.0] * (len(calls) - 1) + [1.0]

    monkeypatch.setattr(Timer, "medians_ms", medians_ms)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 6, 9, 9), torch.randn(8, 6, 3, 3)


def other(engine: str) -> str:
    return ENGINES[1 - ENGINES.index(engine)]


def test_of_many_a_short_round_finds_those_that_are_timed_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[tuple[float, list[str]]] = []

    def medians_ms(self: Timer, calls: Sequence[Call]) -> list[float]:
        names = [call.args[0] for call in calls]
        rounds.append((self.budget_s, names))
        return [float(ENGINES.index(name) + 1) for name in names]

    monkeypatch.setattr(Timer, "medians_ms", medians_ms)
    monkeypatch.setattr(tuning, "_FINALISTS", 1)
    with conv2d_ext.tune(1.0) as report:
        conv2d_ext.conv2d(*operands())
    (choice,) = report.choices
    assert choice.algorithm == ENGINES[0]
    (short, all_names), (well, finalists) = rounds
    assert (short, well) == (0.1, 1.0)
    assert sorted(all_names) == sorted(ENGINES)
    assert finalists == list(dict.fromkeys([choice.default, ENGINES[0]]))


@pytest.mark.usefixtures("last_wins")
def test_auto_takes_the_fastest() -> None:
    x, w = operands()
    before = conv2d_ext.explain(x, w)
    with conv2d_ext.tune() as report:
        conv2d_ext.conv2d(x, w)
    (choice,) = report.choices
    assert (choice.default, choice.algorithm) == (before.engine, other(before.engine))
    assert (choice.default_us, choice.us) == (2000.0, 1000.0)
    after = conv2d_ext.explain(x, w)
    assert (after.engine, after.tuned) == (choice.algorithm, True)
    assert "measured to be the fastest" in str(after)
    assert torch.equal(conv2d_ext.conv2d(x, w), conv2d_ext.conv2d(x, w, algorithm=after.engine))
    assert conv2d_ext.explain(x[:1], w).engine == before.engine  # other sizes
    conv2d_ext.clear_tuned()
    assert conv2d_ext.explain(x, w) == before


@pytest.mark.usefixtures("last_wins")
def test_strides_that_say_nothing_do_not_matter() -> None:
    x = torch.randn(1, 6, 9, 9).contiguous(memory_format=torch.channels_last)
    with conv2d_ext.tune():
        conv2d_ext.conv2d(x, torch.randn(8, 6, 1, 1))
    assert conv2d_ext.explain(x.shape, (8, 6, 1, 1), channels_last=True).tuned


def test_the_heuristics_choice_stays_where_it_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "medians_ms", lambda _, calls: [1.0] + [0.99] * (len(calls) - 1))
    x, w = operands()
    with conv2d_ext.tune() as report:
        conv2d_ext.conv2d(x, w)
    (choice,) = report.choices
    assert choice.algorithm == choice.default
    assert "0 of 1 choices changed" in str(report)


def test_every_direction_is_measured_once() -> None:
    model = nn.Sequential(conv2d_ext.Conv2d(3, 4, 3), conv2d_ext.Conv2d(4, 4, 1, bias=False))
    with conv2d_ext.tune(0.001) as report:
        for _ in range(2):
            model(torch.randn(1, 3, 8, 8)).sum().backward()
    seen = [(str(c.problem), c.problem.direction) for c in report.choices]
    assert sorted(seen) == [
        ("n1c3h8w8 k4r3s3", "forward"),
        ("n1c3h8w8 k4r3s3", "weight_grad"),
        ("n1c4h6w6 k4r1s1", "forward"),
        ("n1c4h6w6 k4r1s1", "input_grad"),
        ("n1c4h6w6 k4r1s1", "weight_grad"),
    ]
    assert all(c.us > 0 and c.us <= c.default_us for c in report.choices)
    assert report.choices[0].problem.bias


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "geometry", [{}, {"stride": (1, 2), "padding": (2, 1), "groups": 2}], ids=str
)
def test_measured_tensors_lie_as_the_programs(last: bool, geometry: dict) -> None:
    """The measurement uses the problem's own strides."""
    x = torch.randn(2, 4, 9, 20)[..., ::2]
    w = torch.randn(6, 4 // geometry.get("groups", 1), 3, 3)
    if last:
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    x, w = x.detach().requires_grad_(), w.requires_grad_()
    with conv2d_ext.tune(0.001) as report:
        y = conv2d_ext.conv2d(x, w, **geometry)
        y.backward(torch.randn_like(y).transpose(2, 3).contiguous().transpose(2, 3))
    first = [c.problem for c in report.choices]
    assert len(first) == 3
    conv2d_ext.clear_tuned()
    with conv2d_ext.tune(0.001) as again:
        for problem in first:
            problem.operands(torch.device("cpu"))("auto")
    assert [c.problem for c in again.choices] == first


@pytest.mark.usefixtures("last_wins")
def test_choices_are_kept_in_a_file(tmp_path: Path) -> None:
    x, w = operands()
    with conv2d_ext.tune():
        conv2d_ext.conv2d(x, w)
    tuned = conv2d_ext.explain(x, w)
    path = tmp_path / "folder" / "tuned.json"
    assert conv2d_ext.save_tuned(path) == 1
    conv2d_ext.clear_tuned()
    assert conv2d_ext.explain(x, w).engine != tuned.engine
    assert conv2d_ext.load_tuned(path) == 1
    assert conv2d_ext.explain(x, w) == tuned
    second = tmp_path / "second.json"
    conv2d_ext.save_tuned(second)
    assert second.read_text() == path.read_text()

    content = json.loads(path.read_text())
    elsewhere = {**content["choices"][0], "machine": "a GPU that is not here"}
    path.write_text(json.dumps({**content, "choices": [elsewhere]}))
    assert conv2d_ext.load_tuned(path) == 0
    path.write_text(json.dumps({**content, "convx": "0.0.1"}))
    with pytest.warns(UserWarning, match="is of convx 0.0.1"):
        assert conv2d_ext.load_tuned(path) == 0
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"cannot read path='.*tuned.json'"):
        conv2d_ext.load_tuned(path)


def test_an_error_in_the_block_ends_the_recording() -> None:
    x, w = operands()

    def fail() -> None:
        with conv2d_ext.tune():
            conv2d_ext.conv2d(x, w)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    conv2d_ext.conv2d(*operands())
    assert json.loads(tuning._op("record", "cpu")(False)) == []
    assert not conv2d_ext.explain(x, w).tuned
    with conv2d_ext.tune() as report:
        pass
    assert str(report) == "no convolution was computed"


def test_blocks_cannot_be_nested() -> None:
    with conv2d_ext.tune() as report:
        with pytest.raises(ValueError, match="blocks cannot be nested"), conv2d_ext.tune():
            pass
        conv2d_ext.conv2d(*operands())
    assert len(report.choices) == 1


def test_measuring_leaves_the_programs_numbers_alone() -> None:
    x, w = operands()
    torch.manual_seed(5)
    want = torch.randn(3)
    torch.manual_seed(5)
    with conv2d_ext.tune(0.001):
        conv2d_ext.conv2d(x, w)
    assert torch.equal(torch.randn(3), want)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError(), RuntimeError("convx: PyTorch could not allocate memory")],
    ids=str,
)
def test_without_memory_the_heuristics_choice_stays(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(tuning.Problem, "operands", fail)
    message = "no memory to measure n2c6h9w9 k8r3s3"
    with pytest.warns(UserWarning, match=message), conv2d_ext.tune() as report:
        conv2d_ext.conv2d(*operands())
    assert report.choices == []
    assert not conv2d_ext.explain(*operands()).tuned


def test_the_command_adds_to_its_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "tuned.json"
    command = ["tune", "torch.nn:Conv2d(3, 4, 3)", "--out", str(path), "--seconds", "0.001"]
    assert main([*command, "--device", "cpu", "--input", "1,3,8,8"]) == 0
    assert "1 choices in" in capsys.readouterr().out
    assert main([*command, "--device", "cpu", "--input", "1,3,9,9", "--train"]) == 0
    assert "3 choices in" in capsys.readouterr().out
    choices = json.loads(path.read_text())["choices"]
    assert [c["problem"]["direction"] for c in choices] == ["forward", "forward", "weight_grad"]


CONV = ["tune", "torch.nn:Conv2d(3, 4, 3)", "--seconds", "0.001", "--device", "cpu"]


def test_the_choices_of_other_machines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A number of threads is a machine of its own, and a command is a process of its own."""
    path = tmp_path / "tuned.json"
    command = [*CONV, "--input", "1,3,8,8", "--out", str(path)]
    machines = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        assert main(command) == 0
        machines = [choice["machine"] for choice in json.loads(path.read_text())["choices"]]
        conv2d_ext.clear_tuned()
    assert len(machines) == 2
    assert machines[0].endswith(" 1 threads")
    assert machines[1].endswith(" 2 threads")
    assert "2 choices in" in capsys.readouterr().out
    assert conv2d_ext.load_tuned(path) == 1


@pytest.mark.usefixtures("last_wins")
def test_the_choices_of_other_versions_stay(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "tuned.json"
    foreign = {"machine": "abacus", "problem": {"beads": [1, 2]}, "speed": "fair"}
    path.write_text(json.dumps({"format": 1, "convx": "0.0.1", "choices": [foreign]}))
    x, w = operands()
    with conv2d_ext.tune():
        conv2d_ext.conv2d(x, w)
    for _ in range(2):
        assert conv2d_ext.save_tuned(path) == 2
    content = json.loads(path.read_text())
    assert content["convx"] == conv2d_ext.__version__
    assert content["choices"][0] == {**foreign, "convx": "0.0.1"}
    assert "convx" not in content["choices"][1]
    conv2d_ext.clear_tuned()
    assert conv2d_ext.load_tuned(path) == 1
    assert not recwarn.list


@pytest.mark.usefixtures("last_wins")
@pytest.mark.parametrize(
    "text",
    [
        "my notes\n",
        "[]",
        '{"rows": []}',
        '{"format": 2, "convx": "9.9.9", "choices": []}',
        '{"format": 1, "convx": "0.1.0", "choices": [1]}',
        '{"format": 1, "convx": "VERSION", "choices": [{"machine": "m", "problem": 1}]}',
        '{"format": 1, "convx": "0.1.0", "choices": [{"machine": "m", "pro',
    ],
)
def test_what_is_no_file_of_choices_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text.replace("VERSION", conv2d_ext.__version__))
    before = path.read_text()
    with conv2d_ext.tune():
        conv2d_ext.conv2d(*operands())
    with pytest.raises(ValueError, match=r"cannot add to path='.*file'"):
        conv2d_ext.save_tuned(path)
    with pytest.raises(ValueError, match=r"cannot read path='.*file'"):
        conv2d_ext.load_tuned(path)
    assert path.read_text() == before
    path.write_text("")  # as mktemp makes it
    assert conv2d_ext.save_tuned(path) == 1


@pytest.mark.usefixtures("last_wins")
def test_two_may_save_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    with conv2d_ext.tune():
        conv2d_ext.conv2d(*operands())
    mine = threading.Thread(target=conv2d_ext.save_tuned, args=(path,))
    other = {"machine": "abacus", "problem": {}}
    with locked(path):
        mine.start()
        mine.join(0.2)
        assert mine.is_alive()
        path.write_text(json.dumps({"format": 1, "convx": "0.0.1", "choices": [other]}))
    mine.join()
    assert len(json.loads(path.read_text())["choices"]) == 2


def test_an_interrupted_measurement_keeps_the_earlier_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = operands()
    monkeypatch.setattr(Timer, "medians_ms", lambda _, calls: [2.0] * (len(calls) - 1) + [1.0])
    with conv2d_ext.tune():
        conv2d_ext.conv2d(x, w)
    tuned = conv2d_ext.explain(x, w)
    assert tuned.tuned

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Timer, "medians_ms", interrupt)
    with pytest.raises(KeyboardInterrupt), conv2d_ext.tune():
        conv2d_ext.conv2d(x, w)
    assert conv2d_ext.explain(x, w) == tuned
