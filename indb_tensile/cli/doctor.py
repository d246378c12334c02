"""`tensile doctor` checks the machine and the database, and prints the command that mends each fault."""

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import groupby
from pathlib import Path

import click
import psycopg
from psycopg.rows import dict_row
from rich.text import Text

from indb_tensile import config, settings_loader
from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, pinned
from indb_tensile.catalog.reader_connection import READER, as_reader, open_reader
from indb_tensile.cli import daemon
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.gpu_probe import chosen_device, probed_gpus
from indb_tensile.cli.machine_devices import device_names
from indb_tensile.cli.output import Row, out, plain, print_json
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement
from indb_tensile.controller.service_certificates import server_context, validity
from indb_tensile.default_database import named_database, resolve
from indb_tensile.device.backend import Cpu, Emulated, fit_to_gpu, refuse_network, torch_cuda
from indb_tensile.device.cuda import Gpu, NoGpu
from indb_tensile.device.hardware import (
    address_fault,
    directory_fault,
    disk_free_bytes,
    is_in_memory,
    memory,
    processor,
    read_limit_bytes,
    room_bytes,
    rows_directory,
    share_of_machine,
)
from indb_tensile.errors import TensileError
from indb_tensile.scheduler.link import BORNE_OUT, CopyDirection, CopyMeasurement, link_of
from indb_tensile.state_directory import find_state_directory

FOUND_FAULTS = 1
_TORCH = ((2, 11), (2, 16))  # the versions that pyproject.toml allows: from, below
_SHARED_BYTES = 64 * config.MIB


@click.command()
@dsn_option
@json_option
def doctor(dsn: str | None, as_json: bool) -> None:
    """Check this machine and the database, and print the command that mends each fault.

    Exits with 1 if there is a fault.
    """
    passed = True
    for check in checks(dsn):
        passed = passed and check["ok"]
        if as_json:
            print_json(check)
        else:
            _show(check)
    sys.exit(0 if passed else FOUND_FAULTS)


def _show(check: Row) -> None:
    """Print the result of a check: a mark, the name, the finding, and the command that mends a fault.

    In a terminal, long texts are folded at its width. A name that is too long for its column has a line of its own.
    """
    mark, style = ("ok", "green") if check["ok"] else ("MISSING", "bold red")
    head = Text.assemble((f"{mark:<{_MARK}}", style), f"{check['check']:<{_NAME}}")
    if len(check["check"]) >= _NAME:
        out.print(head)
        head = Text(_INDENT)
    first, *others = _folded(check["found"])
    out.print(head.append(first))
    for line in others:
        out.print(Text(_INDENT + line))
    if check["mend"]:
        first, *others = _folded("mend: " + check["mend"])
        out.print(Text.assemble(_INDENT, ("mend:", "bold"), first.removeprefix("mend:")))
        for line in others:
            out.print(Text(_INDENT + line))


_MARK, _NAME = 8, 18  # columns
_INDENT = " " * (_MARK + _NAME)
_LEAST_WIDTH = 24  # least width of folded text, however narrow the terminal is


def _folded(text: str) -> list[str]:
    """Fold a text for the terminal; in a file or a pipe it is one line. Words stay whole: commands can be copied."""
    if not out.is_terminal:
        return [text]
    width = max(_LEAST_WIDTH, out.width - len(_INDENT))
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _check(name: str, passed: bool, finding: str, mend: str) -> Row:
    return {"check": name, "ok": passed, "found": plain(finding), "mend": None if passed else plain(mend)}


def checks(dsn: str | None) -> Iterator[Row]:
    """Check this machine and the database, and yield each finding when it is known."""
    yield from _machine()
    embedded = named_database(dsn) is None
    yield from device(_settings_environment() if embedded else os.environ)
    if embedded:
        yield from _embedded()
    yield from _database(dsn)


