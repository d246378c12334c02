"""Rows of baselines are handed over as files that exactly one process takes."""

from pathlib import Path

import pytest

from indb_tensile.catalog import baseline_files
from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.job import ModelVersionId

TEN, NINE = ModelVersionId(10), ModelVersionId(9)


def test_rows_are_taken_once_in_the_order_of_the_versions(tmp_path: Path) -> None:
    files = BaselineFiles(tmp_path / "baselines")
    assert (files.waiting(), files.take(TEN)) == ([], None)
    assert files.put(TEN, b"ten")
    assert files.put(NINE, b"nine")
    assert files.waiting() == [NINE, TEN]
    assert (files.take(TEN), files.take(TEN), files.waiting()) == (b"ten", None, [NINE])
    assert (tmp_path / "baselines").stat().st_mode & 0o777 == 0o700


def test_no_more_rows_are_left_than_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_files, "_MOST_FILES", 1)
    files = BaselineFiles(tmp_path)
    assert (files.put(TEN, b""), files.put(NINE, b"")) == (True, False)


def test_what_a_killed_trainer_has_not_finished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "7.4194305.unfinished").write_bytes(b"half")  # above the largest process id
    (tmp_path / "8.1.unfinished").write_bytes(b"half")
    BaselineFiles(tmp_path).clear_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["8.1.unfinished"]
