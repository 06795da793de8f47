"""Every code block in the README and in docs/ does what it says, and every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from pages import PAGES, ROOT, page_name, pages_with, read_blocks

import conv2d_ext
from conv2d_ext import cli

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LANGUAGES = {"", "python", "bash", "text"}
# Commands that tests cannot run, because they install or fetch something.
OTHER_COMMANDS = {"pip", "python", "cibuildwheel", "git"}


@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_python_runs(page: Path, tmp_path, monkeypatch) -> None:
    """The blocks of a page are one program, run from top to bottom."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in read_blocks(page):
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.code  # so that errors name the page's line
            exec(compile(code, str(page), "exec"), names)


def test_the_readme_computes_what_pytorch_does() -> None:
    (block,) = [b for b in read_blocks(ROOT / "README.md") if b.language == "python"]
    names: dict = {}
    exec(block.code, names)
    want = torch.nn.functional.pad(names["x"].double(), (3, 4, 1, 2))
    want = torch.nn.functional.conv2d(want, names["w"].double())
    torch.testing.assert_close(names["y"].double(), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_languages_are_known(page: Path) -> None:
    """A block in a language that no test knows would never be run."""
    assert {block.language for block in read_blocks(page)} <= LANGUAGES


def read_commands() -> list[tuple[str, list[str]]]:
    commands = []
    for page in PAGES:
        for block in read_blocks(page):
            if block.language not in ("", "bash"):
                continue
            for line in block.code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
                    words = words[1:]  # a variable set for the command
                if words:
                    commands.append((page_name(page), words))
    return commands


@pytest.mark.parametrize(("page", "words"), read_commands(), ids=lambda value: str(value))
def test_commands_exist(page: str, words: list[str]) -> None:
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = [word for word in rest if "=" not in word]
        assert asked
        assert set(asked) <= set(targets), f"{page}: make {asked}"
    elif program == "convx":
        cli._parser().parse_args(rest)  # exits if an option does not exist
    else:
        assert program in OTHER_COMMANDS, f"{page}: {program} is neither checked nor excused"


def test_the_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    public = {name for name in conv2d_ext.__all__ if not name.startswith("_")}
    assert not public - {path.split(".")[-1] for path in shown}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("#"):
            continue
        file = target.split("#")[0]
        assert (page.parent / file).exists(), f"{page.name}: {target}"