def _machine() -> Iterator[Row]:
    yield _check("python", sys.version_info >= (3, 11), f"{platform.python_version()} in {sys.prefix}", "")
    yield _check("torch", *_torch(), "pip install torch==2.13.0")
    yield _check(
        "native library", *_native(), "pip install --editable . (in the checkout; needs cmake and a C++20 compiler)"
    )
    yield _check("shared memory", *_shared_memory(), "mount -o remount,size=4G /dev/shm")
    yield _check("gpu", *_gpu())


def _torch() -> tuple[bool, str]:
    """Check the installed version of torch by its metadata, because importing torch takes seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False, "not installed"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return _TORCH[0] <= numbers < _TORCH[1], version


def _native() -> tuple[bool, str]:
    """Load the native library, in a process of its own, so that a broken library cannot end this process."""
    command = [sys.executable, "-c", "import indb_tensile._native as n; print(n.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"loading it ended with {done.returncode}"


def _gpu() -> tuple[bool, str, str]:
    """Check the GPUs. A machine without a GPU passes the check."""
    gpus = probed_gpus()
    if isinstance(gpus, NoGpu):
        return not gpus.is_fault, gpus.reason if gpus.is_fault else f"none: {gpus.reason}", gpus.hint
    has_cuda = torch_cuda()
    version = f"driver for CUDA {gpus.driver_version // 1000}.{gpus.driver_version % 1000 // 10}"
    names = ", ".join(f"{each.name} with {each.memory_bytes // config.MIB} MB" for each in gpus.devices)
    if not all(each.virtual_memory for each in gpus.devices):
        mend = "use a GPU whose driver can map memory (virtual memory management)"
        return False, f"{names}, {version}: its memory cannot be mapped in regions", mend
    if has_cuda is None:
        mend = "install a build of torch with CUDA (https://pytorch.org/get-started/locally); until then it is cpu"
        return True, f"{names}, {version}, not used: the installed torch has no CUDA", mend
    return True, f"{names}, {version}, torch for CUDA {has_cuda}", ""


def _shared_memory() -> tuple[bool, str]:
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - the system's own name for it
    except FileNotFoundError:
        return False, "there is no /dev/shm"
    return usage.free >= _SHARED_BYTES, f"{usage.free // config.MIB} MB free in /dev/shm"


def _embedded() -> Iterator[Row]:
    try:
        place = find_state_directory(os.environ)
        place.check_owner()
        programs = place.cluster().programs
    except TensileError as error:
        yield _check("embedded cluster", False, error.message, error.hint)
        return
    yield _check("PostgreSQL", True, f"{programs.major} in {programs.directory}", "")
    reason = f" ({place.reason})" if place.reason else ""
    if not place.has_cluster():
        yield _check(
            "embedded cluster", False, f"not created yet; it will be in {place.directory}{reason}", "tensile up"
        )
        return
    runs = place.cluster().running()
    state = "runs" if runs else "stopped"
    yield _check("embedded cluster", runs, f"{state} in {place.directory}{reason}", "tensile up")
    for files in place.controllers():
        controller = daemon.running(files)
        finding = f"process {controller.pid}" if controller else "does not run"
        name = f"its controller {files.number}" if files.number else "its controller"
        yield _check(name, controller is not None, finding, "tensile up")


def _settings_environment() -> dict[str, str]:
    """Return the environment from which `tensile up` reads the settings of the embedded controller."""
    try:
        place = find_state_directory(os.environ)
    except TensileError:  # the check of the cluster reports this error
        return dict(os.environ)
    if not place.settings.exists():
        return dict(os.environ)
    own = {config.CONFIG_VARIABLE: str(place.settings), config.variable("state_dir"): str(place.directory)}
    return {**os.environ, **own}


def device(environ: Mapping[str, str]) -> Iterator[Row]:
    """Check the device as a controller with these settings would do when it starts."""
    try:
        settings = settings_loader.load(environ)
    except TensileError as error:
        source = environ.get(config.CONFIG_VARIABLE, "the environment")
        yield _check("settings", False, error.message, error.hint or f"correct {source}")
        return
    for fault in settings_loader.unknown_variables(environ):
        yield _check("settings", False, fault, "correct or unset the variable")
    if settings.service_address:
        yield _service_certificate(settings)
    try:
        names = device_names(settings, probed_gpus, chosen_device)
    except TensileError as error:
        yield _check("devices", False, error.message, error.hint)
        return
    if len(names) > 1:
        yield _check("devices", True, f"{', '.join(names)}, each with a controller of its own", "")
    for name in names:
        yield from _one_device(replace(settings, device=name, devices=len(names)), environ)


def _service_certificate(settings: config.Settings) -> Row:
    """Check the files with which the service answers other hosts."""
    directory, name = Path(settings.service_tls_directory), settings.service_host_name
    name = name or config.split_address(settings.service_address)[0]
    try:
        server_context(directory)
        valid = validity(directory, name)
    except TensileError as error:
        return _check("service's certificate", False, error.message, error.hint)
    fault = valid.fault(datetime.now(UTC))
    finding = f"{directory / 'tls.crt'}, for {name}, "
    finding += fault or f"is valid until {valid.end:%Y-%m-%d %H:%M} UTC"
    return _check("service's certificate", not fault, finding, "make a new certificate and replace the file")


def _one_device(settings: config.Settings, environ: Mapping[str, str]) -> Iterator[Row]:
    try:
        chosen = chosen_device(settings.device)
        refuse_network(settings, chosen)
        if isinstance(chosen, Gpu):
            fit_to_gpu(settings, chosen, settings_loader.configured_names(environ))
        if isinstance(chosen, Cpu):
            settings = share_of_machine(settings, settings_loader.configured_names(environ))
    except TensileError as error:
        yield _check("device", False, error.message, error.hint)
        return
    yield _rows(settings)
    match chosen:
        case Cpu():
            yield from _processor(chosen, settings)
        case Emulated():
            yield _check("device", True, f"an emulated GPU, not this machine's own speed: {chosen.reason}", "")
            yield _emulated_memory(settings)
        case Gpu():  # no check of this machine's memory: a GPU has its own
            yield _check("device", True, f"{chosen.name}, as cuda:{chosen.ordinal}", "")


def _processor(chosen: Cpu, settings: config.Settings) -> Iterator[Row]:
    """Check the processor as a device: its memory, and the disk that tensors are swapped out to."""
    threads = f"{settings.torch_threads} thread{'s' * (settings.torch_threads != 1)}"
    yield _check("device", True, f"this machine's {processor()}, {threads} a job: {chosen.reason}", "")
    most = memory()
    yield _check(
        "device memory",
        settings.budget_bytes < most.size_bytes,
        f"{settings.budget_bytes // config.MIB} MB of the {most.size_bytes // config.MIB} MB of {most.whose}; "
        "the rest is for the database and the trainers",
        "lower the budget: tensile up --budget SIZE",
    )
    directory, free_bytes = settings.swap_directory, disk_free_bytes(settings.swap_directory)
    pool_bytes = settings.host_pool_bytes
    free, pool = free_bytes // config.MIB, pool_bytes // config.MIB
    finding = f"{free} MB free on the disk of {directory}, of which up to {pool} MB are used"
    if is_in_memory(directory):
        yield _check("swap directory", False, f"{directory} is in memory: swapping there saves no memory", _SWAP_MEND)
    else:
        yield _check("swap directory", free_bytes >= pool_bytes, finding, f"free some space, or {_SWAP_MEND}")


def _rows(settings: config.Settings) -> Row:
    """Check the disk for the rows of tables that exceed a trainer's memory for rows."""
    limit, directory = read_limit_bytes(settings) // config.MIB, rows_directory(settings)
    finding = f"up to {limit} MB of memory a trainer; larger tables go to a file in {directory}"
    mend = f"name a directory on a disk with {config.variable('rows_directory')}"
    if is_in_memory(directory):
        return _check("rows of tables", False, f"{finding}, which is in memory and saves none", mend)
    free_bytes = disk_free_bytes(directory)
    finding += f", whose disk has {free_bytes // config.MIB} MB free"
    return _check("rows of tables", free_bytes >= config.GIB, finding, f"free some space, or {mend}")


