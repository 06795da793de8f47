"""docs/command-line.md: its commands parse, its Python runs, and no command is missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conv2d_ext import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/command-line.md").read_text()
COMMANDS = re.findall(r"^    (convx .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    arguments = cli._parser().parse_args(shlex.split(line)[1:])
    assert callable(arguments.run)


def test_every_command_has_a_row_and_an_example() -> None:
    named = [command.__name__.rpartition(".")[2] for command in cli._COMMANDS]
    assert sorted(re.findall(r"^\| `convx (\w+)` \|", PAGE, re.MULTILINE)) == sorted(named)
    assert {shlex.split(line)[1] for line in COMMANDS} >= set(named) - {"demo"}


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_examples_run(example: str) -> None:
    exec(compile(example, "docs/command-line.md", "exec"), {})
