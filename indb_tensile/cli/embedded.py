"""`tensile up` and `tensile down`: the embedded cluster, its catalog and its controller."""

import os
import shutil
import time
import tomllib
from pathlib import Path

import click
import psycopg
from psycopg import sql

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.cli import daemon
from indb_tensile.cli.cluster import DATABASE, Cluster
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.place import Place, find_place
from indb_tensile.cli.statements import statement
from indb_tensile.errors import RequestError, UnavailableError

_READY_S = 90.0
_POLL_S = 0.1
_CHANGEABLE = (
    "capacity_bytes",
    "budget_bytes",
    "policy",
    "link_out_bytes_per_s",
    "link_in_bytes_per_s",
    "spare_trainers",
)


@click.command()
@click.option("--capacity", "capacity_bytes", help="memory of the emulated device, such as 2GB")
@click.option("--budget", "budget_bytes", help="the part of it that jobs may use together")
@click.option("--policy", type=click.Choice(config.POLICIES), help="how memory is planned")
@click.option("--link-out", "link_out_bytes_per_s", help="device to host, bytes a second, such as 400MB")
@click.option("--link-in", "link_in_bytes_per_s", help="host to device, bytes a second")
@click.option("--spare-trainers", help="trainers kept started")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def up(as_json: bool, **given: str | None) -> None:
    """Start the embedded database and a controller, creating what is missing.

    Settings given here are kept for the next time; a running controller is started again if they differ.
    """
    place = find_place(dict(os.environ))
    place.make()
    if place.reason:
        warn(f"the state is kept in {place.directory}: {place.reason}")
    cluster = place.cluster()
    _bring_up(cluster)
    _prepare_database(cluster, place)
    changed = _keep_settings(place, {name: value for name, value in given.items() if value is not None})
    if changed and daemon.running_pid(place) is not None:
        warn("the settings differ: starting the controller again")
        daemon.stop(place)
    pid = daemon.running_pid(place) or daemon.start(place, _environment(place, cluster))
    _wait_until_ready(place, cluster, pid)
    show_one(
        {
            "database": cluster.dsn(user="demo"),
            "controller": pid,
            "state": str(place.directory),
            "log": str(place.controller_log),
        },
        as_json=as_json,
    )


@click.command()
@click.option("--purge", is_flag=True, help="also remove the state directory: the database and all models in it")
def down(purge: bool) -> None:
    """Stop the controller and the embedded database; models and queued jobs stay."""
    place = find_place(dict(os.environ))
    stopped = daemon.stop(place)
    if place.has_cluster():
        cluster = place.cluster()
        stopped = cluster.running() or stopped
        cluster.stop()
    warn("stopped" if stopped else "nothing was running")
    if purge and place.directory.exists():
        _check_ours(place.directory)
        shutil.rmtree(place.directory)
        warn(f"removed {place.directory}")


def _bring_up(cluster: Cluster) -> None:
    if not cluster.exists():
        warn(f"creating a private PostgreSQL {cluster.programs.major} cluster in {cluster.directory}")
        cluster.create()
    if not cluster.running():
        cluster.start()


def _prepare_database(cluster: Cluster, place: Place) -> None:
    with connect(cluster.dsn(database="postgres"), application_name="tensile up") as connection:
        if connection.execute(statement("database_exists"), {"name": DATABASE}).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    with connect(cluster.dsn(), application_name="tensile up") as connection:
        install.install(connection)
        connection.execute(statement("prepare_embedded_roles"))
        connection.execute(statement("set_socket_directory"), {"directory": str(place.service)})


def _keep_settings(place: Place, given: dict[str, str]) -> bool:
    """Write the settings file anew with what was given; True where that changes it."""
    kept = _read_settings(place.settings)
    wanted = kept | given
    text = "".join(f'{name} = "{wanted[name]}"\n' for name in _CHANGEABLE if name in wanted)
    config.load(_as_variables(wanted))  # refuses what is wrong
    if place.settings.exists() and place.settings.read_text() == text:
        return False
    place.settings.write_text(text)
    return bool(given)


def _read_settings(path: Path) -> dict[str, str]:
    return tomllib.loads(path.read_text()) if path.exists() else {}


def _as_variables(settings: dict[str, str]) -> dict[str, str]:
    return {config.variable(name): value for name, value in settings.items()}


def _environment(place: Place, cluster: Cluster) -> dict[str, str]:
    return {
        "TENSILE_DSN": cluster.dsn(user="tensile_worker"),
        "TENSILE_SERVICE_DIRECTORY": str(place.service),
        "TENSILE_STATE_DIR": str(place.directory),
        config.CONFIG_VARIABLE: str(place.settings),
    }


def _wait_until_ready(place: Place, cluster: Cluster, pid: int) -> None:
    """Wait until the controller beats and its service answers."""
    deadline = time.monotonic() + _READY_S
    with connect(cluster.dsn(), application_name="tensile up") as connection:
        while not _ready(connection, pid):
            if daemon.running_pid(place) is None:
                raise UnavailableError(
                    "the controller ended while it was starting",
                    detail=daemon.log_tail(place.controller_log),
                    hint=f"the whole log is in {place.controller_log}",
                )
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"the controller (process {pid}) was not ready within {_READY_S:.0f} s",
                    detail=daemon.log_tail(place.controller_log),
                    hint=f"the whole log is in {place.controller_log}",
                )
            time.sleep(_POLL_S)


def _ready(connection: psycopg.Connection, pid: int) -> bool:
    return connection.execute(statement("worker_is_ready"), {"pid": pid}).fetchone() is not None


def _check_ours(directory: Path) -> None:
    """Removing is final: only a directory that holds what `tensile up` made is removed."""
    strangers = {path.name for path in directory.iterdir()} - {
        *("data", "run", "service", "postgres.log", "pg_ctl.log"),
        *("controller.pid", "controller.log", "settings.toml"),
    }
    if strangers:
        raise RequestError(
            f"the state directory {directory} holds something that is not ours: {sorted(strangers)[0]}",
            hint="move that elsewhere, then run tensile down --purge again",
        )
