"""Progress: one line on a terminal, whatever draws it, and plain lines elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from terminal import lines_on_screen, run_on_terminal

import conv2d_ext
from conv2d_ext._progress import Progress

# _progress.py needs nothing of the package, whose import takes seconds.
PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
for name in sys.argv[2:]:
    sys.modules[name] = None
from _progress import Progress
with Progress(12) as progress:
    for i in range(12):
        with progress.step(f"case {i} " + 100 * "long "):
            pass
"""


@pytest.mark.parametrize(
    ("installed", "missing"),
    [("rich", []), ("tqdm", ["rich"]), (None, ["rich", "tqdm"])],
    ids=["rich", "tqdm", "neither"],
)
def test_an_80_column_terminal_shows_one_line(installed: str | None, missing: list[str]) -> None:
    if installed:
        assert find_spec(installed), "the dependency group `test` has it"
    folder = str(Path(conv2d_ext.__file__).parent)
    command = [sys.executable, "-c", PROGRAM, folder, *missing]
    shown = run_on_terminal(command, 80, {"PYTHONPATH": ":".join(sys.path)})
    lines = [line for line in lines_on_screen(shown) if any(piece.strip() for piece in line)]
    assert len(lines) == 1, shown
    assert max(map(len, lines[0])) <= 80
    assert any("12/12" in piece for piece in lines[0])
    assert any("case 11" in piece for piece in lines[0])


def test_a_commands_progress_fits_into_80_columns() -> None:
    shape = "n1c4h6w7 k4r3s3 stride1x2 pad1,0,2,1 dilation1x2"
    command = [sys.executable, "-m", "conv2d_ext", "check", shape, "--device", "cpu"]
    shown = run_on_terminal(command, 80, {"PYTHONPATH": ":".join(sys.path)})
    lines = [line for line in lines_on_screen(shown) if any(piece.strip() for piece in line)]
    assert len(lines) == 1, shown
    assert max(map(len, lines[0])) <= 80
    assert "4/4" in lines[0][-1]


def test_elsewhere_a_line_per_step(capsys: pytest.CaptureFixture) -> None:
    def interrupted() -> None:
        with Progress(3) as progress:
            for name in ("one", "two"):
                with progress.step(name):
                    if name == "two":
                        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().err == "[1/3] one\n"
    with Progress(1, shown=False) as progress, progress.step("one"):
        pass
    assert progress.done == 1
    assert capsys.readouterr().err == ""
