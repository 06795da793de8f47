"""The launching side of every CUDA engine, run without a GPU: the objects that the wheel was linked
from, over a CUDA runtime that notes which kernels it is asked to launch."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import CASES, Case

from conv2d_ext.bench.shapes import load_suite, suite_names

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILED = HERE / "golden" / "kernels.csv"
CUDA_OBJECTS = sorted(
    path
    for path in ROOT.glob("build/temp*/conv2d_ext._convx_cu*/csrc/**/*.o")
    if "torch" not in path.relative_to(ROOT / "build").parts
)
SOURCES = {
    str(path.relative_to(ROOT).with_suffix(".o"))
    for end in ("cpp", "cu")
    for path in ROOT.glob(f"csrc/**/*.{end}")
}
NVCC = shutil.which("nvcc")

pytestmark = pytest.mark.skipif(
    not CUDA_OBJECTS or NVCC is None,
    reason="needs nvcc and the objects of a build of the CUDA half",
)


def engine_names() -> list[str]:
    text = " ".join(path.read_text() for path in ROOT.glob("csrc/engines/cuda/*/*_plan.cpp"))
    return sorted(set(re.findall(r'"(cuda_\w+)"', text)))


def lines_of(geometry: tuple[int, ...], algorithms: list[str]) -> Iterator[str]:
    formats = [(0, 0), (0, 1), (2, 0), (3, 0)]  # dtype and precision, as csrc/core numbers them
    if algorithms != ["auto"]:
        formats.append((1, 0))
    for number, ((dtype, precision), last) in enumerate(itertools.product(formats, (0, 1))):
        for direction, algorithm in itertools.product(range(3), algorithms):
            bias = int(direction == 0 and number % 3 > 0)
            odd = int(algorithms != ["auto"] and number % 2 == 0)
            words = (direction, dtype, precision, *geometry, last, bias, odd, algorithm)
            yield " ".join(map(str, words))


def lines_of_suites() -> list[str]:
    lines: dict[str, None] = {}  # without repetitions, in order
    for name in suite_names():
        if "cpu" in name:
            continue
        for s in load_suite(name):
            geometry = (s.N, s.C, s.H, s.W, s.K, s.R, s.S)
            geometry += (*s.stride, *s.dilation, *s.pad, s.groups)
            lines.update(dict.fromkeys(lines_of(geometry, ["auto"])))
    return list(lines)


def lines_of_case(case: Case) -> Iterator[str]:
    geometry = (*case.x, case.w[0], *case.w[2:])
    geometry += (*case.stride, *case.dilation, *case.pad4, case.groups)
    yield from lines_of(geometry, engine_names())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launches")
    compiler = os.environ.get("CXX", "c++")
    assert NVCC is not None
    dryrun = subprocess.run([NVCC, "--dryrun", "x.cu"], capture_output=True, text=True).stderr
    found = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
    assert found is not None, dryrun
    toolkit = Path(found[1].strip()).resolve()
    flags = ["-std=c++20", "-O1", f"-I{ROOT / 'csrc'}", "-isystem", str(toolkit / "include")]
    objects = [
        path for path in CUDA_OBJECTS if any(str(path).endswith(f"/{name}") for name in SOURCES)
    ]
    made = folder / "launch_problems"
    command = [compiler, *flags, *map(str, HERE.glob("*.cpp")), *map(str, objects), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return made


def launch(program: Path, lines: list[str]) -> dict[str, int]:
    """How often each kernel was launched."""
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {
        name: int(count)
        for count, name in map(str.split, done.stdout.splitlines())
        if name != "cublas"
    }


@pytest.fixture(scope="module")
def of_suites(program: Path) -> dict[str, int]:
    return launch(program, lines_of_suites())


def template_of(mangled: str) -> str:
    """The kernel's name without its template arguments: the last word of the nested name."""
    rest, name = mangled.removeprefix("_ZN").removeprefix("_Z"), ""
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        name, rest = rest[match.end() : end], rest[end:]
    return name


def test_every_choice_launches(of_suites: dict[str, int]) -> None:
    assert sum(of_suites.values()) > 10_000


def test_every_engine_launches_the_edge_grid(program: Path) -> None:
    """Also at addresses that are aligned to one element only, and in float64."""
    lines = [line for case in CASES for line in lines_of_case(case) if 0 not in case.x + case.y]
    assert sum(launch(program, lines).values()) > 10_000


def test_kernels_are_as_many_as_the_table_says(of_suites: dict[str, int]) -> None:
    """More kernels take longer to compile and to load: their number is a decision."""
    if "9.0a" not in os.environ.get("TORCH_CUDA_ARCH_LIST", "9.0a"):
        pytest.skip("this build has no kernels for sm_90a")
    compiled = Counter(template_of(name) for name in of_suites)
    chosen = Counter(template_of(name) for name, count in of_suites.items() if count)
    rows = ["kernel,compiled,launched by the suites and models"]
    rows += [f"{name},{compiled[name]},{chosen[name]}" for name in sorted(compiled)]
    rows.append(f"all,{compiled.total()},{chosen.total()}")
    text = "\n".join(rows) + "\n"
    if os.environ.get("CONVX_UPDATE_GOLDEN"):
        COMPILED.parent.mkdir(exist_ok=True)
        COMPILED.write_text(text)
    assert text == COMPILED.read_text(), "set CONVX_UPDATE_GOLDEN=1 to write the table anew"


def test_there_is_something_to_launch() -> None:
    assert len(engine_names()) == 14
