"""`tensile init`, `controller`, `vacuum`, `version` and `psql`: what administrators do to a database or a machine."""

import os
import shutil
import sys
from importlib import metadata

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from indb_tensile import config
from indb_tensile.catalog import install, retention
from indb_tensile.catalog.connection import connect, pinned
from indb_tensile.cli.connection import (
    ORDINARY_ROLE,
    embedded_place,
    named_database,
    naming_variables,
    open_connection,
    resolve,
)
from indb_tensile.cli.options import dsn_option, json_option
from indb_tensile.cli.output import Row, show_one, warn
from indb_tensile.cli.statements import statement
from indb_tensile.errors import MissingError, TensileError

_VACUUM_ROWS = 10_000  # of one step: each is a transaction, so that no lock is held for long
_VARIABLES = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}


@click.command()
@dsn_option
@json_option
def init(dsn: str | None, as_json: bool) -> None:
    """Install the catalog into a database, or bring it up to this version; needs a superuser and PL/Python.

    Uses `create extension tensile` where the server has its files, else runs the same source.
    """
    with connect(resolve(dsn, role="postgres"), application_name="tensile init") as connection:
        before = install.installed(connection)
        after = install.install(connection)
        same = install.same_source(connection)
        database = connection.info.dbname
    if as_json:
        show_one(
            {"database": database, "version": after.version, "way": after.way, "changed": before != after},
            as_json=True,
        )
    else:
        done = "installed" if before is None else f"brought up from {before.version}"
        done = "there already" if before == after else done
        warn(f'the catalog {after.version} is {done} in database "{database}"')
    if not same:
        warn(
            "warning: it was installed from another source of the same version; what has changed since is not in it. "
            "To have it: drop the database, with its models, create it anew, and run this again"
        )
    warn("tensile doctor says what else is needed")


@click.command()
@dsn_option
def controller(dsn: str | None) -> None:
    """Run a controller in the foreground, for a service manager; settings come from TENSILE_* or a TOML file.

    It connects as the role of --dsn, which must be a member of tensile_worker.
    """
    os.environ["TENSILE_DSN"] = resolve(dsn, role="tensile_worker")
    if named_database(dsn) is None:
        os.environ.setdefault(config.variable("service_directory"), str(embedded_place().service))
    config.load(os.environ)  # says what is wrong here, before the process is replaced
    os.execv(sys.executable, [sys.executable, "-m", "indb_tensile.worker.controller"])  # noqa: S606 - our own interpreter


@click.command()
@dsn_option
@json_option
def vacuum(dsn: str | None, as_json: bool) -> None:
    """Remove at once what the settings retain_jobs, retain_events, … say is old; needs a member of tensile_admin.

    Controllers do the same, a step a minute. The settings are in tensile.setting_list.
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
        warn(f"no catalog to ask: {str(error).splitlines()[0]}")
    show_one(versions, as_json=as_json)


# psql has a -h of its own.
@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    }
)
@dsn_option
@click.option("--role", help=f"who to be; on the embedded database {ORDINARY_ROLE} if not given")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(dsn: str | None, role: str | None, arguments: tuple[str, ...]) -> None:
    """Run psql on the embedded or configured database; ARGUMENTS are psql's own."""
    named = named_database(dsn)
    if named is not None and role is not None:
        named = _as_role(named, role)
    if named is None:
        cluster = embedded_place().cluster()
        asked = conninfo_to_dict(cluster.dsn(user=role or ORDINARY_ROLE))
        os.environ |= {variable: str(asked[name]) for name, variable in _VARIABLES.items()}
        os.environ.pop("PGPASSWORD", None)
        program = cluster.programs.path("psql")
        if os.access(program, os.X_OK):
            _replace(program, arguments)
    found = shutil.which("psql")
    if found is None:
        raise MissingError("psql is not on the PATH", hint="install Debian's package postgresql-client")
    _replace(found, (f"--dbname={named}", *arguments) if named else arguments)


def _as_role(named: str, role: str) -> str:
    """The same database as this role. Where libpq's variables name the database, the embedded one is not meant."""
    if named:
        return make_conninfo(named, user=role)
    os.environ["PGUSER"] = role
    variables = ", ".join(naming_variables())
    warn(f"as {role} on the database of libpq's variables ({variables} set), not on the embedded one")
    return named


def _replace(program: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(program, [program, *arguments])  # noqa: S606 - psql, as asked
