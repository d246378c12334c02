"""The commands `tensile logs` and `tensile report`: what there is to read of one job, printed or packed."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from indb_tensile.catalog.connection import pinned
from indb_tensile.cli import doctor
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.job_log import in_order_of_time, lines_of_job, log_files, read_lines
from indb_tensile.cli.output import warn
from indb_tensile.cli.shared_options import dsn_option
from indb_tensile.cli.support_bundle import pack, read_bundle
from indb_tensile.default_database import named_database
from indb_tensile.errors import MissingError, RequestError, TensileError
from indb_tensile.monitor import live_figures
from indb_tensile.state_directory import find_state_directory

_log_option = click.option(
    "--log",
    "log",
    type=click.Path(path_type=Path),
    help="log of the controller; by default that of `tensile up`",
)


@click.command()
@click.argument("job_id", type=click.IntRange(min=1))
@_log_option
@dsn_option
def logs(job_id: int, log: Path | None, dsn: str | None) -> None:
    """Print the lines of the controller's log that name the job, with their tracebacks, the oldest first.

    The job has to exist for the role. A controller of a service manager logs there: save its lines to a file, as in
    journalctl -u tensile-controller > controller.log, and name it with --log.
    """
    with open_connection(dsn) as connection, pinned(connection):
        live_figures.job(connection, job_id)
    paths = (log,) if log else _own_logs(dsn)
    files = [each for path in paths for each in log_files(path)]
    if not files:
        raise MissingError(
            f"there is no log at {_listed(paths)}"
            if paths
            else "the log of this database's controller is not known here",
            hint="Name the file with --log. A controller that a service manager started logs there: "
            "journalctl -u tensile-controller.",
        )
    lines = in_order_of_time(lines_of_job(read_lines(files), job_id))
    if not lines:
        warn(
            f"the log {_listed(paths)} says nothing of job {job_id}: another controller may have had it, or the "
            "job is older"
        )
        return
    for line in lines:
        click.echo(line)


@click.command()
@click.argument("job_id", type=click.IntRange(min=1))
@click.option("--output", type=click.Path(path_type=Path), help="file to write; by default job-JOB_ID.zip here")
@_log_option
@dsn_option
def report(job_id: int, output: Path | None, log: Path | None, dsn: str | None) -> None:
    """Write everything that is needed to understand what happened to a job into one file: a support bundle.

    It has neither rows of a table nor weights; the file's README.txt says what it has.
    """
    path = output or Path(f"job-{job_id}.zip")
    if path.exists():
        raise RequestError(f"the file {path} exists already", hint="Name another one with --output.")
    with open_connection(dsn) as connection, pinned(connection):
        files = read_bundle(connection, job_id)
    paths = (log,) if log else _own_logs(dsn)
    lines = lines_of_job(read_lines(each for path in paths for each in log_files(path)), job_id)
    packed = pack(job_id, files, doctor.checks(dsn), _readable(lines))
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(packed)
    click.echo(str(path))
    warn("read job.json in it before you pass it on: messages of errors can quote a value of the data")


def _listed(paths: tuple[Path, ...]) -> str:
    return " and ".join(map(str, paths))


def _readable(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines in the order of time, or say why there are none."""
    try:
        yield from in_order_of_time(lines)
    except OSError as error:
        yield f"(the log cannot be read: {error.strerror})"


def _own_logs(dsn: str | None) -> tuple[Path, ...]:
    """Return the logs of `tensile up`, one for each device, if the command uses the embedded database and this user
    owns them.
    """
    if named_database(dsn) is not None:
        return ()
    place = find_state_directory(os.environ)
    try:
        place.check_owner()
    except TensileError:
        return ()
    return tuple(sorted(place.directory.glob("controller*.log"))) or (place.controller().log,)
