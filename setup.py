"""Builds the libraries of convx; everything else about the package is in pyproject.toml.

_convx_core.so holds the schemas and the CPU half, _convx_cu13.so (its CUDA major) the CUDA half.
CONVX_CUDA=1 builds the CUDA half or fails, 0 never builds it, unset builds it where that works.
TORCH_CUDA_ARCH_LIST, MAX_JOBS and NVCC_THREADS mean what they mean to PyTorch."""

import json
import os
import re
import sys
from pathlib import Path
from subprocess import getoutput

import torch
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

# The nvcc on PATH may be a wrapper script: nvcc itself knows where its toolkit lies.
top = re.search(r"^#\$ TOP=(.+)$", getoutput("nvcc --dryrun x.cu"), re.MULTILINE)
if top and not (os.getenv("CUDA_HOME") or os.getenv("CUDA_PATH")):
    os.environ["CUDA_HOME"] = str(Path(top[1].strip()).resolve())
from torch.utils import cpp_extension  # noqa: E402  (reads CUDA_HOME when it is imported)

ROOT, SITE = Path(__file__).resolve().parent, Path(torch.__file__).resolve().parents[1]
HOME, CUDA, WISH = cpp_extension.CUDA_HOME or "", torch.version.cuda, os.getenv("CONVX_CUDA")
NVCC = re.search(r"release ((\d+)\.\d+)", getoutput(f"'{HOME}/bin/nvcc' --version"))
BLAS = [d for d in (Path(HOME), *SITE.glob("nvidia/*")) if (d / "include/cublas_v2.h").exists()]
cpu_only = "CONVX_CUDA=0" if WISH == "0" else None  # why the CUDA half is not built
if not CUDA:
    cpu_only = f"torch {torch.__version__} is not a CUDA build"
elif not NVCC or NVCC[2] != CUDA.split(".")[0]:
    cpu_only = f"torch has CUDA {CUDA}, nvcc " + (f"has {NVCC[1]}" if NVCC else "was not found")
elif not BLAS:
    cpu_only = "cublas_v2.h is neither beside nvcc nor beside torch"
if WISH == "1" and cpu_only:
    sys.exit(f"convx: CONVX_CUDA=1, but the CUDA half cannot be built: {cpu_only}")

FILES = [os.path.relpath(p, ROOT) for end in ("cpp", "cu") for p in ROOT.glob(f"csrc/**/*.{end}")]
BOTH = ["-std=c++20", "-O3", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DTORCH_STABLE_ONLY"]
HOST = ["-g0", "-fvisibility=hidden", *(f"-ffile-prefix-map={d}={d.name}" for d in (ROOT, SITE))]
DEVICE = [f"-Xcompiler={flag}" for flag in HOST] + [f"--threads={os.getenv('NVCC_THREADS', '2')}"]
DEVICE += ["-U" + f[2:] for f in cpp_extension.COMMON_NVCC_FLAGS if f.startswith("-D__CUDA_NO_")]


def library(kind, name, leave_out, flags=(), link=()):
    sources = [f for f in sorted(FILES) if not re.search(leave_out, f)]
    made = kind(f"conv2d_ext.{name}", sources, py_limited_api=True)  # without libtorch_python
    flags = [*BOTH, *flags, *(f for d in made.include_dirs for f in ("-isystem", d))]
    made.extra_compile_args = {"cxx": [*HOST, "-Wall", "-Wextra", *flags], "nvcc": DEVICE + flags}
    made.include_dirs = [str(ROOT / "csrc")]  # others' are system folders: no warnings about them
    needed, made.libraries = [f"-l{x}" for x in made.libraries], []  # --as-needed has to come first
    made.extra_link_args = ["-Wl,-z,defs,--as-needed", *needed, *map(str, link)]
    return made


def default_archs(nvcc):
    """The architectures of a release with the newest CUDA of the matrix that nvcc reaches."""
    matrix = json.loads(Path(ROOT, ".github/build-matrix.json").read_text())["cuda"]
    known = [entry for entry in matrix if float(entry["version"]) <= float(nvcc)]
    return (known or matrix[:1])[-1]["archs"]


def readme_for_pypi():
    """README.md with absolute links and images: PyPI shows it without the files around it."""
    source = re.search(r'^Source = "(.+)"$', Path(ROOT, "pyproject.toml").read_text(), re.M)[1]
    version = re.search(r'"(.+)"', Path(ROOT, "conv2d_ext/_version.py").read_text())[1]

    def make_absolute(link):
        kind = "raw" if re.search(r"\.(svg|png|gif|jpe?g)$", link[2]) else "blob"
        return f"{link[1]}{source}/{kind}/v{version}/{link[2]}"

    relative = r"""(\]\(|\b(?:src|srcset|href)=["'])(?![a-z]+:|#)([^)"'\s]+)"""
    return re.sub(relative, make_absolute, Path(ROOT, "README.md").read_text())


libraries = [library(cpp_extension.CppExtension, "_convx_core", r"cuda|\.cu$")]
if not cpu_only:
    wish = os.getenv("TORCH_CUDA_ARCH_LIST")
    archs = os.environ["TORCH_CUDA_ARCH_LIST"] = wish or default_archs(NVCC[1])
    flags = ["-DUSE_CUDA", "-isystem", f"{BLAS[0]}/include"] + ["-DCONVX_SM90A"] * ("9.0a" in archs)
    DEVICE += ["--compress-mode=size"] * (NVCC[2] >= "13")  # CUDA 12.0 drivers cannot load it
    blas = BLAS[0].glob("lib*/libcublas*.so*")  # cublasLt as well, and several names of one file
    libraries += [library(cpp_extension.CUDAExtension, f"_convx_cu{NVCC[2]}", "cpu", flags, blas)]


class Build(cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)):
    def run(self):
        archs = None if cpu_only else os.environ["TORCH_CUDA_ARCH_LIST"]
        which = f"the CPU half alone: {cpu_only}" if cpu_only else f"both halves, for {archs}"
        print(f"convx: building {which}", file=sys.stderr)
        super().run()
        git = f"git --git-dir='{ROOT}/.git' --work-tree='{ROOT}'"  # of no repository around it
        git = getoutput(f"{git} describe --always --dirty --exclude='*' 2>/dev/null") or None
        info = {"torch": torch.__version__, "cuda": archs and NVCC[1], "archs": archs}
        info["why_cpu_only"] = cpu_only
        file = Path(ROOT if self.inplace else self.build_lib, "conv2d_ext", "_build_info.json")
        file.write_text(json.dumps({**info, "revision": git}))

    def build_extension(self, ext):
        for command in (self.compiler.linker_so, getattr(self.compiler, "linker_so_cxx", [])):
            command[:] = [part for part in command if not part.startswith("-Wl,-rpath")]
        self.build_temp = str(Path(self.get_finalized_command("build").build_temp, ext.name))
        super().build_extension(ext)  # in its own folder: the libraries share sources, not flags


class Wheel(bdist_wheel):
    def get_tag(self):  # no Python symbols inside: one wheel serves every Python 3
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=libraries,
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    long_description=readme_for_pypi(),
    long_description_content_type="text/markdown",
)
