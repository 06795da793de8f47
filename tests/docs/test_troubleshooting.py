"""The troubleshooting page has every message, and the collector of messages finds them."""

from __future__ import annotations

import pytest
from messages import ROOT, Message, all_messages

PAGE = " ".join((ROOT / "docs/troubleshooting.md").read_text().split())


def normalise(stem: str) -> str:
    # The page shows `convx.conv2d:` once, in its introduction.
    return stem.removeprefix("convx.conv2d: ")


@pytest.mark.parametrize("message", all_messages(), ids=lambda m: f"{m.where}: {m.stem[:40]}")
def test_page_has(message: Message) -> None:
    assert normalise(message.stem) in PAGE, f"docs/troubleshooting.md lacks {message}"


def test_the_collector_finds_messages_of_every_kind() -> None:
    stems = {(m.where.split(":")[0], normalise(m.stem)) for m in all_messages()}
    for expected in [
        ("_arguments.py", "must have 1 or 2 values, but got"),  # raise
        ("_checks.py", "negative padding is not supported, but got padding=(top"),  # check()
        ("_checks.py", "must be greater than zero, but got"),  # a function that returns the text
        ("_load.py", "is not in this build of convx (CUDA libraries in it"),  # a variable
        ("_load.py", "convx works on the CPU only"),  # a warning
        ("core/problem.cpp", "weight must not be empty, but got"),  # a chain of <<
        ("core/choose_engine.cpp", "no engine can run"),  # an assignment
        ("torch/operand.cpp", "device, but it is on"),  # fail()
        ("torch/operand.h", "convx: PyTorch could not"),  # throw
    ]:
        assert expected in stems
