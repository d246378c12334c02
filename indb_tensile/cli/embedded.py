"""`tensile up` and `tensile down`: the embedded cluster, its catalog and its controller."""

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
from indb_tensile.cli.kept_settings import (
    check_mps,
    check_settings,
    kept_settings,
    text_of,
    warn_of_old_sizes,
    without_imitation,
)
from indb_tensile.cli.launch import Launch, unused, variables
from indb_tensile.cli.options import json_option, size_option
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.place import Place, find_place
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import DATABASE, UNFINISHED, Cluster
from indb_tensile.controller import housekeeping
from indb_tensile.errors import RequestError, TensileError, UnavailableError
from indb_tensile.scheduler.machines import MACHINES

_READY_S = 90.0
_RECOVERY_S = 60.0
_POLL_S = 0.1
_OLDER_LOGS = ("controller.log.", "postgres.log.")


@click.command()
@click.option("--device", help="auto (the default), cpu, cuda, cuda:N, or emulated")
@size_option("--capacity", "capacity_bytes", help="memory of the device, such as 2GB")
@size_option("--budget", "budget_bytes", help="the part of it that jobs may use together")
@click.option("--policy", type=click.Choice(config.POLICIES), help="how memory is planned")
@click.option("--emulate", type=click.Choice(tuple(MACHINES)), help="the GPU that the emulated device stands for")
@size_option(
    "--link-out", "link_out_bytes_per_s", help="device to host, bytes a second, such as 400MB; 0: that GPU's"
)
@size_option("--link-in", "link_in_bytes_per_s", help="host to device, bytes a second; 0: that GPU's, slowed down")
@click.option("--mps/--no-mps", default=None, help="whether jobs on a GPU compute beside each other, by NVIDIA's MPS")
@click.option("--spare-trainers", type=click.IntRange(1, 64), help="trainers kept started")
@json_option
def up(as_json: bool, **given: Any) -> None:
    """Start the embedded database and a controller, creating what is missing.

    Settings given here are kept for the next time, and those of variables (TENSILE_MAX_JOBS, …) hold while these are
    set; a running controller is started again if its settings differ.
    """
    place = find_place(os.environ)
    place.make()
    if place.reason:
        warn(f"the state is kept in {place.directory}: {place.reason}")
    for reason in unused(os.environ, place.settings):
        warn(reason)
    options = {name: value for name, value in given.items() if value is not None}
    with place.locked():
        kept = kept_settings(place.settings, options)
        environ = variables(os.environ, options)
        settings = check_settings(text_of(kept), place.settings, environ)
        text = text_of(without_imitation(kept, settings, options))
        settings = check_settings(text, place.settings, environ)
        check_mps(settings)
        if settings.mps:
            mps_daemon.find_program(environ)  # before anything is changed
        cluster = place.cluster()
        _bring_up(cluster)
        _prepare_database(cluster, place)
        place.settings.write_text(text)
        controller = _bring_up_controller(place, cluster, Launch(settings=settings, variables=environ))
    device = _device_of(cluster, controller.pid, settings)
    warn_of_old_sizes(place, device, kept, options)
    shown = {
        "database": cluster.dsn(user="demo"),
        "controller": controller.pid,
        "policy": settings.policy,
        **device,
        "state": str(place.directory),
        "log": str(place.controller_log),
    }
    show_one(shown, as_json=as_json)


@click.command()
@click.option("--purge", is_flag=True, help="also remove the state directory: the database and all models in it")
@json_option
def down(purge: bool, as_json: bool) -> None:
    """Stop the controller and the embedded database; models and queued jobs stay."""
    place = find_place(os.environ)
    place.check_owner()
    stopped = removed = False
    if place.directory.is_dir():
        if purge:
            _check_ours(place.directory)
        with place.locked():
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


def _stop(place: Place) -> bool:
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


def _prepare_database(cluster: Cluster, place: Place) -> None:
    with _connect(cluster.dsn(database="postgres")) as connection:
        if connection.execute(statement("database_exists"), {"name": DATABASE}).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    with _connect(cluster.dsn()) as connection:
        install.install(connection)
        if not install.same_source(connection):
            warn(
                "warning: the catalog was installed from another source of the same version; what has changed since "
                "is not in it. To have it, and lose all models: tensile down --purge, then tensile up"
            )
        connection.execute(statement("prepare_embedded_roles"))
        connection.execute(statement("set_socket_directory"), {"directory": str(place.service)})


