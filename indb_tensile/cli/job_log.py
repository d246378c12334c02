"""Finds what the log of `tensile up` says of one job, in the present file and the older ones."""

import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")  # as logging writes it (log.py)
_OLDER = re.compile(r"\.(\d+)$")


def log_files(log: Path) -> list[Path]:
    """Return the files of a log that is rotated (controller/logrotation.py), the oldest first."""
    older = [
        (int(match[1]), path) for path in log.parent.glob(f"{log.name}.*") if (match := _OLDER.search(path.name))
    ]
    return [path for _, path in sorted(older, reverse=True)] + ([log] if log.exists() else [])


def lines_of_job(lines: Iterable[str], number: int) -> Iterator[str]:
    """Yield the lines that name the job, each with the indented lines of its traceback."""
    names_job = re.compile(rf"\bjobs? (?:\d+(?:, | and ))*{number}\b")
    belongs = False
    for line in lines:
        if not line.startswith((" ", "\t")):
            belongs = bool(names_job.search(line))
        if belongs:
            yield line


def in_order_of_time(lines: Iterable[str]) -> list[str]:
    """Return the lines of several logs by their times. A line without a time stays below the line before it."""
    timed: list[tuple[str, str]] = []
    for line in lines:
        match = _TIME.match(line)
        timed.append((match[0] if match else timed[-1][0] if timed else "", line))
    return [line for _, line in sorted(timed, key=itemgetter(0))]


def read_lines(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of all files, without line ends. Bytes that are no UTF-8 are shown as escape sequences."""
    for path in paths:
        with path.open(encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                yield line.rstrip("\n")
