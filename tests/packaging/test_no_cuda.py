"""A CUDA torch whose convx has no CUDA half: one warning, and the same reason wherever it is asked.

The package is copied without its CUDA library and imported in processes of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import conv2d_ext

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch has no CUDA")
WHY = "torch has CUDA 13.0, nvcc was not found"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    ignore = shutil.ignore_patterns("_convx_cu*.so", "__pycache__", "_build_info.json")
    shutil.copytree(Path(conv2d_ext.__file__).parent, folder / "conv2d_ext", ignore=ignore)
    info = {"torch": torch.__version__, "cuda": None, "archs": None, "why_cpu_only": WHY}
    (folder / "conv2d_ext" / "_build_info.json").write_text(json.dumps(info))
    return folder


def run(package: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        *options,
        "-c",
        f"import sys; sys.path.insert(0, {str(package)!r})\n",
    ]
    command[-1] += "import torch\n" + code
    return subprocess.run(command, capture_output=True, text=True, cwd=package, check=False)


def test_one_warning_at_import(package):
    done = run(package, "import conv2d_ext, importlib\nimport conv2d_ext.explain, conv2d_ext.info")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "convx works on the CPU only" in done.stderr
    assert WHY in done.stderr
    assert "--no-build-isolation" in done.stderr
    assert "<string>:3: RuntimeWarning" in done.stderr  # the program's own import


def test_the_warning_can_be_filtered(package):
    filtered = "-Wignore:convx works on the CPU only:RuntimeWarning"
    done = run(package, "import conv2d_ext", filtered)
    assert (done.returncode, done.stderr) == (0, "")


CALLS = {
    "explain": "conv2d_ext.explain((1, 2, 4, 4), (3, 2, 3, 3), device='cuda')",
    "info": "raise RuntimeError(conv2d_ext.info.collect()['libraries']['why'])",
    "setting": "conv2d_ext.set_cuda_workspace_limit(1 << 30)",
    # The kernels that the dispatcher runs for CUDA tensors, asked for by their key: there need not
    # be a GPU to hold such tensors.
    "conv2d": "ops.conv2d.default.redispatch(cuda, x, w)",
    "_conv2d": "ops._conv2d.default.redispatch(cuda, x, w, None, *numbers)",
    "_conv2d_input_grad": (
        "ops._conv2d_input_grad.default.redispatch(cuda, y, w, 4, 4, False, *numbers)"
    ),
    "_conv2d_weight_grad": (
        "ops._conv2d_weight_grad.default.redispatch(cuda, y, x, 3, 3, False, *numbers)"
    ),
    "_conv2d_bias_grad": "ops._conv2d_bias_grad.default.redispatch(cuda, y)",
    "_conv2d_gradients": (
        "ops._conv2d_gradients.default.redispatch(cuda, y, x, w, True, True, True, *numbers)"
    ),
    "conv2d_backward": (
        "ops.conv2d_backward.default.redispatch(cuda, y, x, w, [1], [0], [1], 1, [True] * 3)"
    ),
}
GPU_CALLS = {
    "function": "conv2d_ext.conv2d(x.cuda(), w.cuda())",
    "function with gradients": "conv2d_ext.conv2d(x.cuda(), w.cuda().requires_grad_())",
    "operator": "ops.conv2d(x.cuda(), w.cuda())",
    "operator in inference mode": "torch.inference_mode()(ops.conv2d)(x.cuda(), w.cuda())",
    "layer": "conv2d_ext.Conv2d(2, 3, 3).cuda()(x.cuda())",
    "autocast": "torch.autocast('cuda')(conv2d_ext.conv2d)(x.cuda(), w.cuda())",
}
SETUP = """
import warnings
warnings.simplefilter("ignore")
import conv2d_ext, conv2d_ext.info
ops, cuda = torch.ops.convx, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
x, w, y = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 2, 2)
numbers = 1, 1, 0, 0, 0, 0, 1, 1, 1, "ieee", "auto"
"""
TRY_ALL = """
import json
said = {}
for name, call in calls.items():
    try:
        exec(call)
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def check_reasons(package: Path, calls: dict[str, str]) -> None:
    done = run(package, f"{SETUP}calls = {calls!r}\n{TRY_ALL}")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == calls.keys()
    for name, message in said.items():
        assert message.startswith("RuntimeError: "), name
        assert WHY in message, name
        assert "--no-build-isolation" in message, name


def test_everybody_gives_the_reason(package):
    check_reasons(package, CALLS)


@pytest.mark.gpu
def test_calls_with_cuda_tensors_give_the_reason(package):
    check_reasons(package, GPU_CALLS)


def test_what_works_without_it(package):
    """A model may also be built where the CUDA half is missing, and run where it is not."""
    code = """
torch.testing.assert_close(ops.conv2d(x, w), torch.conv2d(x, w))
conv2d_ext.Conv2d(2, 3, 3, algorithm='cuda_gemm:split4', precision='tf32')
conv2d_ext.Conv2d(2, 3, 3, algorithm='gemm')
"""
    done = run(package, SETUP + code)
    assert "ValueError: convx.Conv2d: algorithm must be one of 'auto', 'cpu_" in done.stderr
