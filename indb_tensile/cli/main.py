"""The command `tensile`: each subcommand's module is imported when it is called, so that the command starts at once.

Exit codes:
  0    done
  1    a job that was waited for failed or was cancelled; doctor found something missing
  2    the request was wrong: an option, a value, a name that is not there
  3    not permitted, by the database or by the operating system
  4    the database: not there, not reached, without the catalog, or in trouble itself
  5    the device
  6    a process that should answer does not run
  7    time ran out
  70   a fault of ours
  71   the operating system: a full disk, for instance
  130  interrupted from the keyboard; 141: whoever read the output had enough (as every Unix program: SIGPIPE)
"""

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from indb_tensile.errors import TensileError

if TYPE_CHECKING:
    import psycopg

COMMANDS = {
    "up": "embedded:up",
    "down": "embedded:down",
    "init": "administration:init",
    "doctor": "doctor:doctor",
    "controller": "administration:controller",
    "vacuum": "administration:vacuum",
    "version": "administration:version",
    "reference": "reference:reference",
    "psql": "administration:psql",
    "jobs": "jobs:jobs",
    "job": "jobs:job",
    "train": "jobs:train",
    "wait": "jobs:wait",
    "watch": "jobs:watch",
    "cancel": "jobs:cancel",
    "models": "models:models",
    "predict": "models:predict",
    "plan": "plan:plan",
    "graph": "graph:graph",
    "bench": "bench:bench",
}
INTERRUPTED = 130
OPERATING_SYSTEM = 71  # EX_OSERR of sysexits.h
PERMISSION = 3
_INSTALL = f"{sys.executable} -m pip install indb-tensile installs what all commands need; torch, see the README"


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"indb_tensile.cli.{module}"), name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="indb-tensile", message="tensile %(version)s")
def tensile() -> None:
    """Train deep models on PostgreSQL tables, many at once, on one device whose memory is planned.

    Commands talk to the database of --dsn, else of libpq's variables (PGHOST, PGDATABASE, PGSERVICE, …), else to
    the embedded one of `tensile up`. Data goes to stdout, everything else to stderr.

    Exit codes: 0 done, 1 a job failed or was cancelled, 2 wrong request, 3 not permitted, 4 database, 5 device,
    6 a process does not answer, 7 time ran out, 70 our fault, 71 operating system, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; what the user can mend is a sentence, never a traceback."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `tensile jobs | head` ends quietly, as every program does
    try:
        tensile.main(args=arguments, prog_name="tensile", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _explain("interrupted", None, None)
        sys.exit(INTERRUPTED)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TensileError as error:
        _explain(error.message, error.detail, error.hint)
        sys.exit(error.exit_code)
    except OSError as error:
        _explain(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), None, None)
        sys.exit(PERMISSION if isinstance(error, PermissionError) else OPERATING_SYSTEM)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("indb_tensile"):
            raise
        _explain(f"this command needs {error.name}, which is not installed", None, _INSTALL)
        sys.exit(2)
    except _psycopg_error() as error:
        told = error.diag
        words = told.message_primary or str(error).strip().partition("\n")[0]
        way_out = _READ_ONLY if error.sqlstate == "25006" else None
        _explain(words, told.message_detail, told.message_hint or way_out)
        sys.exit(_exit_code(error.sqlstate))


_READ_ONLY = "a standby takes no writes: name the primary server with --dsn"


def _psycopg_error() -> "type[psycopg.Error] | tuple[()]":
    """Asked for once an exception is here: `tensile --help` needs no driver, and some commands do without."""
    try:
        import psycopg
    except ModuleNotFoundError:
        return ()
    return psycopg.Error


def _explain(message: str, detail: str | None, hint: str | None) -> None:
    print(f"tensile: {message}", file=sys.stderr)
    for name, text in (("detail", detail), ("hint", hint)):
        if text:
            print(f"  {name}: " + text.rstrip().replace("\n", "\n    "), file=sys.stderr)


def _exit_code(sqlstate: str | None) -> int:
    """What SQLSTATE a statement ended with, as an exit code: whose fault it was."""
    match sqlstate or "":
        case "42501":
            return 3
        case "57P03":
            return 6
        case "57014":
            return 7
        case "53200":  # a job that cannot be planned below its limit; the server's own kind of it is rare
            return 2
        case state if state[:2] in {"22", "42", "0A", "23", "25", "3F", "54", "55"}:
            return 2
        case _:
            return 4
