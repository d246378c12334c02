"""The commands `tensile init`, `controller`, `service`, `vacuum`, `version` and `psql`, mostly for administrators."""

import os
import shutil
import sys
from importlib import metadata

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from indb_tensile import config, settings_loader
from indb_tensile.catalog import install, retention
from indb_tensile.catalog.connection import connect, pinned
from indb_tensile.catalog.pgml_schema import install_pgml
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.output import Row, show_one, warn
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement
from indb_tensile.default_database import (
    ORDINARY_ROLE,
    embedded_state_directory,
    named_database,
    naming_variables,
    resolve,
)
from indb_tensile.errors import MissingError, TensileError

_VACUUM_ROWS = 10_000  # rows of one step, which is one transaction, so that no lock is held for long
_READ_ONLY_VARIABLE = "TENSILE_SERVICE_READ_ONLY"  # read by worker/serving/settings.py
_PRIMARY_VARIABLE = "TENSILE_SERVICE_PRIMARY_DSN"  # likewise
_VARIABLES = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}


@click.command()
@click.option("--pgml", is_flag=True, help="also install schema pgml: functions named like PostgresML's")
@click.option(
    "--socket-directory",
    metavar="DIR",
    help="directory on the database's host for the sockets of services, which predict: stored as the setting "
    "socket_directory; a controller's TENSILE_SERVICE_DIRECTORY names the same directory",
)
@dsn_option
@json_option
def init(pgml: bool, socket_directory: str | None, dsn: str | None, as_json: bool) -> None:
    """Install the catalog into a database, or upgrade it to this version; needs a superuser and PL/Python.

    Uses `create extension tensile` if the server has the extension's files, else runs the same source.
    """
    with connect(resolve(dsn, role="postgres"), application_name="tensile init") as connection:
        before = install.installed(connection)
        after = install.install(connection)
        same = install.same_source(connection)
        if pgml:
            install_pgml(connection)
        if socket_directory is not None:
            values = {"name": "socket_directory", "value": Jsonb(socket_directory)}
            connection.execute(statement("set_setting"), values)
        database = connection.info.dbname
    if as_json:
        show_one(
            {"database": database, "version": after.version, "way": after.way, "changed": before != after},
            as_json=True,
        )
    else:
        done = "installed" if before is None else f"upgraded from {before.version}"
        done = "installed already" if before == after else done
        warn(f'the catalog {after.version} is {done} in database "{database}"')
        if pgml:
            warn("schema pgml is installed; to remove it: drop schema pgml cascade")
    if not same:
        warn(
            "warning: it was installed from another source of the same version and lacks later changes. "
            "To install them: drop the database, with its models, create it again, and repeat this command"
        )
    warn("tensile doctor checks what else is needed")


@click.command()
@dsn_option
def controller(dsn: str | None) -> None:
    """Run a controller in the foreground, for a service manager; settings come from TENSILE_* or a TOML file.

    It connects as the role of --dsn, which must be a member of tensile_worker.
    """
    os.environ["TENSILE_DSN"] = resolve(dsn, role="tensile_worker")
    if named_database(dsn) is None:
        place = embedded_state_directory()
        os.environ.setdefault(config.variable("service_directory"), str(place.service))
        os.environ.setdefault(config.variable("state_dir"), str(place.directory))
    settings_loader.load(os.environ)  # raises an error here, before the process is replaced
    os.execv(sys.executable, [sys.executable, "-m", "indb_tensile.worker.controller"])  # noqa: S606 - our own interpreter


@click.command()
@click.option("--read-only", is_flag=True, required=True, help="write nothing: for a hot standby")
@click.option(
    "--primary-dsn",
    metavar="DSN",
    envvar=_PRIMARY_VARIABLE,
    help="the primary, as a member of tensile_worker: its catalog counts the predictions; else they are not counted",
)
@dsn_option
def service(dsn: str | None, read_only: bool, primary_dsn: str | None) -> None:
    """Answer predictions on a hot standby, in the foreground, for a service manager.

    It runs on the standby's host, connects as the role of --dsn, which must be a member of tensile_worker, and
    listens in the directory of the setting socket_directory. On a primary, each controller starts its own service.
    """
    os.environ["TENSILE_DSN"] = resolve(dsn, role="tensile_worker")
    os.environ[_READ_ONLY_VARIABLE] = "1" if read_only else ""
    os.environ[_PRIMARY_VARIABLE] = primary_dsn or ""
    settings_loader.load(os.environ)  # raises an error here, before the process is replaced
    os.execv(sys.executable, [sys.executable, "-m", "indb_tensile.worker.service"])  # noqa: S606 - our own interpreter


@click.command()
@dsn_option
@json_option
def vacuum(dsn: str | None, as_json: bool) -> None:
    """Delete all rows that are older than the settings retain_jobs, retain_events, … allow; for tensile_admin.

    Controllers delete the same rows, one step a minute. tensile.setting_list shows the settings.
    """
    removed = dict.fromkeys(retention.KINDS, 0)
    with connect(resolve(dsn, role="postgres"), application_name="tensile vacuum") as connection:
        while step := retention.vacuum_step(connection, _VACUUM_ROWS):
            for kind, count in step.items():
                removed[kind] += count
    show_one(dict(removed), as_json=as_json)


@click.command()
@dsn_option
@json_option
def version(dsn: str | None, as_json: bool) -> None:
    """Print the versions of this command and of the database's catalog."""
    versions: Row = {"tensile": metadata.version("indb-tensile"), "catalog": None, "postgresql": None}
    try:
        with open_connection(dsn) as connection, pinned(connection):
            row = connection.execute(statement("versions")).fetchone()
            assert row is not None
            versions |= {"catalog": row[0], "postgresql": row[1]}
    except (TensileError, psycopg.Error) as error:
        warn(f"the catalog's version is unknown: {str(error).splitlines()[0]}")
    show_one(versions, as_json=as_json)


# Without -h for help, because psql has its own option -h.
@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    }
)
@dsn_option
@click.option("--role", help=f"the role to connect as; on the embedded database {ORDINARY_ROLE} by default")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(dsn: str | None, role: str | None, arguments: tuple[str, ...]) -> None:
    """Run psql on the embedded or configured database; ARGUMENTS are psql's own."""
    named = named_database(dsn)
    if named is not None and role is not None:
        named = _as_role(named, role)
    if named is None:
        cluster = embedded_state_directory().cluster()
        parameters = conninfo_to_dict(cluster.dsn(user=role or ORDINARY_ROLE))
        os.environ |= {variable: str(parameters[name]) for name, variable in _VARIABLES.items()}
        os.environ.pop("PGPASSWORD", None)
        program = cluster.programs.path("psql")
        if os.access(program, os.X_OK):
            _replace_process(program, arguments)
    path = shutil.which("psql")
    if path is None:
        raise MissingError("psql is not on the PATH", hint="install Debian's package postgresql-client")
    _replace_process(path, (f"--dbname={named}", *arguments) if named else arguments)


def _as_role(named: str, role: str) -> str:
    """Return the connection string for the same database with this role.

    Warns if libpq's variables name the database, because the user may have meant the embedded one.
    """
    if named:
        return make_conninfo(named, user=role)
    os.environ["PGUSER"] = role
    variables = ", ".join(naming_variables())
    warn(f"as {role} on the database of libpq's variables ({variables} set), not on the embedded one")
    return named


def _replace_process(program: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(program, [program, *arguments])  # noqa: S606 - the user runs psql
