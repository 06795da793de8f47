"""Writes a package index per CUDA version, in the form of PEP 503, for GitHub Pages.

    gh api --paginate --slurp "repos/$GITHUB_REPOSITORY/releases" | python make_index.py SITE

The files stay where they are, on the releases. SITE/whl/cu126/conv2d-ext/index.html links the files
of one CUDA version for all machine types, each with its sha256, so that pip refuses anything else
under that name.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

NAME = "conv2d-ext"  # as PEP 503 normalises it; file names have an underscore
MATRIX = Path(__file__).resolve().parents[1] / "build-matrix.json"
PAGE = """<!DOCTYPE html>
<html><head><title>{0}</title></head><body>
<h1>{0}</h1>
{1}
</body></html>
"""


def collect_links(pages: list[list[dict[str, Any]]], label: str) -> list[str]:
    links = []
    for release in (release for page in pages for release in page):
        if release["draft"]:
            continue
        for asset in release["assets"]:
            name = asset["name"]
            if not re.fullmatch(rf"conv2d_ext-[^-]+\+{label}-.+\.whl", name):
                continue
            if not str(asset.get("digest")).startswith("sha256:"):
                raise SystemExit(f"{name} has no sha256 digest: {asset.get('digest')}")
            url = f"{asset['browser_download_url']}#{asset['digest'].replace(':', '=')}"
            shown = html.escape(name)
            links.append(
                f'<a href="{html.escape(url)}" data-requires-python="&gt;=3.10">{shown}</a><br>'
            )
    return links


def write_page(folder: Path, title: str, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(PAGE.format(html.escape(title), "\n".join(lines)))


def main(site: Path, releases: str) -> None:
    pages = json.loads(releases)
    labels = [entry["label"] for entry in json.loads(MATRIX.read_text())["cuda"]]
    for label in labels:
        write_page(site / "whl" / label, f"{NAME} {label}", [f'<a href="{NAME}/">{NAME}</a>'])
        links = collect_links(pages, label)
        write_page(site / "whl" / label / NAME, f"{NAME} {label}", links)
    write_page(site / "whl", NAME, [f'<a href="{label}/">{label}</a><br>' for label in labels])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.stdin.read())
