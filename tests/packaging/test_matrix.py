"""One file holds what releases are built for; setup.py, workflows, pyproject and docs follow it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings this one along there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MATRIX = json.loads((ROOT / ".github/build-matrix.json").read_text())
CUDA = MATRIX["cuda"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BUILDING = (ROOT / "docs/building.md").read_text()
OLDEST_TORCH = (2, 10)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def read_workflow(path: Path) -> dict:
    loaded = yaml.safe_load(path.read_text())
    loaded["on"] = loaded.pop(True)  # YAML 1.1 reads the key `on` as a boolean
    return loaded


def jobs_and_steps(workflow: dict) -> list[dict]:
    jobs = list(workflow["jobs"].values())
    return jobs + [step for job in jobs for step in job.get("steps", [])]


@pytest.mark.parametrize("entry", CUDA, ids=lambda entry: entry["label"])
def test_an_entry_agrees_with_itself(entry):
    assert entry["label"] == "cu" + entry["version"].replace(".", "")
    assert entry["image"].endswith(":cuda" + entry["version"])
    archs = entry["archs"].split()
    assert len([arch for arch in archs if arch.endswith("+PTX")]) == 1, "newer GPUs need PTX"
    assert [numbers(arch) for arch in archs] == sorted(numbers(arch) for arch in archs)
    assert "9.0a" in archs, "the tensor-core engine is compiled for sm_90a alone"


def test_wheels_are_built_with_the_oldest_torch():
    """The stable ABI promises that newer ones then work, not older ones."""
    floor = ".".join(map(str, OLDEST_TORCH))
    assert PYPROJECT["project"]["dependencies"] == [f"torch>={floor}"]
    assert f"torch>={floor}" in PYPROJECT["build-system"]["requires"]
    assert {numbers(entry["torch"])[:2] for entry in CUDA} == {OLDEST_TORCH}


def test_pypi_gets_the_newest_cuda_of_each_major():
    newest = {numbers(entry["version"])[0]: entry["label"] for entry in CUDA}
    assert MATRIX["pypi"] == list(newest.values())
    archs = {entry["archs"] for entry in CUDA if entry["label"] in MATRIX["pypi"]}
    assert len(archs) == 1, "the wheel for PyPI has one list for all of its libraries"


@pytest.mark.parametrize("key", ["cpu_tests", "compat"])
def test_tests_cover_every_python_and_torch(key):
    pythons = {row["python"] for row in MATRIX[key]}
    assert pythons == {"3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"}
    assert PYPROJECT["project"]["requires-python"] == ">=3.10"
    torches = {numbers(row["torch"])[:2] for row in MATRIX[key]}
    assert min(torches) == OLDEST_TORCH
    newest = max(minor for _, minor in torches)
    assert torches == {(2, minor) for minor in range(OLDEST_TORCH[1], newest + 1)}


def test_compat_installs_every_wheel():
    labels = {row["label"] for row in MATRIX["compat"]}
    assert labels == {"cpu", *(entry["label"] for entry in CUDA)}


def default_archs(nvcc: str) -> str:
    """setup.py's function, without running setup.py."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (function,) = [node for node in tree.body if getattr(node, "name", "") == "default_archs"]
    names = {"ROOT": ROOT, "Path": Path, "json": json}
    exec(compile(ast.Module([function], []), "setup.py", "exec"), names)
    return names["default_archs"](nvcc)


def test_setup_takes_architectures_from_the_matrix():
    archs = {entry["version"]: entry["archs"] for entry in CUDA}
    assert {version: default_archs(version) for version in archs} == archs
    assert default_archs("12.4") == archs["12.6"], "older than all: the oldest"
    assert default_archs("12.9") == archs["12.8"]
    assert default_archs("13.2") == archs["13.0"]


def test_cibuildwheel_uses_an_image_of_the_matrix():
    settings = PYPROJECT["tool"]["cibuildwheel"]
    assert settings["linux"]["manylinux-x86_64-image"] in [entry["image"] for entry in CUDA]
    for key in ("before-build", "before-test"):
        script = settings[key].split("{project}/")[1]
        assert (ROOT / script).exists(), settings[key]


def test_docs_name_every_version():
    for entry in CUDA:
        row = f"| {entry['version']} | `{entry['label']}` | {entry['torch']} | {entry['archs']} |"
        assert row in BUILDING, f"docs/building.md lacks the row {row}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_take_their_matrices_from_the_file(path):
    text = path.read_text()
    assert not re.findall(r"cu1[23]\d|cuda1[23]", text), "CUDA versions belong into the matrix"
    for job in read_workflow(path)["jobs"].values():
        if "strategy" not in job:
            continue
        include = job["strategy"]["matrix"]["include"]
        key = re.fullmatch(r"\$\{\{ fromJSON\(needs\.matrix\.outputs\.(\w+)\) \}\}", include)[1]
        assert key in MATRIX
        used = set(re.findall(r"matrix\.(\w+)", json.dumps(job))) - {"outputs"}
        assert used <= set(MATRIX[key][0]), f"{path.name} uses what {key} does not have"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path):
    for line in path.read_text().splitlines():
        used = re.search(r"\buses: (.+)", line)
        if used and not used[1].startswith("./"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used[1]), line


def test_an_action_has_one_pin():
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, pin in re.findall(r"uses: ([\w./-]+)@(.+)", path.read_text()):
            pins.setdefault(name, set()).add(pin)
    assert pins
    assert not {name: found for name, found in pins.items() if len(found) > 1}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_no_more_rights_than_they_need(path):
    workflow = read_workflow(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for part in jobs_and_steps(workflow):
        if str(part.get("uses", "")).startswith("actions/checkout@"):
            assert part["with"]["persist-credentials"] is False
    triggers = workflow["on"]
    assert "pull_request_target" not in triggers
    assert "secrets." not in path.read_text(), "trusted publishing needs none"
    if "pull_request" in triggers:
        for job in workflow["jobs"].values():
            assert "write" not in str(job.get("permissions", "")), "pull requests are strangers'"
            assert "self-hosted" not in str(job.get("runs-on", ""))
    for name, job in workflow["jobs"].items():
        assert "uses" in job or "timeout-minutes" in job, f"{name} could run for six hours"
