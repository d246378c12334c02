"""The command `tensile`.

The module of a subcommand is imported only when the subcommand is called, so the command starts quickly, and
`tensile --help` does not need the database driver.

Exit codes:
  0    success
  1    a job that the command waited for failed or was cancelled, or doctor found a fault
  2    wrong request: an option, a value, or a name that does not exist
  3    not permitted by the database or by the operating system
  4    database: it does not exist, does not answer, lacks the catalog, or reported a fault of its own
  5    device: it is missing or failed
  6    a process that should answer does not run
  7    time ran out
  70   a bug in this package; its traceback is in a file of the state directory
  71   operating system, such as a full disk
  130  interrupted from the keyboard; 141: the reader of the output closed it (SIGPIPE, as for every Unix program)
"""

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from indb_tensile.error_report import report_error


class LazyCommand(NamedTuple):
    """A command whose module is imported when the command is called. `short_help` is the list entry in --help."""

    target: str  # module of indb_tensile.cli, and the command's name in it
    short_help: str


COMMANDS = {
    "up": LazyCommand(
        "embedded:up", "Start the embedded database and a controller, and create them first if necessary."
    ),
    "down": LazyCommand(
        "embedded:down", "Stop the controllers and the embedded database; models and queued jobs are kept."
    ),
    "init": LazyCommand(
        "administration:init",
        "Install the catalog into a database, or upgrade it to this version; needs a superuser and PL/Python.",
    ),
    "doctor": LazyCommand(
        "doctor:doctor", "Check this machine and the database, and print the command that mends each fault."
    ),
    "controller": LazyCommand(
        "administration:controller",
        "Run a controller in the foreground, for a service manager; settings come from TENSILE_* or a TOML file.",
    ),
    "service": LazyCommand(
        "administration:service", "Answer predictions on a hot standby, in the foreground, for a service manager."
    ),
    "vacuum": LazyCommand(
        "administration:vacuum",
        "Delete all rows that are older than the settings retain_jobs, retain_events, … allow; for tensile_admin.",
    ),
    "version": LazyCommand(
        "administration:version", "Print the versions of this command and of the database's catalog."
    ),
    "reference": LazyCommand(
        "reference:reference",
        "Print every option and setting with its type, range, default and meaning, as Markdown.",
    ),
    "psql": LazyCommand(
        "administration:psql", "Run psql on the embedded or configured database; ARGUMENTS are psql's own."
    ),
    "jobs": LazyCommand("listing_commands:jobs", "List jobs, newest first."),
    "queue": LazyCommand(
        "listing_commands:queue",
        "List waiting jobs in the order in which they will start, with what each one waits for.",
    ),
    "events": LazyCommand("listing_commands:events", "List events in the history of jobs, newest first."),
    "job": LazyCommand(
        "job_commands:job",
        "Show one job: its state, progress and memory, its error, and the report on the data of its table.",
    ),
    "metrics": LazyCommand(
        "job_commands:metrics",
        "Show the losses and metrics of a job after each epoch, a chart of both losses, and the baseline's metric.",
    ),
    "logs": LazyCommand(
        "report_command:logs",
        "Print the lines of the controller's log that name the job, with their tracebacks, the oldest first.",
    ),
    "report": LazyCommand(
        "report_command:report",
        "Write everything that is needed to understand what happened to a job into one file: a support bundle.",
    ),
    "train": LazyCommand(
        "job_commands:train", "Enqueue a training of MODEL on the table RELATION and print the job's number."
    ),
    "search": LazyCommand(
        "search_command:search",
        "Search for the best arguments of a training of MODEL on the table RELATION, and print the search's number.",
    ),
    "searches": LazyCommand("listing_commands:searches", "List searches, newest first, with their best trials."),
    "trials": LazyCommand("listing_commands:trials", "List trials of searches, the newest search first."),
    "wait": LazyCommand(
        "job_commands:wait",
        "Wait until the jobs have ended; exit with 1 if one failed or was cancelled, with 7 if time ran out.",
    ),
    "watch": LazyCommand(
        "job_commands:watch",
        "Show live progress until the jobs have ended; without JOB_IDS, of all jobs that have not ended yet.",
    ),
    "cancel": LazyCommand(
        "job_commands:cancel", "Cancel jobs: a queued job at once, a running job within a heartbeat."
    ),
    "pause": LazyCommand(
        "job_commands:pause",
        "Pause jobs: they give up their device memory, and train no further until `tensile resume`.",
    ),
    "resume": LazyCommand(
        "job_commands:resume",
        "Resume paused jobs: they continue where they were, as soon as they have device memory again.",
    ),
    "retry": LazyCommand(
        "job_commands:retry",
        "Enqueue the requests of jobs that failed or were cancelled as new jobs, and print the numbers of these.",
    ),
    "priority": LazyCommand(
        "job_commands:priority",
        "Change the priority of a queued or running job: of your own jobs, those of a higher PRIORITY start first.",
    ),
    "deploy": LazyCommand(
        "model_commands:deploy",
        "Deploy VERSION of MODEL and print its number; VERSION is a number, `best`, or `previous` for a rollback.",
    ),
    "retrain": LazyCommand(
        "model_commands:retrain", "Enqueue the last successful training of MODEL again and print the job's number."
    ),
    "models": LazyCommand(
        "network_commands:models",
        "List models and the version that is deployed; export and import models, and manage registered networks.",
    ),
    "predict": LazyCommand(
        "predict_command:predict",
        'Predict with MODEL for one ROW, a JSON object such as \'{"age": 41, "plan": "basic"}\'.',
    ),
    "workers": LazyCommand("listing_commands:workers", "List controllers, running and stopped, newest first."),
    "devices": LazyCommand(
        "listing_commands:devices", "List devices with the memory that jobs use, newest worker first."
    ),
    "drift": LazyCommand(
        "listing_commands:drift",
        "List how far inputs of predictions have drifted from those of the training, the largest drift first.",
    ),
    "usage": LazyCommand(
        "listing_commands:usage", "List the use of the devices by owner and model, the largest first."
    ),
    "top": LazyCommand(
        "top_command:top",
        "Show devices, jobs and the queue live in the terminal, with keys to cancel, pause and look into a job.",
    ),
    "web": LazyCommand("web_command:web", "Show devices, queue, jobs and models in a browser, until Ctrl-C ends it."),
    "plan": LazyCommand(
        "plan_command:plan", "Show the memory plans of JOB_ID, or plan step graphs and show the predicted result."
    ),
    "trace": LazyCommand(
        "trace_command:trace",
        "Record the next iterations of the running job JOB_ID, and write them as a trace for ui.perfetto.dev.",
    ),
    "graph": LazyCommand(
        "graph_commands:graph", "Write and read step graphs as JSON files, which `tensile plan --graph` plans."
    ),
    "bench": LazyCommand("bench:bench", "Measure the claimed figures of this package."),
}


