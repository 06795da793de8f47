"""What a user reads when a library cannot be loaded."""

import json
import re

import pytest
import torch

from conv2d_ext import _load

BUILT = {"torch": "2.11.0+cu130", "cuda": "13.0", "archs": "9.0a", "revision": "abc1234"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An installed package whose libraries load without effect, under a CUDA 13 torch."""
    package = tmp_path / "site-packages" / "conv2d_ext"
    package.mkdir(parents=True)
    (package / "_convx_core.so").touch()
    (package / "_convx_cu13.so").touch()
    (package / "_build_info.json").write_text(json.dumps(BUILT))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    return package


def fail_to_load(monkeypatch, name, message):
    def load_library(path):
        if path.endswith(name):
            raise OSError(f"Could not load this library: {path}") from OSError(message)

    monkeypatch.setattr(torch.ops, "load_library", load_library)


def test_both_libraries(folder):
    loaded = _load.load_from(folder)
    assert loaded.core == folder / "_convx_core.so"
    assert loaded.cuda == folder / "_convx_cu13.so"
    assert loaded.why_no_cuda is None
    assert loaded.build == BUILT


def test_core_that_does_not_load_names_built_found_and_fix(folder, monkeypatch):
    fail_to_load(monkeypatch, "_convx_core.so", "undefined symbol: torch_new_thing")
    with pytest.raises(ImportError) as caught:
        _load.load_from(folder)
    message = str(caught.value)
    assert "_convx_core.so could not be loaded: undefined symbol: torch_new_thing" in message
    assert "torch 2.11.0+cu130, CUDA 13.0 (9.0a), revision abc1234" in message
    assert f"torch {torch.__version__}, CUDA 13.2, Python 3." in message
    assert "pip install --force-reinstall" in message


def test_cuda_half_that_does_not_load_leaves_the_cpu_half(folder, monkeypatch):
    fail_to_load(monkeypatch, "_convx_cu13.so", "libcublas.so.13: cannot open shared object file")
    with pytest.warns(RuntimeWarning, match="works on the CPU only") as caught:
        loaded = _load.load_from(folder)
    assert len(caught) == 1
    assert loaded.cuda is None
    assert "libcublas.so.13: cannot open" in loaded.why_no_cuda
    assert "pip install --force-reinstall torch" in loaded.why_no_cuda
    assert "pip install --force-reinstall --no-deps conv2d-ext" in loaded.why_no_cuda


def test_torch_of_another_cuda_major(folder, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.warns(RuntimeWarning, match="works on the CPU only: _convx_cu12.so is not in this"):
        loaded = _load.load_from(folder)
    assert loaded.cuda is None
    assert "_convx_cu13.so" in loaded.why_no_cuda
    assert "pip install --force-reinstall --no-deps conv2d-ext" in loaded.why_no_cuda
    assert "nvcc" not in loaded.why_no_cuda  # a wheel's user has none


def test_built_from_source_without_cuda(folder, monkeypatch):
    (folder / "_convx_cu13.so").unlink()
    why = "torch has CUDA 13.2, nvcc has 12.8"
    info = {**BUILT, "cuda": None, "archs": None, "why_cpu_only": why}
    (folder / "_build_info.json").write_text(json.dumps(info))
    with pytest.warns(RuntimeWarning, match=why) as caught:
        loaded = _load.load_from(folder)
    assert len(caught) == 1
    assert why in loaded.why_no_cuda
    assert "put the nvcc of CUDA 13 on PATH" in loaded.why_no_cuda
    assert "--no-build-isolation ." in loaded.why_no_cuda


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        (None, "pip install --force-reinstall --no-deps conv2d-ext"),
        ("file:///tmp/conv2d_ext-1.0-py3-none-linux_x86_64.whl", "conv2d-ext"),
        ("file:///home/me/convx", "put the nvcc of CUDA 12 on PATH"),
        ("https://example.org/conv2d_ext-1.0.tar.gz", "put the nvcc of CUDA 12 on PATH"),
    ],
)
def test_wheels_and_sources_have_different_answers(folder, monkeypatch, origin, says):
    """As pip noted where the package came from."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    installed = folder.parent / "conv2d_ext-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: conv2d-ext\nVersion: 1.0\n")
    if origin:
        (installed / "direct_url.json").write_text(json.dumps({"url": origin}))
    monkeypatch.syspath_prepend(str(folder.parent))
    with pytest.warns(RuntimeWarning):
        loaded = _load.load_from(folder)
    assert says in loaded.why_no_cuda
    assert ("nvcc" in loaded.why_no_cuda) == ("nvcc" in says)


def test_setup_notes_why_there_is_no_cuda_half():
    build = _load.loaded_libraries().build
    if not build or build.get("revision") is None:
        pytest.skip("not built by setup.py in a checkout")
    assert bool(build["why_cpu_only"]) == (build["cuda"] is None)


def test_torch_without_cuda(folder, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    loaded = _load.load_from(folder)
    assert loaded.cuda is None
    assert "is not a CUDA build" in loaded.why_no_cuda


def test_torch_too_old(folder, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(ImportError, match=r"torch 2\.9\.1 is older than 2\.10"):
        _load.load_from(folder)


def test_source_checkout_without_libraries(folder):
    (folder / "_convx_core.so").unlink()
    (folder / "_build_info.json").unlink()
    (folder.parent / "setup.py").touch()
    with pytest.raises(ImportError, match="source checkout") as caught:
        _load.load_from(folder)
    assert "pip install -e . --no-build-isolation" in str(caught.value)
    assert "built with: unknown" in str(caught.value)


def test_build_info_that_is_damaged(folder):
    (folder / "_build_info.json").write_text("{")
    assert _load.load_from(folder).build == {}


def test_the_package_itself():
    loaded = _load.loaded_libraries()
    assert loaded.core.exists()
    assert loaded is _load.loaded_libraries()


def test_the_cuda_half_loads_without_a_gpu():
    loaded = _load.loaded_libraries()
    major = (torch.version.cuda or "none").split(".")[0]
    if major not in re.findall(r"(\d+)\.\d+", loaded.build.get("cuda") or ""):
        pytest.skip("this build has no CUDA half for this torch")
    assert loaded.cuda is not None, loaded.why_no_cuda
