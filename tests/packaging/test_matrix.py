"""One file says what releases are built for, and setup.py, pyproject.toml, the workflows and the
documentation agree with it. The order of a release is tested here too."""

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
PLATFORMS = MATRIX["platforms"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BUILDING = (ROOT / "docs/building.md").read_text()
RELEASING = (ROOT / "docs/releasing.md").read_text()
OLDEST_TORCH = (2, 10)
# The keys that read_matrix.py derives, and the columns of their rows.
DERIVED = {
    "builds": {"platform", "runner", "image", "label"},
    "platforms": {"platform", "runner"},
}


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
    archs = entry["archs"].split()
    assert len([arch for arch in archs if arch.endswith("+PTX")]) == 1, "newer GPUs need PTX"
    assert [numbers(arch) for arch in archs] == sorted(numbers(arch) for arch in archs)
    assert "9.0a" in archs, "the Hopper engines are compiled for sm_90a alone"


def test_both_machine_types_are_built_and_tested():
    """GH200, GB200 and DGX Spark have aarch64 processors."""
    assert list(PLATFORMS) == ["x86_64", "aarch64"]
    assert "arm" in PLATFORMS["aarch64"]["runner"]
    assert "aarch64" in PLATFORMS["aarch64"]["image"]
    for key in ("cpu_tests", "compat"):
        assert {row["platform"] for row in MATRIX[key]} == set(PLATFORMS)


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
    rows = [row for row in MATRIX[key] if row["platform"] == "x86_64"]
    assert {row["python"] for row in rows} == {"3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"}
    assert PYPROJECT["project"]["requires-python"] == ">=3.10"
    torches = {numbers(row["torch"])[:2] for row in rows}
    assert min(torches) == OLDEST_TORCH
    newest = max(minor for _, minor in torches)
    assert torches == {(2, minor) for minor in range(OLDEST_TORCH[1], newest + 1)}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_compat_installs_every_wheel(platform):
    labels = {row["label"] for row in MATRIX["compat"] if row["platform"] == platform}
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
    for platform, about in PLATFORMS.items():
        image = settings["linux"][f"manylinux-{platform}-image"]
        assert image in [f"{about['image']}:cuda{entry['version']}" for entry in CUDA]
    assert settings["archs"] == ["auto64"], "the machine type of the runner"
    assert "manylinux_2_28_$(uname -m)" in settings["linux"]["repair-wheel-command"]
    for key in ("before-build", "before-test"):
        script = settings[key].split("{project}/")[1]
        assert (ROOT / script).exists(), settings[key]


def test_docs_name_every_version():
    for entry in CUDA:
        row = f"| {entry['version']} | `{entry['label']}` | {entry['torch']} | {entry['archs']} |"
        assert row in BUILDING, f"docs/building.md lacks the row {row}"
    assert "x86-64" in BUILDING
    assert "aarch64" in BUILDING


def test_docs_name_every_workflow():
    named = set(re.findall(r"^\| `(\w+\.yml)` \|", RELEASING, re.MULTILINE))
    assert named == {path.name for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_take_their_matrices_from_the_file(path):
    text = path.read_text()
    assert not re.findall(r"cu1[23]\d|cuda1[23]", text), "CUDA versions belong into the matrix"
    for job in read_workflow(path)["jobs"].values():
        if "strategy" not in job:
            continue
        include = job["strategy"]["matrix"]["include"]
        key = re.fullmatch(r"\$\{\{ fromJSON\(needs\.matrix\.outputs\.(\w+)\) \}\}", include)[1]
        columns = DERIVED[key] if key in DERIVED else {"runner", *MATRIX[key][0]}
        used = set(re.findall(r"matrix\.(\w+)", json.dumps(job))) - {"outputs"}
        assert used <= columns, f"{path.name} uses what {key} does not have"
        assert job["runs-on"] == "${{ matrix.runner }}", "the row's machine type"


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


def workflow(name: str) -> dict:
    return read_workflow(ROOT / ".github/workflows" / name)


def all_needs(jobs: dict, name: str) -> set[str]:
    """The jobs that a job waits for, directly or not."""
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(all_needs(jobs, need) for need in direct))


def run_lines(job: dict) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_the_matrix_is_checked_against_the_registries():
    jobs = workflow("ci.yml")["jobs"].values()
    runs = "\n".join(run_lines(job) for job in jobs)
    assert "check_matrix.py --strict" in runs
    assert re.search(r"^test: .*\bmatrix\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_release_publishes_last_and_asks_once():
    jobs = workflow("release.yml")["jobs"]
    assert all_needs(jobs, "publish") == {"version", "wheels"}
    assert set(jobs) == {"version", "wheels", "publish"}, "nothing is published beside `publish`"
    assert "check_release.py" in run_lines(jobs["version"])
    assert jobs["wheels"]["uses"] == "./.github/workflows/wheels.yml"
    with_environment = [name for name, job in jobs.items() if "environment" in job]
    assert with_environment == ["publish"], "each job with an environment asks for an approval"


def test_a_release_tests_the_very_wheels():
    jobs = workflow("wheels.yml")["jobs"]
    assert "assemble" in all_needs(jobs, "suite")
    assert "dist/pypi" in run_lines(jobs["suite"])
    assert 'pytest -n "$(nproc)"' in run_lines(jobs["suite"])
    assert all_needs(jobs, "compat") >= {"assemble"}


def test_publishing_can_be_run_again():
    job = workflow("release.yml")["jobs"]["publish"]
    (pypi,) = [step for step in job["steps"] if "pypi-publish" in step.get("uses", "")]
    assert pypi["with"]["skip-existing"] is True
    runs = run_lines(job)
    assert "gh release view" in runs.split("gh release create")[0], "created only if missing"
    assert "--clobber" in runs
    assert "gh workflow run pages.yml --ref main" in runs, "the environment of Pages refuses tags"
    assert set(workflow("pages.yml")["on"]) == {"workflow_dispatch"}


def test_the_release_path_is_pinned():
    """By hash where pip installs build tools; torch by version, from PyTorch's index."""
    lock = (ROOT / ".github/requirements/release.txt").read_text()
    wanted = re.findall(
        r"^([\w-]+)", (ROOT / ".github/requirements/release.in").read_text(), re.MULTILINE
    )
    assert {"build", "setuptools", "twine", "wheel"} <= set(wanted)
    for name in wanted:
        assert re.search(rf"^{name}==\S+ .*\\\n +--hash=sha256:", lock, re.MULTILINE), name
    assemble = run_lines(workflow("wheels.yml")["jobs"]["assemble"])
    for line in assemble.splitlines():
        if "pip install" in line and ".whl" not in line:
            assert "--require-hashes" in line or re.search(r"torch==\d", line), line


def test_builds_free_the_disk_first():
    for name, job in (("wheels.yml", "build"), ("ci.yml", "compile")):
        used = [step.get("uses", "") for step in workflow(name)["jobs"][job]["steps"]]
        assert used[1] == "./.github/actions/free-disk", f"{name} pulls an image of 20 GB"
        assert (ROOT / ".github/actions/free-disk/action.yml").exists()


def test_pull_requests_build_wheels_from_every_source_of_them():
    paths = workflow("wheels.yml")["on"]["pull_request"]["paths"]
    assert {"conv2d_ext/**", "csrc/**", "setup.py", "pyproject.toml"} <= set(paths)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_scheduled_run_that_fails_tells_somebody(path):
    loaded = read_workflow(path)
    jobs = loaded["jobs"]
    reports = [name for name, job in jobs.items() if job.get("uses", "").endswith("/report.yml")]
    if "schedule" in loaded["on"]:
        assert reports == ["report"]
    for name in reports:
        assert all_needs(jobs, name) == set(jobs) - {name}
        assert "failure()" in jobs[name]["if"]
        assert jobs[name]["permissions"] == {"issues": "write"}
    assert not [job for job in jobs.values() if job.get("continue-on-error")], "it would stay green"


def test_only_reports_may_write_issues():
    for path in WORKFLOWS:
        for name, job in read_workflow(path)["jobs"].items():
            if "issues" in job.get("permissions", {}):
                assert (path.name, name) == ("report.yml", "issue") or name == "report"
