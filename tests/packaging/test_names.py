"""Names that a stranger types: what to install, and where the project lives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings this one along there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXT = {"", ".cfg", ".cpp", ".css", ".cu", ".cuh", ".h", ".html", ".in", ".inl", ".ipynb", ".json"}
TEXT |= {".md", ".py", ".pyi", ".rst", ".sh", ".toml", ".txt", ".yaml", ".yml"}
FOLDERS_LEFT_OUT = {".git", "build", "dist", "__pycache__"}

# `convx` on PyPI is somebody else's package. Each pattern is a way to tell people to install it.
# The lookahead leaves words such as convx-core, convx_plot and <convx checkout> alone.
NAME = r"convx(?![\w<>/.-])"
INSTALLERS = r"(?:pip3?|pipx|uv|poetry|pdm|conda|mamba|pixi)"
ORDERS = [
    rf"\b{INSTALLERS}\s+(?:pip\s+)?(?:install|add|download|run|inject|wheel)\b[^\n`|&;]*?[\s'\"]{NAME}",
    r"\bconvx\[(?:\w+[,\s]*)+\]",  # extras
    rf"^\s*{NAME}\s*(?:[=~<>!]=|[<>])\s*\d",  # a line of a requirements file
    r"pypi\.org/(?:project|simple|p)/convx\b",
    r"img\.shields\.io/pypi/\w+/convx\b",
    rf"\bname\s*=\s*['\"]{NAME}['\"]",  # a distribution of that name
    r"\bdist(?:ribution)?/convx-",
]
WRONG = re.compile("|".join(f"(?:{order})" for order in ORDERS), re.MULTILINE)


def text_files() -> list[Path]:
    """The files under version control; in an sdist, which has no repository, all of them."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not FOLDERS_LEFT_OUT & set(p.parts)]
        paths = [p for p in paths if not any(part.startswith(".venv") for part in p.parts)]
    found = [path for path in paths if path.suffix in TEXT and path.is_file()]
    assert len(found) > 100
    return [path for path in found if path != Path(__file__).resolve()]


@pytest.mark.parametrize(
    "text",
    [
        "pip install convx",
        "pip install -U convx",
        "pip install 'convx[plot]'",
        "python -m pip install --no-deps convx --index-url https://example.org",
        "uv add convx",
        "uv pip install torch convx",
        "the extra convx[plot, color]",
        "convx==0.1.0",
        "convx >= 1",
        "https://pypi.org/project/convx/",
        'name = "convx"',
    ],
)
def test_the_pattern_finds_orders_to_install_another_project(text):
    assert WRONG.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install conv2d-ext",
        "pip install 'conv2d-ext[plot]'",
        "convx bench --plot a.svg",
        "pip install . && convx demo",
        "pip install --no-deps <convx checkout or sdist>",
        "torch.ops.convx.conv2d",
        "site_name: convx",
    ],
)
def test_the_pattern_leaves_other_uses_of_the_word_alone(text):
    assert not WRONG.search(text)


def test_nothing_tells_a_user_to_install_another_project():
    found = []
    for path in text_files():
        for match in WRONG.finditer(path.read_text(errors="replace")):
            found.append(f"{path.relative_to(ROOT)}: {match[0].strip()}")
    assert not found, "the distribution is called conv2d-ext"


def test_names_of_distribution_import_and_command():
    assert PROJECT["name"] == "conv2d-ext"
    assert PROJECT["scripts"] == {"convx": "conv2d_ext.cli:main"}
    assert (ROOT / "conv2d_ext/__init__.py").exists()


def test_the_addresses_of_the_project_agree():
    urls = PROJECT["urls"]
    owner, name = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+)", urls["Source"]).groups()
    assert urls == {
        "Homepage": urls["Source"],
        "Documentation": f"https://{owner}.github.io/{name}/",
        "Source": urls["Source"],
        "Issues": f"{urls['Source']}/issues",
        "Changelog": f"{urls['Source']}/blob/main/CHANGELOG.md",
    }


def test_one_place_names_the_repository():
    """pyproject.toml does; everything else takes the address from there, or is relative."""
    source = re.escape(PROJECT["urls"]["Source"].removeprefix("https://"))
    site = re.escape(PROJECT["urls"]["Documentation"].removeprefix("https://").rstrip("/"))
    address = re.compile(rf"{source}|{site}|\bOWNER\b")
    found = [path.relative_to(ROOT).as_posix() for path in text_files()]
    found = [name for name in found if address.search((ROOT / name).read_text(errors="replace"))]
    assert found == ["pyproject.toml"]


def test_files_that_a_host_looks_for():
    for name in ("CONTRIBUTING.md", "SECURITY.md", "dependabot.yml", "ISSUE_TEMPLATE/bug.yml"):
        assert (ROOT / ".github" / name).exists(), name
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / ".github" / name).read_text()
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (ROOT / ".github" / link).exists(), f"{name} links {link}"
