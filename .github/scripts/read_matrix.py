"""Prints the lists that workflows run their jobs over, as lines for $GITHUB_OUTPUT.

    python read_matrix.py builds cpu_tests >> "$GITHUB_OUTPUT"

build-matrix.json has the lists `cpu_tests` and `compat`. `platforms` and `builds` are derived from
it: one row per machine type, and one row per machine type and CUDA version. Every row gets the
runner of its machine type.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MATRIX = Path(__file__).resolve().parents[1] / "build-matrix.json"

Rows = list[dict[str, Any]]


def read_matrix() -> dict[str, Rows]:
    matrix = json.loads(MATRIX.read_text())
    platforms = matrix["platforms"]
    lists: dict[str, Rows] = {
        "platforms": [{"platform": platform} for platform in platforms],
        "builds": [
            {
                "platform": platform,
                "image": f"{settings['image']}:cuda{cuda['version']}",
                "label": cuda["label"],
            }
            for platform, settings in platforms.items()
            for cuda in matrix["cuda"]
        ],
        "cpu_tests": matrix["cpu_tests"],
        "compat": matrix["compat"],
    }
    for rows in lists.values():
        for row in rows:
            row["runner"] = platforms[row["platform"]]["runner"]
    return lists


if __name__ == "__main__":
    for key in sys.argv[1:]:
        print(f"{key}={json.dumps(read_matrix()[key])}")
