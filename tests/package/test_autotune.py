"""set_autotune(): a convolution is measured at its first call, wherever that comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import conv2d_ext
from conv2d_ext import tuning
from conv2d_ext.measuring.timing import Call, Timer


@pytest.fixture(autouse=True)
def _autotuned() -> Iterator[None]:
    before = conv2d_ext.set_autotune(True)
    yield
    conv2d_ext.set_autotune(before)
    conv2d_ext.clear_tuned()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many engines were timed, for each problem; the last of them is the fastest."""
    counts: list[int] = []

    def medians_ms(self: Timer, calls: Sequence[Call]) -> list[float]:
        counts.append(len(calls))
        for call in calls:
            call()
        return [2.0] * (len(calls) - 1) + [1.0]

    monkeypatch.setattr(Timer, "medians_ms", medians_ms)
    return counts


@pytest.mark.parametrize(
    "value", ["no", 0, None, torch.zeros(300)], ids=["word", "0", "None", "many"]
)
def test_only_bools_are_taken(value: object) -> None:
    with pytest.raises(
        TypeError, match=r"convx\.set_autotune: on must be a bool, but got on="
    ) as error:
        conv2d_ext.set_autotune(value)  # type: ignore[arg-type]
    assert len(str(error.value)) < 200
    assert conv2d_ext.set_autotune(True) is True  # as the fixture left it


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 6, 9, 9), torch.randn(8, 6, 3, 3)


def test_the_setting_is_told() -> None:
    assert conv2d_ext.set_autotune(False)
    assert not conv2d_ext.set_autotune(True)
    assert conv2d_ext.set_autotune(True)


def test_the_first_call_takes_what_is_fastest(timed: list[int]) -> None:
    x, w = operands()
    predicted = conv2d_ext.explain(x, w)
    first = torch.ops.convx.conv2d(x, w)
    said = conv2d_ext.explain(x, w)
    assert timed == [2]
    assert said.tuned
    assert said.engine != predicted.engine
    assert torch.equal(first, conv2d_ext.conv2d(x, w, algorithm=said.engine))
    torch.ops.convx.conv2d(x, w)
    assert timed == [2]
    torch.ops.convx.conv2d(x[:1], w)
    assert timed == [2, 2]


def test_it_can_be_switched_off(timed: list[int]) -> None:
    x, w = operands()
    conv2d_ext.set_autotune(False)
    conv2d_ext.conv2d(x, w)
    assert timed == []
    conv2d_ext.set_autotune(True)  # sizes that were planned before are measured as well
    conv2d_ext.conv2d(x, w)
    assert timed == [2]
    conv2d_ext.set_autotune(False)  # measured choices stay
    conv2d_ext.conv2d(x, w)
    assert conv2d_ext.explain(x, w).tuned
    assert timed == [2]


def test_an_engine_by_name_is_not_measured(timed: list[int]) -> None:
    conv2d_ext.conv2d(*operands(), algorithm="cpu_gemm")
    assert timed == []


def test_gradients_are_measured(timed: list[int]) -> None:
    x, w = (t.requires_grad_() for t in operands())
    y = conv2d_ext.conv2d(x, w)
    y.backward(torch.randn_like(y))
    assert timed == [2, 2, 2]
    for direction in ("forward", "input_grad", "weight_grad"):
        assert conv2d_ext.explain(x, w, direction=direction).tuned, direction


def test_what_is_known_is_not_measured_again(timed: list[int]) -> None:
    x, w = operands()
    with conv2d_ext.tune():
        conv2d_ext.conv2d(x, w)
    measured = len(timed)
    conv2d_ext.conv2d(x, w)
    assert len(timed) == measured
    conv2d_ext.clear_tuned()
    conv2d_ext.conv2d(x, w)
    assert len(timed) > measured


def test_threads_measure_a_problem_once(timed: list[int]) -> None:
    x, w = operands()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: conv2d_ext.conv2d(x, w), range(16)))
    assert timed == [2]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("timed")
def test_it_works_wherever_a_call_comes_from() -> None:
    x, w = operands()
    with torch.inference_mode():
        want = conv2d_ext.conv2d(x, w)
    assert conv2d_ext.explain(x, w).tuned
    xs = torch.stack([x, x])
    torch.testing.assert_close(torch.vmap(conv2d_ext.conv2d, (0, None))(xs, w)[1], want)
    compiled = torch.compile(lambda a, b: conv2d_ext.conv2d(a, b) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), want + 1)
    with torch.autocast("cpu", torch.bfloat16):
        half = conv2d_ext.conv2d(x, w)
    assert half.dtype == torch.bfloat16
    assert conv2d_ext.explain(x.bfloat16(), w.bfloat16()).tuned


@pytest.mark.usefixtures("timed")
def test_the_programs_numbers_stay() -> None:
    x, w = operands()
    torch.manual_seed(5)
    want = torch.randn(3)
    torch.manual_seed(5)
    conv2d_ext.conv2d(x, w)
    assert torch.equal(torch.randn(3), want)


def test_without_memory_the_prediction_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fail(*_: object) -> None:
        tries.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(tuning.Problem, "operands", fail)
    x, w = operands()
    predicted = conv2d_ext.explain(x, w).engine
    with pytest.warns(UserWarning, match="no memory to measure n2c6h9w9 k8r3s3"):
        got = conv2d_ext.conv2d(x, w)
    assert torch.equal(got, conv2d_ext.conv2d(x, w, algorithm=predicted))
    conv2d_ext.conv2d(x, w)
    assert len(tries) == 1
    conv2d_ext.clear_tuned()
    assert not conv2d_ext.explain(x, w).tuned


def test_what_fails_is_told_and_the_prediction_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("some reason")

    monkeypatch.setattr(tuning, "_times_us", fail)
    x, w = operands()
    predicted = conv2d_ext.explain(x, w).engine
    with pytest.warns(UserWarning, match="cannot measure n2c6h9w9 k8r3s3: some reason"):
        got = conv2d_ext.conv2d(x, w)
    assert torch.equal(got, conv2d_ext.conv2d(x, w, algorithm=predicted))


def test_an_error_of_the_program_is_its_own() -> None:
    x, w = operands()
    with pytest.raises(RuntimeError, match="unknown algorithm='magic'"):
        conv2d_ext.conv2d(x, w, algorithm="magic")
    with pytest.raises(RuntimeError, match="times groups=4 channels"):
        conv2d_ext.conv2d(x, w, groups=4)


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_measured_while_a_graph_is_captured() -> None:
    x, w = (t.cuda() for t in operands())
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        conv2d_ext.conv2d(x, w, algorithm="cuda_direct")  # the context and its memory
        with torch.cuda.graph(graph, stream=stream):
            captured = conv2d_ext.conv2d(x, w)
    assert not conv2d_ext.explain(x, w).tuned
    graph.replay()
    direct = conv2d_ext.conv2d(x, w)
    assert conv2d_ext.explain(x, w).tuned
    torch.testing.assert_close(captured, direct)


@pytest.mark.gpu
def test_on_a_gpu_the_backward_pass_measures_in_its_own_thread() -> None:
    x, w = (t.cuda().requires_grad_() for t in operands())
    y = conv2d_ext.conv2d(x, w)
    y.backward(torch.randn_like(y))
    directions = [c.problem.direction for c in tuning._tuned.values()]
    assert sorted(directions) == ["forward", "input_grad", "weight_grad"]
