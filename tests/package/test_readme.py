"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    torch.manual_seed(0)
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)
    torch.testing.assert_close(
        names["y"],
        torch.nn.functional.conv2d(torch.nn.functional.pad(names["x"], (3, 4, 1, 2)), names["w"]),
        rtol=1e-4,
        atol=1e-3,
    )


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        if "://" not in target:
            assert (README.parent / target).exists(), target
