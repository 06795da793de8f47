"""Compiles and links the core library, the CPU half, for the machine type of a cross compiler.

    python cross_compile.py aarch64-linux-gnu-g++ build/cross

`make cross` runs it. Nothing is executed and nothing of it is shipped: it shows that every source
compiles for the other machine type, and that the library needs nothing but torch's stable ABI and
the C++ runtime. A vector kernel that is left out for this machine type but still used would be an
undefined symbol. Compiled with -O1, which takes half the time of -O3.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the library may leave undefined: torch's C shim, the C and C++ runtimes.
ALLOWED = r"(aoti_)?torch_\w+|\w+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+|_ITM_\w+|__gmon_start__"


def read_setup() -> tuple[list[str], str]:
    """The flags that setup.py compiles every source with, and its pattern for the files that are
    not part of the core library."""
    text = (ROOT / "setup.py").read_text()
    flags = re.search(r"^BOTH = (\[.+\])$", text, re.MULTILINE)[1]
    left_out = re.search(r'"_convx_core", r"(.+)"\)', text)[1]
    return [flag for flag in ast.literal_eval(flags) if flag != "-O3"], left_out


def include_flags() -> list[str]:
    (torch,) = importlib.util.find_spec("torch").submodule_search_locations
    system = [f"{torch}/include", f"{torch}/include/torch/csrc/api/include"]
    return ["-I", str(ROOT / "csrc"), *(flag for path in system for flag in ("-isystem", path))]


def list_sources(left_out: str) -> list[Path]:
    sources = sorted(ROOT.glob("csrc/**/*.cpp"))
    return [path for path in sources if not re.search(left_out, str(path.relative_to(ROOT)))]


def find_foreign_symbols(compiler: str, library: Path) -> list[str]:
    command = [re.sub(r"g\+\+$", "nm", compiler), "-D", "--undefined-only", str(library)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[-1] for line in listing.splitlines()]
    return [symbol for symbol in symbols if not re.fullmatch(ALLOWED, symbol)]


def main(compiler: str, folder: Path) -> None:
    flags, left_out = read_setup()
    strict = ["-O1", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, *strict, *include_flags()]
    sources = list_sources(left_out)
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / f"{number}-{path.stem}.o" for number, path in enumerate(sources)]

    def compile_source(source: Path, made: Path) -> None:
        subprocess.run([*command, "-c", str(source), "-o", str(made)], check=True)

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        list(pool.map(compile_source, sources, objects))
    library = folder / "_convx_core.so"
    subprocess.run([compiler, "-shared", *map(str, objects), "-o", str(library)], check=True)
    strangers = find_foreign_symbols(compiler, library)
    if strangers:
        sys.exit(f"{library} needs what neither torch nor the C++ runtime has: {strangers}")
    print(f"{compiler}: {len(sources)} sources of the core library compiled and linked")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
