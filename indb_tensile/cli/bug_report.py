"""Reports an exception that no command expects: a bug in this package. The traceback is written to a file."""

import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

from indb_tensile.error_report import print_error
from indb_tensile.log import escaped

BUG = 70  # EX_SOFTWARE of sysexits.h


def report_bug(error: BaseException) -> int:
    """Print one sentence on the error and where its traceback is, and return the exit code.

    The traceback is in the state directory. If it cannot be written there, it is printed before the sentence.
    """
    lines = traceback.format_exception(error)
    name = f"{type(error).__name__}: {error}".strip(": ")
    try:
        file = _write_traceback("".join(lines))
    except Exception as fault:  # noqa: BLE001 - whatever is wrong with the file, the command's own error is reported
        print("".join(lines), end="", file=sys.stderr)
        reason = escaped(str(fault) or type(fault).__name__)
        place = "above"
        detail = f"the traceback could not be written to the state directory: {reason}"
    else:
        place = f"in {file}"
        detail = ""
    print_error(
        f"the command failed because of a bug in tensile, {escaped(name)}; the traceback is {place}",
        detail=detail,
        hint="report the bug with the traceback, which can quote values of your data",
    )
    return BUG


def _write_traceback(text: str) -> Path:
    """Write the traceback to its file, which only this system user may read, and return the file's path."""
    # Slow to import, and it needs psycopg.
    from indb_tensile.state_directory import find_state_directory

    place = find_state_directory(os.environ)
    place.make()
    with open(place.traceback, "w", encoding="utf-8", errors="backslashreplace", opener=_open_privately) as file:
        file.write(f"tensile {version('indb-tensile')}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{text}")
    return place.traceback


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
