"""The command `tensile`. It imports the module of a subcommand only when that is called, so that it starts quickly.

Exit codes:
  0    success
  1    a job that the command waited for failed or was cancelled, or doctor found a fault
  2    wrong request: an option, a value, or a name that does not exist
  3    not permitted by the database or by the operating system
  4    database: it does not exist, does not answer, lacks the catalog, or reported a fault of its own
  5    device: it is missing or failed
  6    a process that should answer does not run
  7    time ran out
  70   a bug in this package
  71   operating system, such as a full disk
  130  interrupted from the keyboard; 141: the reader of the output closed it (SIGPIPE, as for every Unix program)
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
    "jobs": "listing_commands:jobs",
    "queue": "listing_commands:queue",
    "events": "listing_commands:events",
    "job": "job_commands:job",
    "train": "job_commands:train",
    "wait": "job_commands:wait",
    "watch": "job_commands:watch",
    "cancel": "job_commands:cancel",
    "models": "listing_commands:models",
    "predict": "predict_command:predict",
    "workers": "listing_commands:workers",
    "devices": "listing_commands:devices",
    "plan": "plan_command:plan",
    "graph": "graph_commands:graph",
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

    Commands use the database of --dsn, else of libpq's variables (PGHOST, PGDATABASE, PGSERVICE, …), else the
    embedded database of `tensile up`. Data goes to stdout, all other output to stderr.

    Exit codes: 0 success, 1 a job failed or was cancelled, 2 wrong request, 3 not permitted, 4 database, 5 device,
    6 a process does not answer, 7 time ran out, 70 bug in tensile, 71 operating system, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Expected errors are printed as a sentence, without a traceback."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `tensile jobs | head` ends without a message
    try:
        tensile.main(args=arguments, prog_name="tensile", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _print_error("interrupted", None, None)
        sys.exit(INTERRUPTED)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TensileError as error:
        _print_error(error.message, error.detail, error.hint)
        sys.exit(error.exit_code)
    except OSError as error:
        _print_error(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), None, None)
        sys.exit(PERMISSION if isinstance(error, PermissionError) else OPERATING_SYSTEM)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("indb_tensile"):
            raise
        _print_error(f"this command needs {error.name}, which is not installed", None, _INSTALL)
        sys.exit(2)
    except _psycopg_error() as error:
        diagnostic = error.diag
        message = diagnostic.message_primary or str(error).strip().partition("\n")[0]
        default_hint = _READ_ONLY if error.sqlstate == "25006" else None
        _print_error(message, diagnostic.message_detail, diagnostic.message_hint or default_hint)
        sys.exit(_exit_code(error.sqlstate))


_READ_ONLY = "a standby accepts no writes: name the primary server with --dsn"


def _psycopg_error() -> "type[psycopg.Error] | tuple[()]":
    """Return psycopg's base exception, or no exception if psycopg is missing.

    It is imported only after an exception, because `tensile --help` and some commands do not need the driver.
    """
    try:
        import psycopg
    except ModuleNotFoundError:
        return ()
    return psycopg.Error


def _print_error(message: str, detail: str | None, hint: str | None) -> None:
    print(f"tensile: {message}", file=sys.stderr)
    for name, text in (("detail", detail), ("hint", hint)):
        if text:
            print(f"  {name}: " + text.rstrip().replace("\n", "\n    "), file=sys.stderr)


def _exit_code(sqlstate: str | None) -> int:
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
