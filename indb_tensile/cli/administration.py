"""`tensile init`, `doctor`, `controller`, `version` and `psql`: what administrators do to a database or a machine."""

import os
import shutil
import subprocess
import sys
from importlib import metadata

import click
import psycopg

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.cli.connection import open_connection, resolve
from indb_tensile.cli.options import dsn_option, json_option
from indb_tensile.cli.output import Row, show_one, show_rows, warn
from indb_tensile.cli.statements import statement
from indb_tensile.errors import MissingError, TensileError


@click.command()
@dsn_option
def init(dsn: str | None) -> None:
    """Install the catalog into a database; needs a superuser and PL/Python.

    Uses `create extension tensile` where the server has its files, else runs the same source.
    """
    with open_connection(dsn, role="postgres") as connection:
        install.install(connection)
    warn("the catalog is installed")


@click.command()
@dsn_option
def controller(dsn: str | None) -> None:
    """Run a controller in the foreground, for a service manager; settings come from TENSILE_* or a TOML file.

    It connects as the role of --dsn, which must be a member of tensile_worker.
    """
    os.environ["TENSILE_DSN"] = resolve(dsn, role="tensile_worker")
    config.load(os.environ)  # says what is wrong here, before the process is replaced
    os.execv(sys.executable, [sys.executable, "-m", "indb_tensile.worker.controller"])  # noqa: S606 - our own interpreter


@click.command()
@dsn_option
@json_option
def version(dsn: str | None, as_json: bool) -> None:
    """Print the versions of this command and of the database's catalog."""
    versions: Row = {"tensile": metadata.version("indb-tensile")}
    try:
        with open_connection(dsn) as connection:
            row = connection.execute(statement("versions")).fetchone()
            assert row is not None
            versions |= {"catalog": row[0], "postgresql": row[1]}
    except (TensileError, psycopg.Error) as error:
        warn(f"no catalog to ask: {str(error).splitlines()[0]}")
    show_one(versions, as_json=as_json)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--role", default="demo", show_default=True, help="who to be on the embedded database")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(role: str, arguments: tuple[str, ...]) -> None:
    """Run psql on the embedded or configured database; ARGUMENTS are psql's own."""
    program = shutil.which("psql")
    if program is None:
        raise MissingError("psql is not on the PATH", hint="install Debian's package postgresql-client")
    os.execv(program, [program, resolve(None, role=role), *arguments])  # noqa: S606 - psql, as asked


@click.command()
@dsn_option
@json_option
def doctor(dsn: str | None, as_json: bool) -> None:
    """Say what is missing on this machine and in the database, and the command that mends it."""
    checks = [*_machine(), *_database(dsn)]
    show_rows(checks, as_json=as_json)
    if not all(check["ok"] for check in checks):
        sys.exit(1)


def _machine() -> list[Row]:
    return [
        _check("virtual environment", sys.prefix != sys.base_prefix, sys.prefix, "sh examples/quickstart.sh"),
        _check("torch", *_torch(), "pip install torch==2.13.0"),
        _check("native library", *_native(), "pip install --no-build-isolation --editable ."),
        _check("shared memory", *_shared_memory(), "mount -o remount,size=4G /dev/shm"),
    ]


def _torch() -> tuple[bool, str]:
    try:
        return True, metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False, "not installed"


def _native() -> tuple[bool, str]:
    """Loading it is the check; in a process of its own, so that a broken library says so and no more."""
    command = [sys.executable, "-c", "import indb_tensile._native as n; print(n.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else ""


def _shared_memory() -> tuple[bool, str]:
    usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - the system's own name for it
    return usage.free > 64 * config.MIB, f"{usage.free // config.MIB} MB free in /dev/shm"


def _database(dsn: str | None) -> list[Row]:
    try:
        with open_connection(dsn, role="postgres") as connection:
            reached = _check("database", True, connection.info.dsn, "")
            installed = connection.execute(statement("catalog_exists")).fetchone() is not None
            if not installed:
                return [reached, _check("catalog", False, "not installed", "tensile init")]
            return [reached, *_catalog(connection)]
    except (TensileError, psycopg.Error) as error:
        return [_check("database", False, str(error).splitlines()[0], "tensile up")]


def _catalog(connection: psycopg.Connection) -> list[Row]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        rows = cursor.execute(statement("check")).fetchall()
    return [_check(row["check"], row["ok"], row["found"] or "", row["mend"] or "") for row in rows]


def _check(name: str, passed: bool, found: str, mend: str) -> Row:
    return {"check": name, "ok": passed, "found": found, "mend": "" if passed else mend}
