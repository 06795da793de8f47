"""Refuses a tag that must not become a release; release.yml starts with it.

    python check_release.py TAG REPOSITORY

The tag is v and the version of the package, the changelog has that version, the tagged commit is on
main, and pyproject.toml names this repository. Every problem is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from project_url import read_urls

ROOT = Path(__file__).resolve().parents[2]


def find_problems(root: Path, tag: str, repository: str, source_url: str) -> list[str]:
    problems = []
    text = (root / "conv2d_ext/_version.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, and conv2d_ext/_version.py has version {version}")
    if not re.search(rf"^## \[{re.escape(version)}\]", (root / "CHANGELOG.md").read_text(), re.M):
        problems.append(f"CHANGELOG.md has no section [{version}]")
    ancestor = ["git", "-C", str(root), "merge-base", "--is-ancestor", "HEAD", "origin/main"]
    if subprocess.run(ancestor, capture_output=True).returncode != 0:
        problems.append("the tagged commit is not on main")
    if source_url != f"https://github.com/{repository}":
        problems.append(
            f"[project.urls] in pyproject.toml has Source = {source_url!r}, and this repository is "
            f"https://github.com/{repository}"
        )
    return problems


def main(tag: str, repository: str) -> None:
    problems = find_problems(ROOT, tag, repository, read_urls()["Source"])
    if problems:
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
    print(f"{tag} can be released")


if __name__ == "__main__":
    main(*sys.argv[1:])
