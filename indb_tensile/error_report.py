"""Prints an error for the user of a command: one sentence, with its detail and hint, and no traceback.

`tensile` and the benchmarks, which run in processes of their own, share this report.
"""

import sys
from typing import TYPE_CHECKING

from indb_tensile.errors import TensileError

if TYPE_CHECKING:
    import psycopg

INTERRUPTED = 130
_OPERATING_SYSTEM = 71  # EX_OSERR of sysexits.h
_PERMISSION = 3
_MISSING_MODULE = 2
_INSTALL = (
    f"install all commands' needs with `{sys.executable} -m pip install indb-tensile`; for torch, see the README"
)
_READ_ONLY = "a standby accepts no writes: name the primary server with --dsn"


def report_error(error: BaseException) -> int | None:
    """Print an error that is no bug of this package and return the exit code for it. For a bug, return None."""
    if isinstance(error, KeyboardInterrupt):
        print_error("interrupted")
        return INTERRUPTED
    if isinstance(error, TensileError):
        print_error(error.message, error.detail, error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        print_error(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        return _PERMISSION if isinstance(error, PermissionError) else _OPERATING_SYSTEM
    if isinstance(error, ModuleNotFoundError):
        if error.name is None or error.name.startswith("indb_tensile"):
            return None
        print_error(f"this command needs {error.name}, which is not installed", hint=_INSTALL)
        return _MISSING_MODULE
    if isinstance(error, _psycopg_error()):
        return _report_database_error(error)
    return None


def print_error(message: str, detail: str | None = None, hint: str | None = None) -> None:
    """Print the message on standard error, and below it the detail and the hint, if they are not empty."""
    print(f"tensile: {message}", file=sys.stderr)
    for name, text in (("detail", detail), ("hint", hint)):
        if text:
            print(f"  {name}: " + text.rstrip().replace("\n", "\n    "), file=sys.stderr)


def exit_code(sqlstate: str | None) -> int:
    """Return the exit code for the SQLSTATE of a failed statement."""
    match sqlstate or "":
        case "42501":
            return 3
        case "57P03":
            return 6
        case "57014":
            return 7
        case "53200":  # a job that cannot be planned below its limit; from the server itself, this state is rare
            return 2
        case state if state[:2] in {"22", "42", "0A", "23", "25", "3F", "54", "55"}:
            return 2
        case _:
            return 4


def _psycopg_error() -> "type[psycopg.Error] | tuple[()]":
    """Return psycopg's base exception, or no exception if psycopg is missing.

    psycopg is imported only after an exception, because `tensile --help` and some commands do not need the driver.
    """
    try:
        import psycopg
    except ModuleNotFoundError:
        return ()
    return psycopg.Error


def _report_database_error(error: "psycopg.Error") -> int:
    diagnostic = error.diag
    message = diagnostic.message_primary or str(error).strip().partition("\n")[0]
    default_hint = _READ_ONLY if error.sqlstate == "25006" else None
    print_error(message, diagnostic.message_detail, diagnostic.message_hint or default_hint)
    return exit_code(error.sqlstate)
