"""Captures are kept in private files, limited in number, and ignored if somebody else could write them."""

import os
from pathlib import Path

import pytest

from indb_tensile.executor.capture.step_capture import CapturedStep
from tests.executor.conftest import captured
from worker import capture_files
from worker.capture_files import CaptureFiles


@pytest.fixture(scope="module")
def steps() -> tuple[CapturedStep, ...]:
    return captured("mlp")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "captures"


def test_saved_steps_are_loaded_by_another_process(directory: Path, steps: tuple[CapturedStep, ...]) -> None:
    files = CaptureFiles(directory)
    assert files.load("k") is None
    files.save("k", steps)
    assert CaptureFiles(directory).load("k") == steps
    assert [path.name for path in directory.iterdir()] == ["k.capture"]
    assert (directory.stat().st_mode & 0o777, (directory / "k.capture").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("place", ["directory", "file"])
def test_files_that_another_user_could_write_are_not_used(
    directory: Path, place: str, steps: tuple[CapturedStep, ...]
) -> None:
    files = CaptureFiles(directory)
    files.save("k", steps)
    (directory if place == "directory" else directory / "k.capture").chmod(0o770)
    assert files.load("k") is None


def test_steps_with_constants_make_no_file(directory: Path) -> None:
    CaptureFiles(directory).save("k", captured("constant"))
    assert not directory.exists()


def test_links_are_not_followed(directory: Path, tmp_path: Path, steps: tuple[CapturedStep, ...]) -> None:
    files = CaptureFiles(directory)
    files.save("k", steps)
    (directory / "k.capture").rename(tmp_path / "elsewhere")
    (directory / "k.capture").symlink_to(tmp_path / "elsewhere")
    assert files.load("k") is None


def test_damaged_files_are_not_used_and_are_replaced(directory: Path, steps: tuple[CapturedStep, ...]) -> None:
    files = CaptureFiles(directory)
    files.save("k", steps)
    (directory / "k.capture").write_bytes(b"damaged")
    assert files.load("k") is None
    files.save("k", steps)
    assert files.load("k") == steps


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path, steps: tuple[CapturedStep, ...]) -> None:
    (tmp_path / "file").write_text("in the way")
    files = CaptureFiles(tmp_path / "file" / "captures")
    files.save("k", steps)
    assert files.load("k") is None


def test_the_files_that_were_used_last_stay(
    directory: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[CapturedStep, ...]
) -> None:
    monkeypatch.setattr(capture_files, "_MOST_FILES", 2)
    files = CaptureFiles(directory)
    for number, key in enumerate("abc"):
        if key == "c":
            assert files.load("a") == steps  # used again, after b
        files.save(key, steps)
        if key != "c":
            os.utime(directory / f"{key}.capture", ns=(number, number))
    assert sorted(path.name for path in directory.iterdir()) == ["a.capture", "c.capture"]