_OTHER_SPELLINGS = {"model": "models"}  # `tensile model export NAME FILE` reads as well


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _OTHER_SPELLINGS.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(f"indb_tensile.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, but without importing their modules."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=c.short_help).get_short_help_str(limit)) for name, c in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="indb-tensile", message="tensile %(version)s")
def tensile() -> None:
    """Train deep models on PostgreSQL tables, many at once, on one device whose memory is planned.

    Commands use the database of --dsn, else of TENSILE_DSN, else of libpq's variables (PGHOST, PGDATABASE, PGSERVICE,
    …), else the embedded database of `tensile up`. Data goes to stdout, all other output to stderr.

    Exit codes: 0 success, 1 a job failed or was cancelled, 2 wrong request, 3 not permitted, 4 database, 5 device,
    6 a process does not answer, 7 time ran out, 70 bug in tensile, 71 operating system, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    An expected error is printed as one sentence with its detail and hint, a bug with the file of its traceback.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `tensile jobs | head` ends without a message
    try:
        tensile.main(args=arguments, prog_name="tensile", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(report_error(KeyboardInterrupt()))
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the outermost frame: each error has an exit code
        code = report_error(error)
        if code is None:
            from indb_tensile.cli.bug_report import report_bug

            code = report_bug(error)
        sys.exit(code)
