"""explain() names the engine that a call would run."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest
import torch

import conv2d_ext
from conv2d_ext.explain import Candidate, Explanation


def test_names_the_engine_and_the_reason() -> None:
    x, w = torch.randn(1, 8, 16, 16), torch.randn(4, 8, 3, 3)
    explanation = conv2d_ext.explain(x, w, padding=1)
    names = [candidate.name for candidate in explanation.candidates]
    assert explanation.engine in names
    able = [c for c in explanation.candidates if not c.refusal]
    chosen = next(c for c in able if c.name == explanation.engine)
    assert chosen.predicted_us == min(c.predicted_us for c in able)
    assert explanation.flops == 2 * 16 * 16 * 4 * 8 * 9
    assert explanation.bytes == 4 * (8 * 256 + 4 * 8 * 9 + 4 * 256)

    text = str(explanation)
    assert "n1c8h16w16 k4r3s3" in text
    assert f"-> {explanation.engine}" in text
    assert f"{explanation.engine} runs it: the smallest predicted time" in text
    for name in names:
        assert name in text
    for candidate in able:
        assert candidate.geometry.startswith("tile ")
        assert candidate.geometry in text


@pytest.mark.parametrize("direction", ["forward", "input_grad", "weight_grad"])
def test_sizes_serve_as_well_as_tensors(direction: str) -> None:
    x = torch.empty(2, 6, 9, 9, dtype=torch.float64)
    w = torch.empty(4, 3, 3, 3, dtype=torch.float64)
    by_tensor = conv2d_ext.explain(x, w, groups=2, direction=direction)
    by_size = conv2d_ext.explain(
        (2, 6, 9, 9), (4, 3, 3, 3), groups=2, direction=direction, dtype=torch.float64
    )
    assert by_tensor == by_size
    assert by_tensor.direction == direction


def test_a_forced_engine() -> None:
    names = [c.name for c in conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3)).candidates]
    for name in names:
        explanation = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), algorithm=name)
        assert explanation.engine == name
        assert f"-> {name}" in str(explanation)


def test_the_answer_is_for_the_epilogue() -> None:
    sizes = (1, 8, 16, 16), (4, 8, 3, 3)
    explanation = conv2d_ext.explain(*sizes, activation="silu", residual=torch.empty(1, 4, 14, 14))
    assert not any(candidate.separate_pass for candidate in explanation.candidates)
    with pytest.raises(RuntimeError, match=r"belong to direction='forward', .*'input_grad'"):
        conv2d_ext.explain(*sizes, direction="input_grad", activation="relu")
    with pytest.raises(RuntimeError, match=r"activation must be one of .*activation='swish'"):
        conv2d_ext.explain(*sizes, activation="swish")


def test_a_pass_of_its_own_is_shown() -> None:
    candidate = Candidate("cuda_gemm", predicted_us=12.0, separate_pass=True)
    explanation = Explanation("n1", "forward", "ieee", "cuda_gemm", 1.0, 1.0, (candidate,))
    assert "residual and activation in a pass of their own" in str(explanation)


def test_problems_are_checked_as_a_call_checks_them() -> None:
    with pytest.raises(RuntimeError, match=r"input\.size\(1\)=5"):
        conv2d_ext.explain((1, 5, 9, 9), (8, 8, 3, 3))
    with pytest.raises(RuntimeError, match="direction='sideways'"):
        conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), direction="sideways")
    with pytest.raises(RuntimeError, match="device='meta'"):
        conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), device="meta")
    assert "unknown algorithm='magic'" in str(
        conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), algorithm="magic")
    )


def test_follows_the_precision_setting_only_for_cuda() -> None:
    assert conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3)).precision == "ieee"
    assert conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), precision="tf32").precision == "tf32"


def test_ranks_the_runners_up() -> None:
    explanation = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3))
    first, *others = explanation.ranking
    assert first.name == explanation.engine
    able = [c.predicted_us for c in others if not c.refusal]
    assert able == sorted(able)
    assert set(explanation.ranking) == set(explanation.candidates)


def test_the_floor_is_the_larger_of_two_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ceilings(device: torch.device, precision: str) -> dict[str, float]:
        asked.append((device.type, precision))
        return {precision: 1e9, "bytes_per_s": 1e6}

    monkeypatch.setattr(sys.modules["conv2d_ext.explain"], "_measured_ceilings", ceilings)
    explanation = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), floor=True)
    assert explanation.floor.flops_us == pytest.approx(explanation.flops / 1e3)
    assert explanation.floor.bytes_us == pytest.approx(explanation.bytes)
    assert explanation.floor.us == max(explanation.floor.flops_us, explanation.floor.bytes_us)
    assert explanation.floor.bound == "memory"
    assert "(memory)" in str(explanation)
    padded = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), padding=1, floor=True)
    assert padded.floor.flops_us < padded.flops / 1e3, "products of padding need not be formed"
    conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), floor=True, dtype=torch.float64)
    assert asked == [("cpu", "ieee"), ("cpu", "ieee"), ("cpu", "fp64")]
    assert conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3)).floor is None


def test_a_notebook_shows_a_table() -> None:
    candidates = (
        Candidate("slow", predicted_us=2000.0, geometry="tile 4x5, split-K 3"),
        Candidate("fast", predicted_us=1000.0, workspace_bytes=1 << 20),
        Candidate("unable", refusal="C < 4 & odd"),
    )
    explanation = Explanation("n1", "forward", "ieee", "fast", 1e9, 1e6, candidates)
    html = explanation._repr_html_()
    table = ElementTree.fromstring(html[html.index("<table>") : html.index("</table>") + 8])
    rows = [[cell.text or "" for cell in row] for row in table.iter("tr")]
    assert [row[1] for row in rows] == ["engine", "fast", "slow", "unable"]
    assert rows[1] == ["\u2192", "fast", "1.000 ms", "1.0 MiB", ""]
    assert rows[2][-1] == "tile 4x5, split-K 3"
    assert rows[3][-1] == "refuses: C < 4 & odd"
    assert "fast runs it: the smallest predicted time" in html