def _connect(dsn: str) -> Connection:
    """A connection, once the server has recovered from whatever stopped it."""
    return retrying(lambda: connect(dsn, application_name="tensile up"), patience_s=_RECOVERY_S)


def _bring_up_controller(place: Place, cluster: Cluster, launch: Launch) -> daemon.Daemon:
    """The running controller if it was started with these settings and this version, else a new one; ready."""
    found = daemon.running(place)
    gone = daemon.dead(place)
    if found is not None and found.made_from != launch.digest:
        _say_what_differs(place, launch)
        daemon.stop(place)
        found, gone = None, found
    if gone is not None:
        with _connect(cluster.dsn()) as connection:
            connection.execute(statement("bury_worker"), {"pid": gone.pid, "host": socket.gethostname()})
    if launch.settings.mps:
        mps_daemon.start(place, launch.variables)
    else:
        mps_daemon.end(place, launch.variables)
    if found is None:
        housekeeping.rotate_logs(place.directory, launch.settings.log_bytes, launch.settings.log_files)
    since = daemon.size(place.controller_log)
    controller = found or _start(place, cluster, launch)
    _wait_until_ready(place, cluster, controller.pid, since)
    return controller


def _start(place: Place, cluster: Cluster, launch: Launch) -> daemon.Daemon:
    place.running_settings.write_text(launch.text)
    served = mps_daemon.environment(place) if launch.settings.mps else {}
    return daemon.start(place, {**launch.variables, **_environment(place, cluster), **served}, launch.digest)


def _say_what_differs(place: Place, launch: Launch) -> None:
    different = launch.differences(place.running_settings)
    listed = f": {', '.join(different)}" if different else ""
    warn(f"the settings differ{listed}; starting the controller again, its jobs go on from their last checkpoints")
    if different and launch.from_variables:
        warn(f"variables hold while they are set; what is to stay goes into {place.settings}")


def _environment(place: Place, cluster: Cluster) -> dict[str, str]:
    return {
        "TENSILE_DSN": cluster.dsn(user="tensile_worker"),
        "TENSILE_READER_DSN": cluster.dsn(user="tensile_reader"),
        "TENSILE_SERVICE_DIRECTORY": str(place.service),
        "TENSILE_STATE_DIR": str(place.directory),
        config.CONFIG_VARIABLE: str(place.settings),
    }


def _wait_until_ready(place: Place, cluster: Cluster, pid: int, since: int) -> None:
    """Wait until the controller beats and its service answers."""
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
    """The device that the controller has chosen, and its memory: as set, until it has said what it has."""
    with _connect(cluster.dsn()) as connection:
        row = connection.execute(statement("device_of_worker"), {"pid": pid}).fetchone()
    device, budget_bytes, capacity_bytes = row or (settings.device, None, None)
    return {
        "device": device,
        "budget_bytes": budget_bytes or settings.budget_bytes,
        "capacity_bytes": capacity_bytes or settings.capacity_bytes,
    }


def _not_ready(place: Place, fault: str, since: int) -> TensileError:
    return UnavailableError(
        fault,
        detail=daemon.tail(place.controller_log, since=since),
        hint=f"the whole log is in {place.controller_log}; tensile doctor says what is missing",
    )


def _ready(connection: Connection, pid: int) -> bool:
    return connection.execute(statement("worker_is_ready"), {"pid": pid}).fetchone() is not None


def _check_ours(directory: Path) -> None:
    """Removing is final: only a directory that holds what `tensile up` made is removed."""
    ours = {"data", "run", "service", "lock", "mps", "postgres.log", "pg_ctl.log", "checkpoints", "swap"}
    ours |= {"controller.pid", "controller.toml", "controller.log", "settings.toml", "settings.new"}
    names = sorted(path.name for path in directory.iterdir())
    strangers = [name for name in names if name not in ours and not name.startswith((UNFINISHED, *_OLDER_LOGS))]
    if strangers:
        raise RequestError(
            f"the state directory {directory} holds something that is not ours: {strangers[0]}",
            hint="move that elsewhere, then run tensile down --purge again",
        )
