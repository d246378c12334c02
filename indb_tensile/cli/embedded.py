"""`tensile up` and `tensile down` start and stop the embedded database, with its catalog and its controller."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from psycopg import sql

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.cli import daemon, mps_daemon
from indb_tensile.cli.embedded_controllers import EmbeddedController, bring_up_controllers, connect_after_recovery
from indb_tensile.cli.gpu_probe import chosen_device, probed_gpus
from indb_tensile.cli.launch_settings import launches, unused_variable_notices, variables
from indb_tensile.cli.machine_devices import check_named_gpu, device_names
from indb_tensile.cli.output import show_one, show_rows, warn
from indb_tensile.cli.settings_file import (
    check_device_of_sizes,
    check_mps,
    check_settings,
    document_of,
    remove_imitation,
    store_options,
    warn_of_old_sizes,
    with_named_device,
)
from indb_tensile.cli.shared_options import json_option, size_text_option
from indb_tensile.cli.statements import statement
from indb_tensile.cluster import DATABASE, UNFINISHED, Cluster
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.timing.machines import MACHINES
from indb_tensile.state_directory import StateDirectory, find_state_directory

_OLDER_LOGS = "postgres.log."
_OF_CONTROLLERS = re.compile(r"controller(-[1-9]\d?)?\.(pid|toml|log(\.\d+)?)")
_MOST_DEVICES = 64  # the setting `devices` allows as many


def _count(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Return the number of devices; 0 for all."""
    if text is None:
        return None
    if text == "all":
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DEVICES:
        raise click.BadParameter(f"{text!r} is neither a number of devices from 1 to {_MOST_DEVICES} nor all")
    return int(text)


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
@click.option(
    "--devices",
    callback=_count,
    metavar="N|all",
    help="start a controller for each of N devices, or of all usable GPUs",
)
@json_option
def up(as_json: bool, **arguments: Any) -> None:
    """Start the embedded database and a controller, and create them first if necessary.

    Options are stored for the next start. Variables (TENSILE_MAX_JOBS, …) have effect while they are set. A running
    controller is restarted if its settings differ. With --devices, there is a controller for each device; sizes are
    those of each one.
    """
    place = find_state_directory(os.environ)
    place.make()
    if place.reason:
        warn(f"the state is kept in {place.directory}: {place.reason}")
    for reason in unused_variable_notices(os.environ, place.settings):
        warn(reason)
    chosen = {name: value for name, value in arguments.items() if value is not None}
    options = with_named_device(chosen, os.environ)
    with place.locked(warn):
        document = document_of(place.settings)
        store_options(document, options)
        stored = document.settings
        environ = variables(os.environ, options)
        settings = check_settings(document.text, place.settings, environ)
        if "device" in options:
            check_named_gpu(settings.device, chosen_device)
        check_device_of_sizes(document, settings, place.settings, environ)
        remove_imitation(document, settings, options)
        settings = check_settings(document.text, place.settings, environ)
        check_mps(settings)
        names = device_names(settings, probed_gpus, chosen_device)
        if settings.mps:
            mps_daemon.find_program(environ)  # fails before any change is made
        cluster = place.cluster()
        _bring_up(cluster)
        _prepare_database(cluster, place)
        place.settings.write_text(document.text, encoding="utf-8")
        controllers = bring_up_controllers(place, cluster, launches(settings, environ, names))
    for controller in controllers:
        warn_of_old_sizes(place, controller.device, stored, options)
    _show(place, cluster, settings, controllers, as_json=as_json)


def _show(
    place: StateDirectory,
    cluster: Cluster,
    settings: config.Settings,
    controllers: Sequence[EmbeddedController],
    *,
    as_json: bool,
) -> None:
    """Print what runs now: of one controller its figures, of several a row for each."""
    summary: dict[str, Any] = {"database": cluster.dsn(user="demo")}
    if len(controllers) == 1:
        (only,) = controllers
        summary |= {"controller": only.pid, "policy": settings.policy, **only.device}
        show_one(summary | {"state": str(place.directory), "log": str(only.files.log)}, as_json=as_json)
        return
    rows = [{"controller": each.pid, **each.device, "log": str(each.files.log)} for each in controllers]
    summary |= {"policy": settings.policy, "state": str(place.directory)}
    if as_json:
        show_one(summary | {"controllers": rows}, as_json=True)
        return
    show_one(summary, as_json=False)
    show_rows(rows, as_json=False)


@click.command()
@click.option("--purge", is_flag=True, help="also remove the state directory: the database and all models in it")
@json_option
def down(purge: bool, as_json: bool) -> None:
    """Stop the controllers and the embedded database; models and queued jobs are kept."""
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
    stopped = daemon.stop(*place.controllers())
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
    with connect_after_recovery(cluster.dsn(database="postgres")) as connection:
        if connection.execute(statement("database_exists"), {"name": DATABASE}).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    with connect_after_recovery(cluster.dsn()) as connection:
        install.install(connection)
        if not install.same_source(connection):
            warn(
                "warning: the catalog was installed from another source of the same version and lacks later changes. "
                "To install them, which deletes all models: tensile down --purge, then tensile up"
            )
        connection.execute(statement("prepare_embedded_roles"))
        connection.execute(statement("set_socket_directory"), {"directory": str(place.service)})


def _check_ours(directory: Path) -> None:
    """Raise RequestError unless the directory holds only files of `tensile up`, because removing is final."""
    ours = {"data", "run", "service", "lock", "mps", "postgres.log", "pg_ctl.log", "checkpoints", "swap", "captures"}
    ours |= {"settings.toml", "settings.new", "baselines", "rows", "traceback.txt", "trainer-footprints.json"}
    names = sorted(path.name for path in directory.iterdir())
    others = [
        name
        for name in names
        if name not in ours and not name.startswith((UNFINISHED, _OLDER_LOGS)) and not _OF_CONTROLLERS.fullmatch(name)
    ]
    if others:
        raise RequestError(
            f"the state directory {directory} contains a file that tensile did not create: {others[0]}",
            hint="move that file elsewhere, then run tensile down --purge again",
        )
