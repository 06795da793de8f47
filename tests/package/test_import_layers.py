"""The layers of conv2d_ext: imports go down only, those inside functions included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "conv2d_ext"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}

# From bottom to top. A module imports from its own layer and from the layers below it; a folder
# stands for all of its modules. docs/architecture.md describes the layers.
LAYERS = {
    "base": "_after_import _files _interrupts _machine _progress _text _user_error _values "
    "_version",
    "numbers": "_arguments _checks _layout _precision _shape",
    "operators": "_load _ops _autocast _autograd _fake _flops _fused _onnx _sharding _transposed "
    "_vmap",
    "modules": "functional _choices modules _swap _quantization _prediction settings _patterns "
    "_fold _trace _fusion",
    "measuring": "measuring",
    "engines": "explain _tuned tuning",
    "models": "scan policy convert _graph_values _graph_activations _graph_epilogue _graph_pass "
    "compile step",
    "benchmark": "bench check info",
    "commands": "commands cli __main__",
}
ORDER = list(LAYERS)
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}
# `import conv2d_ext` loads no benchmark and no command.
PUBLIC = ORDER.index("models")

# Imports inside functions. Each saves the time of an import that most programs do not need.
LATE = {
    ("_checks", "torch.fx.experimental.symbolic_shapes"),
    ("_onnx", "torch.onnx._internal.exporter._torchlib"),
    ("_sharding", "torch.distributed.tensor"),
    ("compile", "._graph_pass"),
    ("compile", "torch.utils._python_dispatch"),
}


def short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


def layer_of(module: str) -> int:
    """The layer's number; the package itself is on top of the layers that users import."""
    if module == PACKAGE:
        return PUBLIC
    return ORDER.index(LAYER_OF[short(module).split(".")[0]])


def imports_of(module: str, source: str, is_package: bool) -> Iterator[tuple[str, bool]]:
    """Every module that `module` imports, and whether a function imports it."""
    tree = ast.parse(source)
    in_functions = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        late = id(node) in in_functions
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            parts = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in MODULES else base), late


def imports(module: str) -> list[tuple[str, bool]]:
    path = MODULES[module]
    return list(imports_of(module, path.read_text(), path.name == "__init__.py"))


def own_imports(module: str) -> set[str]:
    return {name for name, _ in imports(module) if name in MODULES}


def test_every_module_has_a_layer() -> None:
    top = {short(module).split(".")[0] for module in MODULES if module != PACKAGE}
    assert top == set(LAYER_OF)
    assert len(LAYER_OF) == sum(len(names.split()) for names in LAYERS.values())


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    for name in own_imports(module):
        assert layer_of(name) <= layer_of(module), f"{module} may not import {name}"
        assert name != PACKAGE, f"{module} imports the package instead of a module"


def test_no_circles() -> None:
    waiting = {module: own_imports(module) for module in MODULES}
    while free := {module for module, needs in waiting.items() if not needs & waiting.keys()}:
        for module in free:
            del waiting[module]
    assert not waiting, f"these modules import each other: {sorted(waiting)}"


def test_imports_inside_functions() -> None:
    late = {
        (short(module), f".{short(name)}" if name in MODULES else name)
        for module in MODULES
        for name, is_late in imports(module)
        if is_late
    }
    assert late == LATE


def test_imports_are_found() -> None:
    source = "from . import _ops\ndef f():\n    from ..explain import explain\n    import json"
    found = set(imports_of("conv2d_ext.bench.measure", source, False))
    assert found == {("conv2d_ext.bench", False), ("conv2d_ext.explain", True), ("json", True)}
    assert ("conv2d_ext._ops", False) in imports(PACKAGE)


def test_import_loads_the_public_layers_only() -> None:
    """Inductor, Triton, DTensor and the ONNX exporter take longer to import than convx."""
    code = "import sys, torch; old = {*sys.modules}; import conv2d_ext; print({*sys.modules} - old)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = ast.literal_eval(done.stdout)
    assert "conv2d_ext.convert" in loaded
    assert all(layer_of(name) <= PUBLIC for name in loaded if name.startswith(PACKAGE))
    slow = ("torch._inductor", "torch._dynamo", "torch.onnx", "torch.distributed.tensor", "triton")
    assert not [name for name in loaded if name.startswith(slow)]