_SWAP_MEND = f"name a directory on a disk with {config.variable('swap_directory')}"


def _emulated_memory(settings: config.Settings) -> Row:
    fault = directory_fault(settings)
    if fault is not None:
        finding = f"it cannot be made in memory_directory {settings.memory_directory}: {fault}"
        mend = "name a directory in memory that you may write to, such as /dev/shm, or leave it empty"
        return _check("device memory", False, finding, mend)
    fault = address_fault(settings)
    if fault is not None:
        return _check("device memory", False, fault, "ulimit -v unlimited, or lower these settings")
    budget = max(1, settings.devices) * settings.budget_bytes // config.MIB
    room = room_bytes(settings) // config.MIB
    of_all = f" of all {settings.devices} devices" if settings.devices > 1 else ""
    source = f"free in {settings.memory_directory}" if settings.memory_directory else "in this machine"
    mend = f"mount -o remount,size={budget}M {settings.memory_directory}" if settings.memory_directory else ""
    return _check(
        "device memory",
        room >= budget,
        f"{room} MB {source}, of which the budget{of_all} is {budget} MB",
        f"{mend}; or lower the budget: tensile up --budget SIZE".removeprefix("; or "),
    )


def _database(dsn: str | None) -> Iterator[Row]:
    try:
        with open_connection(dsn, role="postgres") as connection:
            info = connection.info
            server = f"PostgreSQL {info.server_version // 10000} at {info.host or info.hostaddr}"
            yield _check("database", True, f'"{info.dbname}" on {server}, as "{info.user}"', "")
            yield from _catalog(connection, dsn)
    except TensileError as error:
        yield _check("database", False, error.message, error.hint)
    except psycopg.Error as error:
        yield _check("database", False, error.diag.message_primary or str(error), error.diag.message_hint or "")


