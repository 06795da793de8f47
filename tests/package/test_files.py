"""Output files: whole or not there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from conv2d_ext import _files


def test_a_file_is_replaced_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file.txt"
    with _files.replacing(path) as file:
        file.write("first")
        assert not path.exists()
    assert path.read_text() == "first"

    def fail() -> None:
        with _files.replacing(path) as file:
            file.write("half of the sec")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "first"
    assert os.listdir(path.parent) == ["file.txt"]


def test_permissions_are_those_of_any_file(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "file"
    plain.write_text("")
    with _files.replacing(path) as file:
        file.write("new")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    with _files.replacing(path, binary=True) as file:
        file.write(b"newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    with _files.replacing(link) as file:
        file.write("through the link")
    assert link.is_symlink()
    assert target.read_text() == "through the link"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _files.try_to_write(pipe)
    with _files.replacing(pipe) as file:
        file.write("through the pipe")
    assert os.read(read, 100) == b"through the pipe"
    os.close(read)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert _files.incomplete_name(pipe) == pipe


def test_many_may_append(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("without an end")

    def append(name: int) -> None:
        for i in range(10):
            _files.append_line(path, f"{name} {i}")

    threads = [threading.Thread(target=append, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert lines[0] == "without an end"
    assert sorted(lines[1:]) == sorted(f"{name} {i}" for name in range(8) for i in range(10))


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (tmp_path, file / "below.json", Path("/proc/no.json"), tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match=r"\[Errno"):
            _files.try_to_write(path)
    _files.try_to_write(tmp_path / "deep" / "er" / "new.json")
    _files.try_to_write(file)
    assert os.listdir(tmp_path) == ["file"]
    assert file.read_text() == "kept"


def test_an_incomplete_file_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    names = []
    for _ in range(3):
        names.append(_files.incomplete_name(path))
        names[-1].write_text("")
    assert [name.name for name in names] == [
        "rows.incomplete.json",
        "rows.incomplete-2.json",
        "rows.incomplete-3.json",
    ]
