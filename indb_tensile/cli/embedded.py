"""`tensile up` and `tensile down` start and stop the embedded database, with its catalog and its controller."""

import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import click
from psycopg import sql

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, connect, retrying
from indb_tensile.cli import daemon, mps_daemon
from indb_tensile.cli.launch_settings import Launch, unused_variable_notices, variables
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.settings_file import (
    check_mps,
    check_settings,
    document_of,
    remove_imitation,
    store_options,
    warn_of_old_sizes,
)
from indb_tensile.cli.shared_options import json_option, size_text_option
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import DATABASE, UNFINISHED, Cluster
from indb_tensile.controller import housekeeping
from indb_tensile.errors import RequestError, TensileError, UnavailableError
from indb_tensile.scheduler.timing.machines import MACHINES
from indb_tensile.state_directory import StateDirectory, find_state_directory

_READY_S = 90.0
_RECOVERY_S = 60.0
_POLL_S = 0.1
_OLDER_LOGS = ("controller.log.", "postgres.log.")


@click.command()
@click.option("--device", help="auto (the default), cpu, cuda, cuda:N, or emulated")
@size_text_option("--capacity", "capacity_bytes", help="memory of the device, such as 2GB")
@size_text_option("--budget", "budget_bytes", help="the part of the device's memory that all jobs may use together")
@click.option("--policy", type=click.Choice(config.POLICIES), help="how memory is planned")
@click.option("--emulate", type=click.Choice(tuple(MACHINES)), help="the GPU that the emulated device imitates")
@size_text_option(
    "--link-out",
    "link_out_bytes_per_s",
    help="emulated rate to the host, bytes a second, such as 400MB; 0: that GPU's, slowed down",
)
@size_text_option(
    "--link-in",
    "link_in_bytes_per_s",
    help="emulated rate to the device, bytes a second; 0: that GPU's, slowed down",
)
@click.option("--mps/--no-mps", default=None, help="whether jobs share a GPU by NVIDIA's MPS")
@click.option("--spare-trainers", type=click.IntRange(1, 64), help="trainer processes that are started in advance")
@json_option
def up(as_json: bool, **arguments: Any) -> None:
    """Start the embedded database and a controller, and create them first if necessary.

    Options are stored for the next start. Variables (TENSILE_MAX_JOBS, …) have effect while they are set. A running
    controller is restarted if its settings differ.
    """
    place = find_state_directory(os.environ)
    place.make()
    if place.reason:
        warn(f"the state is kept in {place.directory}: {place.reason}")
    for reason in unused_variable_notices(os.environ, place.settings):
        warn(reason)
    options = {name: value for name, value in arguments.items() if value is not None}
    with place.locked(warn):
        document = document_of(place.settings)
        store_options(document, options)
        stored = document.settings
        environ = variables(os.environ, options)
        settings = check_settings(document.text, place.settings, environ)
        remove_imitation(document, settings, options)
        settings = check_settings(document.text, place.settings, environ)
        check_mps(settings)
        if settings.mps:
            mps_daemon.find_program(environ)  # fails before any change is made
        cluster = place.cluster()
        _bring_up(cluster)
        _prepare_database(cluster, place)
        place.settings.write_text(document.text, encoding="utf-8")
        controller = _bring_up_controller(place, cluster, Launch(settings=settings, variables=environ))
    device = _device_of(cluster, controller.pid, settings)
    warn_of_old_sizes(place, device, stored, options)
    summary = {
        "database": cluster.dsn(user="demo"),
        "controller": controller.pid,
        "policy": settings.policy,
        **device,
        "state": str(place.directory),
        "log": str(place.controller_log),
    }
    show_one(summary, as_json=as_json)


@click.command()
@click.option("--purge", is_flag=True, help="also remove the state directory: the database and all models in it")
@json_option
def down(purge: bool, as_json: bool) -> None:
    """Stop the controller and the embedded database; models and queued jobs are kept."""
    place = find_state_directory(os.environ)
    place.check_owner()
    stopped = removed = False
    if place.directory.is_dir():
        if purge:
            _check_ours(place.directory)
        with place.locked(warn):
            stopped = _stop(place)
            if purge:
                shutil.rmtree(place.directory)
                removed = True
    if as_json:
        show_one({"stopped": stopped, "removed": str(place.directory) if removed else None}, as_json=True)
        return
    warn("stopped" if stopped else "nothing was running")
    if removed:
        warn(f"removed {place.directory}")


def _stop(place: StateDirectory) -> bool:
    stopped = daemon.stop(place)
    try:
        mps_daemon.end(place, os.environ)
    finally:
        if place.has_cluster():
            cluster = place.cluster()
            stopped = cluster.running() or stopped
            cluster.stop()
    return stopped


def _bring_up(cluster: Cluster) -> None:
    if not cluster.exists():
        warn(f"creating a private PostgreSQL {cluster.programs.major} cluster in {cluster.directory}")
        cluster.create()
    cluster.map_roles()
    cluster.start()


