"""Check that logs are rotated while processes have them open, without losing or splitting a line."""

import fcntl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from indb_tensile.controller.logrotation import numbered, rotate


def contents(log: Path) -> list[bytes]:
    """Return the contents of the log and of its older files, newest first."""
    return [path.read_bytes() for path in (log, *(numbered(log, n) for n in range(1, 9))) if path.exists()]


def test_log_below_the_limit_and_missing_log_are_not_rotated(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    assert rotate(log, 10, 3) is False
    log.write_bytes(b"123456789")
    assert rotate(log, 10, 3) is False
    assert contents(log) == [b"123456789"]


def test_log_that_another_process_rotates_now_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    log.write_bytes(b"123456789")
    with log.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert rotate(log, 3, 3) is False
    assert rotate(log, 3, 3) is True
    assert contents(log) == [b"", b"123456789"]


def test_rotation_keeps_the_given_number_of_older_files_with_the_mode_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    for text in (b"one", b"two", b"three", b"four"):
        log.write_bytes(text)
        log.chmod(0o640)
        assert rotate(log, 3, 2) is True
    assert contents(log) == [b"", b"four", b"three"]
    assert stat.S_IMODE(numbered(log, 1).stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "controller.log",
        "controller.log.1",
        "controller.log.2",
    ]


def test_process_with_the_log_open_continues_at_the_start_of_the_empty_log(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    writer = "import sys\nfor line in sys.stdin:\n    sys.stderr.write(line)\n    print(flush=True)\n"
    with (
        log.open("ab") as file,
        subprocess.Popen(
            [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(4):
            process.stdin.write(f"line {number}\n")
            process.stdin.flush()
            process.stdout.readline()
            if number in (0, 2):
                assert rotate(log, 5, 5) is True
        process.stdin.close()
    assert contents(log) == [b"line 3\n", b"line 1\nline 2\n", b"line 0\n"]


def test_symbolic_link_instead_of_the_log_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "controller.log").symlink_to(target)
    with pytest.raises(OSError, match="Too many levels"):
        rotate(tmp_path / "controller.log", 1, 5)
    assert target.read_bytes() == b"precious"


def test_too_long_log_keeps_whole_lines_of_its_end_and_counts_the_bytes_left_out(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    log.write_bytes(b"".join(b"record %06d\n" % number for number in range(1000)))  # 14 bytes each
    assert rotate(log, 1000, 2) is True
    header, *lines = numbered(log, 1).read_bytes().splitlines()
    assert lines == [b"record %06d" % number for number in range(1000 - len(lines), 1000)]
    assert sum(len(line) + 1 for line in lines) <= 1000
    assert header == b"(%d bytes are left out: the log grew faster than it was rotated)" % (14 * (1000 - len(lines)))
    assert log.read_bytes() == b""
