"""Prints one address of pyproject.toml's [project.urls], the only place that names the repository:
`python project_url.py Source`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def read_urls() -> dict[str, str]:
    table = PYPROJECT.read_text().split("[project.urls]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(.+)"$', table, re.MULTILINE))


if __name__ == "__main__":
    print(read_urls()[sys.argv[1]])
