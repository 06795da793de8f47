"""convx info: the facts that a report of a problem needs, on any machine."""

from __future__ import annotations

import json

import pytest
import torch

import conv2d_ext
from conv2d_ext import info
from conv2d_ext._machine import read_name
from conv2d_ext.cli import main


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"ours_us": 1.5, "torch_us": 2.5, "ours_grad_us": 3.5, "torch_grad_us": 4.5}
    monkeypatch.setattr(info, "host_times", lambda device: times)


def test_json_has_every_part(capsys: pytest.CaptureFixture) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["convx"] == conv2d_ext.__version__
    assert found["torch"] == torch.__version__
    assert found["torch_cuda"] == torch.version.cuda
    assert found["libraries"]["core"].endswith("_convx_core.so")
    assert bool(found["gpus"]) == torch.cuda.is_available()
    assert (found["why_no_gpu"] is None) == torch.cuda.is_available()
    engines = {c.name for c in conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3)).candidates}
    assert set(found["engines"]["cpu"]) == engines
    for able in found["engines"]["cpu"].values():
        assert set(able) == {"ieee", "fp64", "fp16", "bf16"}
    assert found["host_us"]["cpu"]["ours_us"] == 1.5


def test_text_says_the_same(capsys: pytest.CaptureFixture) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for words in (conv2d_ext.__version__, torch.__version__, "cpu_gemm", "convx 1.5 us", "GPU"):
        assert words in out
    assert "CUDA library" in out


def test_why_there_is_no_cuda_half(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = conv2d_ext._load.LoadedLibraries(
        core=conv2d_ext._load.loaded_libraries().core,
        cuda=None,
        why_no_cuda="a reason\n  on two lines",
        build={"torch": "2.10.0", "cuda": "13.0", "archs": "8.0+PTX 9.0a", "revision": "abc1234"},
    )
    monkeypatch.setattr(info, "loaded_libraries", lambda: loaded)
    found = info.collect()
    assert found["libraries"] == {
        "core": str(loaded.core),
        "cuda": None,
        "why": "a reason\n  on two lines",
    }
    text = info.format_info(found)
    assert "not loaded: a reason" in text
    assert "torch 2.10.0, CUDA 13.0 for 8.0+PTX 9.0a, revision abc1234" in text


class FakeGpu:
    name, major, minor = "Imaginary 9000", 9, 0
    total_memory, multi_processor_count = 80 << 30, 132


def test_a_gpu_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: FakeGpu)
    (gpu,) = info._gpus("8.0+PTX 9.0a")
    assert gpu["supported"]
    assert gpu["code"] == "machine code for 9.0a"
    found = {"gpus": [gpu], "why_no_gpu": None}
    ((label, text),) = info._gpu_lines(found)
    assert label == "GPU 0"
    assert text == "Imaginary 9000, 9.0, 132 multiprocessors, 80.0 GiB: machine code for 9.0a"


RELEASE = "7.5 8.0+PTX 8.6 8.9 9.0a 10.0 12.0"


@pytest.mark.parametrize(
    ("capability", "archs", "supported", "code"),
    [
        ((7, 0), RELEASE, False, "no code for this GPU"),
        ((7, 5), RELEASE, True, "machine code for 7.5"),
        ((8, 0), RELEASE, True, "machine code for 8.0"),
        ((8, 7), RELEASE, True, "machine code for 8.6"),
        ((9, 0), RELEASE, True, "machine code for 9.0a"),
        ((10, 3), RELEASE, True, "machine code for 10.0"),
        ((11, 0), RELEASE, True, "PTX of 8.0"),
        ((9, 0), "8.0;8.6", False, "no code for this GPU"),
        ((10, 0), "9.0a", False, "no code for this GPU"),
        ((10, 0), "9.0a+PTX", False, "no code for this GPU"),
        ((10, 3), "10.0f", True, "machine code for 10.0f"),
        ((9, 0), "", False, "does not say"),
    ],
)
def test_architectures(capability: tuple[int, int], archs: str, supported: bool, code: str) -> None:
    found, text = info.match_architecture(capability, archs)
    assert found == supported
    assert text.startswith(code) or code in text


def test_the_driver_is_found_without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
    monkeypatch.setattr(info.Path, "read_text", lambda self: line)
    assert info._driver_version() == "580.65.06"


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self):
        raise FileNotFoundError(self)

    monkeypatch.setattr(info.Path, "read_text", missing)
    monkeypatch.setattr(info.shutil, "which", lambda name: None)
    assert info._driver_version() is None


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n", "Some CPU @ 2 GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse-V2"),
        (
            "CPU implementer\t: 0xc0\nCPU part\t: 0xac3\n",
            "Arm core, implementer 0xc0, part 0xac3",
        ),
        ("processor\t: 0\n", None),
    ],
)
def test_processors_have_names(cpuinfo: str, name: str | None) -> None:
    """Tuned choices are kept by this name, so two kinds of processors must not share one."""
    assert read_name(cpuinfo) == name
