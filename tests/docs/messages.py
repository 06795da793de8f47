"""Collects what the package and its operators can say when something is wrong, from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# The command line prints its own usage. Its other messages come from the package.
NOT_LIBRARY = {"cli.py"}
# Calls whose arguments are, or become, the text of an error or a warning.
PYTHON_CALLS = {"check", "warn", "_explain", "_type_error"}
# Functions that return such a text.
PYTHON_FUNCTIONS = {
    "_how_to_build",
    "_how_to_get_cuda",
    "_how_to_mend_cuda",
    "_how_to_reinstall",
    "_kernel_too_large",
    "_positive",
    "_type_error",
}
# Variables that hold one before it is raised.
PYTHON_NAMES = {"problem"}
CPP_STATEMENT = re.compile(r"\b(?:fail\(|throw\b|check_shim\(|choice\.error \+?=|error <<|what\b)")
CPP_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Message(NamedTuple):
    where: str
    stem: str  # its longest piece between the values that are filled in


def library_files() -> list[Path]:
    package = ROOT / "conv2d_ext"
    paths = [*package.glob("*.py"), *package.glob("measuring/*.py")]
    return [path for path in sorted(paths) if path.name not in NOT_LIBRARY]


def python_messages(path: Path) -> Iterator[Message]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            roots: list[ast.AST] = [node.exc]
        elif isinstance(node, ast.Call) and _called_name(node) in PYTHON_CALLS:
            roots = list(node.args)
        elif isinstance(node, ast.FunctionDef) and node.name in PYTHON_FUNCTIONS:
            roots = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
        elif isinstance(node, ast.Assign) and _assigned_names(node) & PYTHON_NAMES:
            roots = [node.value]
        else:
            continue
        for root in roots:
            for stem in _python_stems(root):
                yield Message(f"{path.name}:{node.lineno}", stem)


def _called_name(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _assigned_names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _python_stems(root: ast.AST) -> Iterator[str]:
    """One stem for each string in the expression."""
    if isinstance(root, ast.JoinedStr):
        pieces = [part.value for part in root.values if isinstance(part, ast.Constant)]
        yield from _longest(pieces)
    elif isinstance(root, ast.Constant):
        yield from _longest([root.value] if isinstance(root.value, str) else [])
    else:
        for child in ast.iter_child_nodes(root):
            yield from _python_stems(child)


def cpp_messages(path: Path) -> Iterator[Message]:
    text = re.sub(r"//[^\n]*", "", path.read_text())
    # Adjacent literals are one string.
    text = re.sub(r'"\s*\n\s*"', "", text)
    for statement in text.split(";"):
        if CPP_STATEMENT.search(statement):
            name = path.relative_to(ROOT / "csrc").as_posix()
            for stem in _longest(CPP_STRING.findall(statement)):
                yield Message(name, stem)


def _longest(pieces: list[str]) -> list[str]:
    """The longest piece, unless it is too short to be a sentence's part."""
    best = max((piece.strip(" \n:;,.('\"") for piece in pieces), key=len, default="")
    return [" ".join(best.split())] if len(best) >= 8 and " " in best else []


def all_messages() -> list[Message]:
    csrc = ROOT / "csrc"
    sources = [p for folder in ("core", "cuda", "torch") for p in sorted((csrc / folder).glob("*"))]
    found = [m for path in library_files() for m in python_messages(path)]
    found += [m for path in sources for m in cpp_messages(path)]
    return list(dict.fromkeys(found))
