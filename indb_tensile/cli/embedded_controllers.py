"""Starts, keeps and restarts the controllers of the embedded database: one for each device of this machine.

A controller that runs with the present settings is kept. New ones are started one after another, because a controller
measures its device when it starts, and two would disturb each other's measurements.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile import config
from indb_tensile.catalog.connection import Connection, connect, retrying
from indb_tensile.cli import daemon, mps_daemon
from indb_tensile.cli.daemon import Daemon
from indb_tensile.cli.launch_settings import Launch
from indb_tensile.cli.output import warn
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import Cluster
from indb_tensile.controller import housekeeping
from indb_tensile.errors import TensileError, UnavailableError
from indb_tensile.state_directory import ControllerFiles, StateDirectory

_READY_S = 600.0  # a controller that ends is noticed at once, and one that measures a busy machine takes minutes
_SILENT_S = 3.0  # for which a start says nothing; one on a device that was measured before takes no longer
_RECOVERY_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedController:
    """A controller that is ready. `device` has the kind, name, budget and capacity of its device."""

    files: ControllerFiles
    pid: int
    device: Mapping[str, Any]


def bring_up_controllers(
    place: StateDirectory, cluster: Cluster, launches: Sequence[Launch]
) -> tuple[EmbeddedController, ...]:
    """Return ready controllers, one for each launch; stop those that have other settings or no device any more."""
    wanted = {place.controller(number): launch for number, launch in enumerate(launches)}
    kept = _stop_others(place, cluster, wanted)
    first = launches[0]
    if first.settings.mps:
        mps_daemon.start(place, first.variables)
    else:
        mps_daemon.end(place, first.variables)
    if len(kept) < len(wanted):
        housekeeping.rotate_logs(place.directory, first.settings.log_bytes, first.settings.log_files)
    ready = []
    for files, launch in wanted.items():
        since = daemon.size(files.log)
        controller = kept.get(files) or _start(place, files, cluster, launch)
        _wait_until_ready(files, cluster, controller.pid, since)
        device = _device_of(cluster, controller.pid, launch.settings)
        ready.append(EmbeddedController(files=files, pid=controller.pid, device=device))
    return tuple(ready)


def connect_after_recovery(dsn: str) -> Connection:
    """Connect to the server, after it has recovered if it was not shut down properly."""
    return retrying(lambda: connect(dsn, application_name="tensile up"), retry_s=_RECOVERY_S)


def _stop_others(
    place: StateDirectory, cluster: Cluster, wanted: Mapping[ControllerFiles, Launch]
) -> dict[ControllerFiles, Daemon]:
    """Stop the controllers that are not wanted, or that run with other settings. Returns those that go on.

    The leases of all controllers that have ended are ended, so that their jobs need not wait for that.
    """
    known = {*place.controllers(), *wanted}
    running = {files: each for files in known if (each := daemon.running(files)) is not None}
    ended = [each for files in known if (each := daemon.crashed(files)) is not None]
    kept = {f: each for f, each in running.items() if f in wanted and each.made_from == wanted[f].digest}
    changed = sorted((f for f in running if f in wanted and f not in kept), key=lambda f: f.number)
    if changed:
        _warn_of_differences(place, changed[0], wanted[changed[0]])
    daemon.stop(*(files for files in known if files not in kept))
    ended += [each for files, each in running.items() if files not in kept]
    if ended:
        with connect_after_recovery(cluster.dsn()) as connection:
            for each in ended:
                connection.execute(statement("end_worker"), {"pid": each.pid, "host": socket.gethostname()})
    return kept


def _start(place: StateDirectory, files: ControllerFiles, cluster: Cluster, launch: Launch) -> Daemon:
    files.settings.write_text(launch.text)
    mps_variables = mps_daemon.environment(place) if launch.settings.mps else {}
    environment = {**launch.variables, **_environment(place, cluster), **mps_variables, **launch.own_variables}
    return daemon.start(files, environment, launch.digest)


def _warn_of_differences(place: StateDirectory, files: ControllerFiles, launch: Launch) -> None:
    differences = launch.differences(files.settings)
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


def _wait_until_ready(files: ControllerFiles, cluster: Cluster, pid: int, since: int) -> None:
    """Wait until the controller sends heartbeats and its service answers. Raises UnavailableError."""
    begin = time.monotonic()
    silent = True
    with connect_after_recovery(cluster.dsn()) as connection:
        while not _ready(connection, pid):
            if daemon.running(files) is None:
                files.pid.unlink(missing_ok=True)
                raise _not_ready(files, "the controller ended while it was starting", since)
            waited_s = time.monotonic() - begin
            if silent and waited_s > _SILENT_S:
                warn(f"waiting for the controller, which measures a new device for about a minute; log: {files.log}")
                silent = False
            if waited_s > _READY_S:
                raise _not_ready(
                    files, f"the controller (process {pid}) was not ready within {_READY_S:.0f} s", since
                )
            time.sleep(_POLL_S)


def _device_of(cluster: Cluster, pid: int, settings: config.Settings) -> dict[str, Any]:
    """Return the device that the controller has chosen, and its memory.

    The settings supply the values that the controller has not written yet.
    """
    with connect_after_recovery(cluster.dsn()) as connection:
        row = connection.execute(statement("device_of_worker"), {"pid": pid}).fetchone()
    device, device_name, budget_bytes, capacity_bytes = row or (settings.device, settings.device, None, None)
    return {
        "device": device,
        "device_name": device_name,
        "budget_bytes": budget_bytes or settings.budget_bytes,
        "capacity_bytes": capacity_bytes or settings.capacity_bytes,
    }


def _not_ready(files: ControllerFiles, fault: str, since: int) -> TensileError:
    return UnavailableError(
        fault,
        detail=daemon.tail(files.log, since=since),
        hint=f"the whole log is in {files.log}; tensile doctor says what is missing",
    )


def _ready(connection: Connection, pid: int) -> bool:
    return connection.execute(statement("worker_is_ready"), {"pid": pid}).fetchone() is not None
