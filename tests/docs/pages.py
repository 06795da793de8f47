"""The Markdown pages, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    language: str  # "" if none is named
    line: int  # of its first line of code
    code: str


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(m[1].strip(), text.count("\n", 0, m.start(2)) + 1, m[2]) for m in found]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(b.language == language for b in read_blocks(page))]
