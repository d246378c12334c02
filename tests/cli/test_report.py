"""Check `tensile logs` and `tensile report`: a job's part of the log, and a bundle that quotes no data."""

import json
import stat
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from indb_tensile.cli.job_log import in_order_of_time, lines_of_job, log_files, read_lines
from indb_tensile.cli.support_bundle import versions, without_quotes
from tests.catalog.enqueue import enqueue
from tests.cli.conftest import Tensile
from tests.conftest import Database

LOG = """2026-01-01 00:00:00,000 controller[1] INFO jobs have 7 bytes of memory
2026-01-01 00:00:01,000 controller[1] INFO job 7 claimed, attempt 1: model m
2026-01-01 00:00:02,000 trainer[2] ERROR job 7 failed
    Traceback (most recent call last):
    ValueError: no
2026-01-01 00:00:03,000 controller[1] INFO job 70 claimed, attempt 1: model 7
2026-01-01 00:00:04,000 controller[1] INFO jobs 3, 7 and 8 leave a round
2026-01-01 00:00:05,000 controller[1] INFO job 1: waited 7 s
"""


def test_lines_of_a_job_have_their_tracebacks_and_no_other_jobs() -> None:
    lines = list(lines_of_job(LOG.splitlines(), 7))

    assert [line[20:].strip() for line in lines if not line.startswith(" ")] == [
        "000 controller[1] INFO job 7 claimed, attempt 1: model m",
        "000 trainer[2] ERROR job 7 failed",
        "000 controller[1] INFO jobs 3, 7 and 8 leave a round",
    ]
    assert [line.strip() for line in lines if line.startswith(" ")] == [
        "Traceback (most recent call last):",
        "ValueError: no",
    ]


def test_lines_of_several_logs_are_in_the_order_of_time_and_keep_their_tracebacks_together() -> None:
    first, other = "2026-01-01 00:00:0{},000 a[1] INFO job 7", "2026-01-01 00:00:0{},000 b[1] INFO job 7"
    lines = [first.format(1), "    Traceback", first.format(4), other.format(2), "without a time", other.format(3)]

    assert in_order_of_time(iter(lines)) == [*lines[:2], *lines[3:], lines[2]]
    assert in_order_of_time(["without a time"]) == ["without a time"]


def test_older_files_of_a_log_come_first(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    for name, text in (("controller.log", "c"), ("controller.log.1", "b\xff"), ("controller.log.10", "a")):
        (tmp_path / name).write_bytes(text.encode("latin-1") + b"\n")
    (tmp_path / "controller.log.new").touch()

    assert list(read_lines(log_files(log))) == ["a", "b\\xff", "c"]
    assert log_files(tmp_path / "none") == []


def test_what_can_quote_values_is_replaced_at_any_depth() -> None:
    request = {"query": "select 'secret'", "a": [{"transform": {"x": "y"}, "class_weight": None}], "target": "t"}

    assert "secret" not in str(without_quotes(request))
    assert without_quotes(request)["target"] == "t"
    assert without_quotes(request)["a"][0]["class_weight"] is None


def test_versions_of_libraries_that_are_missing_are_null() -> None:
    def none(_: str) -> str:
        raise metadata.PackageNotFoundError

    libraries = versions({"catalog": "1"}, none)

    assert (libraries["catalog"], libraries["torch"]) == ("1", None)
    assert libraries["python"]


@pytest.mark.postgres
def test_a_report_has_all_files_and_only_its_writer_may_read_it(
    demo: Tensile, database: Database, tmp_path: Path
) -> None:
    with database.connect("demo") as connection:
        job = enqueue(connection, spec={"query": "select 'secret'"})
    log = tmp_path / "log"
    log.write_text(LOG.replace("job 7", f"job {job}"))
    file = tmp_path / "report.zip"

    done = demo("report", str(job), "--output", str(file), "--log", str(log))

    assert (done.code, done.out) == (0, f"{file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    listed = {line.split()[0] for line in texts["README.txt"].splitlines() if ".json" in line or "log.txt" in line}
    assert set(texts) - {"README.txt"} == {name for name in listed if "." in name and name != "rows"}
    assert "secret" not in "".join(texts.values())
    assert json.loads(texts["job.json"])["job"]["job_id"] == job
    assert f"job {job} claimed" in texts["log.txt"]
    again = demo("report", str(job), "--output", str(file))
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.postgres
def test_jobs_of_others_and_unknown_logs_are_refused(demo: Tensile, database: Database, tmp_path: Path) -> None:
    with database.connect("alice") as connection:
        job = enqueue(connection)
    with database.connect("demo") as connection:
        own = enqueue(connection, "own")
    log = tmp_path / "log"
    log.write_text(LOG)

    for command in ("logs", "report"):
        done = demo(command, str(job), "--log", str(log))
        assert (done.code, done.err.splitlines()[0]) == (2, f"tensile: there is no job {job}")
    missing = demo("logs", str(own), "--log", str(tmp_path / "none"))
    unknown = demo("logs", str(own))
    silent = demo("logs", str(own), "--log", str(log))
    assert (missing.code, "there is no log at" in missing.err) == (2, True)
    assert (unknown.code, "journalctl" in unknown.err) == (2, True)
    assert (silent.code, silent.out) == (0, "")
