"""The command `tensile top`."""

import sys

import click

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.cli.shared_options import dsn_option
from indb_tensile.default_database import resolve
from indb_tensile.errors import RequestError, UnsupportedError

_APPLICATION = "tensile top"


@click.command()
@click.option("--every", "period_s", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="seconds")
@dsn_option
def top(period_s: float, dsn: str | None) -> None:
    """Show devices, jobs and the queue live in the terminal, with keys to cancel, pause and look into a job.

    It needs the extra `top`: pip install 'indb-tensile[top]'. Without a terminal, use `tensile watch`.
    """
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # the screen is drawn on stderr
        raise RequestError("tensile top needs a terminal", hint="For a pipe or a log, use tensile watch.")
    try:
        from indb_tensile.cli.top_screen import TopScreen
        from indb_tensile.monitor.viewer import Viewer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("indb_tensile"):
            raise
        raise UnsupportedError(
            f"tensile top needs {error.name}, which is not installed",
            hint="Install what it needs: pip install 'indb-tensile[top]'.",
        ) from error
    database = resolve(dsn)

    def reopen() -> Connection:
        return connect(database, application_name=_APPLICATION, callers_path=True)

    with reopen() as reading, reopen() as acting:
        install.check_version(reading)
        viewer = Viewer((reading, acting), reopen=reopen)
        try:
            TopScreen(viewer, period_s=period_s).run()
        finally:
            viewer.close()