def _catalog(connection: Connection, dsn: str | None) -> Iterator[Row]:
    try:
        install.check_version(connection)
    except TensileError as error:
        yield _check("catalog", False, error.message, error.hint)
        return
    same = install.same_source(connection)
    finding = f"version {install.VERSION}" + ("" if same else " from another source than this package's")
    mend = "continue with it; or, which deletes all models: tensile down --purge, then tensile up"
    yield _check("catalog", same, finding, mend)
    with connection.cursor(row_factory=dict_row) as cursor:
        with pinned(connection):
            rows = [*_roles(cursor), *_workers(cursor), *_links(cursor), *_contention(cursor)]
        yield from rows
        yield _reader(dsn)
        for row in cursor.execute(statement("check")).fetchall():
            if row["item"] != "catalog":
                yield _check(row["item"], row["ok"], row["detail"] or "", row["hint"] or "")


def _roles(cursor: psycopg.Cursor[Row]) -> Iterator[Row]:
    row = cursor.execute(statement("roles")).fetchone()
    assert row is not None
    missing = ", ".join(row["missing"])
    yield _check("roles", not missing, f"missing: {missing}" if missing else "all six", f"create role {missing};")
    may = "may" if row["is_user"] else "may not"
    yield _check("you", row["is_user"], f"{row['me']} {may} use the functions", f"grant tensile_user to {row['me']};")
    row = cursor.execute(statement("readable_tables")).fetchone()
    assert row is not None
    # Users choose the tables to train on, so it is a fault only if no table can be read.
    passed = row["readable"] > 0 or row["tables"] == 0
    finding = f"tensile_reader may read {row['readable']} of the {row['tables']} tables that you may read"
    yield _check("grants", passed, finding, row["mend"] or "")
    if not missing:
        commands = [str(each["mend"]) for each in cursor.execute(statement("earlier_grants")).fetchall()]
        finding = "some are of version 0.1.0, to tensile_worker" if commands else "none is of version 0.1.0"
        yield _check("earlier grants", not commands, finding, " ".join(commands))