def _prepare_database(cluster: Cluster, place: StateDirectory) -> None:
    with _connect(cluster.dsn(database="postgres")) as connection:
        if connection.execute(statement("database_exists"), {"name": DATABASE}).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    with _connect(cluster.dsn()) as connection:
        install.install(connection)
        if not install.same_source(connection):
            warn(
                "warning: the catalog was installed from another source of the same version and lacks later changes. "
                "To install them, which deletes all models: tensile down --purge, then tensile up"
            )
        connection.execute(statement("prepare_embedded_roles"))
        connection.execute(statement("set_socket_directory"), {"directory": str(place.service)})


def _connect(dsn: str) -> Connection:
    """Connect to the server, after it has recovered if it was not shut down properly."""
    return retrying(lambda: connect(dsn, application_name="tensile up"), retry_s=_RECOVERY_S)


def _bring_up_controller(place: StateDirectory, cluster: Cluster, launch: Launch) -> daemon.Daemon:
    """Return a ready controller: the running one if it has these settings and this version, else a new one."""
    running = daemon.running(place)
    ended = daemon.crashed(place)
    if running is not None and running.made_from != launch.digest:
        _warn_of_differences(place, launch)
        daemon.stop(place)
        running, ended = None, running
    if ended is not None:
        with _connect(cluster.dsn()) as connection:
            connection.execute(statement("end_worker"), {"pid": ended.pid, "host": socket.gethostname()})
    if launch.settings.mps:
        mps_daemon.start(place, launch.variables)
    else:
        mps_daemon.end(place, launch.variables)
    if running is None:
        housekeeping.rotate_logs(place.directory, launch.settings.log_bytes, launch.settings.log_files)
    since = daemon.size(place.controller_log)
    controller = running or _start(place, cluster, launch)
    _wait_until_ready(place, cluster, controller.pid, since)
    return controller


def _start(place: StateDirectory, cluster: Cluster, launch: Launch) -> daemon.Daemon:
    place.running_settings.write_text(launch.text)
    mps_variables = mps_daemon.environment(place) if launch.settings.mps else {}
    return daemon.start(place, {**launch.variables, **_environment(place, cluster), **mps_variables}, launch.digest)


def _warn_of_differences(place: StateDirectory, launch: Launch) -> None:
    differences = launch.differences(place.running_settings)
    listed = f": {', '.join(differences)}" if differences else ""
    warn(f"the settings differ{listed}; restarting the controller, its jobs resume from their last checkpoints")
    if differences and launch.from_variables:
        warn(f"variables have effect only while they are set; write permanent settings into {place.settings}")


def _environment(place: StateDirectory, cluster: Cluster) -> dict[str, str]:
    return {
        "TENSILE_DSN": cluster.dsn(user="tensile_worker"),
        "TENSILE_READER_DSN": cluster.dsn(user="tensile_reader"),
        "TENSILE_SERVICE_DIRECTORY": str(place.service),
        "TENSILE_STATE_DIR": str(place.directory),
        config.CONFIG_VARIABLE: str(place.settings),
    }


def _wait_until_ready(place: StateDirectory, cluster: Cluster, pid: int, since: int) -> None:
    """Wait until the controller sends heartbeats and its service answers. Raises UnavailableError."""
    deadline = time.monotonic() + _READY_S
    with _connect(cluster.dsn()) as connection:
        while not _ready(connection, pid):
            if daemon.running(place) is None:
                place.controller_pid.unlink(missing_ok=True)
                raise _not_ready(place, "the controller ended while it was starting", since)
            if time.monotonic() > deadline:
                raise _not_ready(
                    place, f"the controller (process {pid}) was not ready within {_READY_S:.0f} s", since
                )
            time.sleep(_POLL_S)


def _device_of(cluster: Cluster, pid: int, settings: config.Settings) -> dict[str, Any]:
    """Return the device that the controller has chosen, and its memory.

    The settings supply the values that the controller has not written yet.
    """
    with _connect(cluster.dsn()) as connection:
        row = connection.execute(statement("device_of_worker"), {"pid": pid}).fetchone()
    device, budget_bytes, capacity_bytes = row or (settings.device, None, None)
    return {
        "device": device,
        "budget_bytes": budget_bytes or settings.budget_bytes,
        "capacity_bytes": capacity_bytes or settings.capacity_bytes,
    }


def _not_ready(place: StateDirectory, fault: str, since: int) -> TensileError:
    return UnavailableError(
        fault,
        detail=daemon.tail(place.controller_log, since=since),
        hint=f"the whole log is in {place.controller_log}; tensile doctor says what is missing",
    )


def _ready(connection: Connection, pid: int) -> bool:
    return connection.execute(statement("worker_is_ready"), {"pid": pid}).fetchone() is not None


def _check_ours(directory: Path) -> None:
    """Raise RequestError unless the directory holds only files of `tensile up`, because removing is final."""
    ours = {"data", "run", "service", "lock", "mps", "postgres.log", "pg_ctl.log", "checkpoints", "swap", "captures"}
    ours |= {"controller.pid", "controller.toml", "controller.log", "settings.toml", "settings.new"}
    names = sorted(path.name for path in directory.iterdir())
    others = [name for name in names if name not in ours and not name.startswith((UNFINISHED, *_OLDER_LOGS))]
    if others:
        raise RequestError(
            f"the state directory {directory} contains a file that tensile did not create: {others[0]}",
            hint="move that file elsewhere, then run tensile down --purge again",
        )
