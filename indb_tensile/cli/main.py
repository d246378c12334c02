"""The command `tensile`: each subcommand's module is imported when it is called, so that the command starts at once.

Exit codes: 0 done; 1 the job that was waited for failed or was cancelled; 2 the request was wrong; 3 not
permitted; 4 the database; 5 the device; 6 a process that should answer does not run; 7 time ran out; 70 a fault
of ours; 130 interrupted.
"""

import importlib
import sys
from collections.abc import Sequence

import click

from indb_tensile.errors import TensileError

COMMANDS = {
    "up": "embedded:up",
    "down": "embedded:down",
    "init": "administration:init",
    "doctor": "administration:doctor",
    "controller": "administration:controller",
    "version": "administration:version",
    "psql": "administration:psql",
    "jobs": "jobs:jobs",
    "job": "jobs:job",
    "train": "jobs:train",
    "wait": "jobs:wait",
    "watch": "jobs:watch",
    "cancel": "jobs:cancel",
    "models": "models:models",
    "predict": "models:predict",
    "plan": "models:plan",
}
INTERRUPTED = 130


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
def tensile() -> None:
    """Train deep models on PostgreSQL tables, many at once, on one device whose memory is planned.

    Commands talk to the database of --dsn, else of libpq's variables (PGHOST, PGDATABASE, PGSERVICE, …), else to
    the embedded one of `tensile up`. Data goes to stdout, everything else to stderr.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; what the user can mend is a sentence, never a traceback."""
    import psycopg

    try:
        tensile.main(args=arguments, prog_name="tensile", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TensileError as error:
        _explain(error.message, error.detail, error.hint)
        sys.exit(error.exit_code)
    except psycopg.Error as error:
        told = error.diag
        _explain(told.message_primary or str(error).strip(), told.message_detail, told.message_hint)
        sys.exit(_exit_code(error.sqlstate))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has had enough
        sys.exit(0)


def _explain(message: str, detail: str | None, hint: str | None) -> None:
    print(f"tensile: {message}", file=sys.stderr)
    if detail:
        print(f"  detail: {detail}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)


def _exit_code(sqlstate: str | None) -> int:
    """What SQLSTATE a statement ended with, as an exit code: whose fault it was."""
    match sqlstate or "":
        case "42501":
            return 3
        case "57P03":
            return 6
        case "57014":
            return 7
        case state if state[:2] in {"22", "42", "0A", "23", "53", "25"}:
            return 2
        case _:
            return 4