def _reader(dsn: str | None) -> Row:
    """Check whether trainers on this machine, run by this system user, could log in to read tables."""
    try:
        dsn_of_reader = settings_loader.load(os.environ).reader_dsn or as_reader(resolve(dsn, role=READER))
        with open_reader(dsn_of_reader, application_name="tensile doctor") as connection:
            finding = f"{connection.info.user} can log in from here"
    except TensileError as error:
        return _check("reader", False, error.message, error.hint)
    return _check("reader", True, finding, "")


def _workers(cursor: psycopg.Cursor[Row]) -> Iterator[Row]:
    for row in cursor.execute(statement("workers")).fetchall():
        name = "" if row["device_name"] in (None, "cpu", "emulated") else f"{row['device_name']}, "
        process = f"process {row['pid']} on {row['host']}, {name}{row['device']}"
        same = row["version"] == install.VERSION
        finding = process if same else f"{process}: version {row['version']}, not {install.VERSION}"
        yield _check(f"controller {row['worker_id']}", same, finding, "start it again from this version")


def _links(cursor: psycopg.Cursor[Row]) -> Iterator[Row]:
    """Check the links that controllers measured when they started."""
    links = cursor.execute(statement("links")).fetchall()
    for (host, device), rows in groupby(links, key=lambda row: (row["host"], row["device"])):
        yield _link(f"link of {device} on {host}", list(rows))


def _contention(cursor: psycopg.Cursor[Row]) -> Iterator[Row]:
    """Say what jobs side by side share on each kind of device, and how much they slow each other down."""
    measured = cursor.execute(statement("contention")).fetchall()
    for device, rows in groupby(measured, key=lambda row: row["device"]):
        factors = ", ".join(map(_slowdown, rows))
        yield _check(f"sharing of {device}", True, f"{_sharing_of(device)}; beside each other, {factors}", "")
    served = {row["device"] for row in cursor.execute(statement("workers")).fetchall()}
    for device in sorted(served - {row["device"] for row in measured}):
        estimated = (
            f"{_sharing_of(device)}; how much they slow each other down is estimated. On a processor it is measured "
            "once while no job runs and other programs keep at most survey_busy_cores busy, on a GPU when a "
            "controller starts, and never with survey_s = 0"
        )
        yield _check(f"sharing of {device}", True, estimated, "")


def _sharing_of(device: str) -> str:
    shared = "the GPU" if device.startswith("cuda") else "this machine's processor cores"
    return f"jobs share {shared}"


def _slowdown(row: Row) -> str:
    """Say how much longer so many jobs take, and jobs with short steps if these were measured."""
    short = "" if row["short_factor"] is None else f" (short steps {row['short_factor']:.2f} times)"
    return f"{row['jobs']} jobs take {row['factor']:.2f} times as long as alone{short}"


def _link(name: str, rows: list[Row]) -> Row:
    measured = link_of(
        CopyMeasurement(
            way=CopyDirection(row["way"]),
            beside=row["beside"],
            size_bytes=row["size_bytes"],
            latency_ns=row["latency_ns"],
            copy_ns=row["copy_ns"],
        )
        for row in rows
    )
    rates = {CopyDirection.OUT: measured.out_bytes_per_s, CopyDirection.IN: measured.in_bytes_per_s}
    rates_text = ", ".join(f"{rate / 1e6:.1f} MB/s {way}" for way, rate in rates.items())
    finding = (
        f"{rates_text}, {measured.duplex:.0%} of that with copies both ways at once, measured {rows[0]['measured']}"
    )
    share = min(
        [
            1.0,
            *(rates[CopyDirection(r["way"])] / r["emulated_bytes_per_s"] for r in rows if r["emulated_bytes_per_s"]),
        ]
    )
    if share < BORNE_OUT:
        finding += f": {share:.0%} of what it is set to"
    mend = "start the controller again while this machine has less to do: it measures its link then"
    return _check(name, share >= BORNE_OUT, finding, mend)
