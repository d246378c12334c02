"""The support bundle of a job: everything that is needed to understand a failure, in one file, without data rows.

It has no rows and no weights. The text of a query, expressions of features and class names are left out, because they
can quote values. Messages of errors stay, as a failure cannot be understood without them; they can quote a value.
"""

import io
import json
import platform
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from indb_tensile.catalog.connection import Connection
from indb_tensile.monitor import live_figures
from indb_tensile.monitor.live_figures import Row

_LIBRARIES = ("indb-tensile", "torch", "numpy", "psycopg", "scikit-learn", "optuna", "SQLAlchemy")
_LEFT_OUT = "(left out of this file: it can quote values of the data)"
# Parts of a request that contain expressions, texts of queries, or names of classes.
_QUOTING = frozenset({"query", "transform", "classes", "class_weight", "labels", "categories"})
_README = """Support bundle of job {number} of indb-tensile, made by `tensile report`.

job.json         request (without expressions, queries and class names), state, error, epochs, plans, events
memory.json      device memory of the job over its life: planned and used
devices.json     devices, jobs of the same role on them, who runs beside whom, the queue
versions.json    versions of the package, its libraries, Python, PostgreSQL and the operating system
settings.json    settings of the database
doctor.json      what `tensile doctor` finds
log.txt          lines of the controller's log that name the job, if the log is on this machine

It has no rows of a table and no weights. Messages of errors can quote a value: read job.json before you pass this on.
"""


def read_bundle(connection: Connection, number: int) -> dict[str, Any]:
    """Read what the catalog says of a job, by file. Raises MissingError if the role sees no such job."""
    job = live_figures.job(connection, number)
    request = live_figures.rows(connection, "request", job=number)
    return {
        "job.json": job | {"request": without_quotes(request[0]["spec"]) if request else None},
        "memory.json": live_figures.job_memory(connection, number),
        "devices.json": live_figures.overview(connection) | {"workers": live_figures.rows(connection, "workers")},
        "settings.json": live_figures.rows(connection, "settings"),
        "versions.json": versions(live_figures.rows(connection, "server_versions")[0]),
    }


def pack(number: int, files: Mapping[str, Any], checks: Iterable[Row], log: Iterable[str]) -> bytes:
    """Return the bundle as a ZIP file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", _README.format(number=number))
        for name, content in (*files.items(), ("doctor.json", list(checks))):
            archive.writestr(name, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")
        archive.writestr("log.txt", "".join(f"{line}\n" for line in log))
    return packed.getvalue()


def without_quotes(value: Any) -> Any:
    """Return a request in which everything that can quote values of the data is replaced by a remark."""
    if isinstance(value, Mapping):
        return {
            name: _LEFT_OUT if name in _QUOTING and part is not None else without_quotes(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [without_quotes(part) for part in value]
    return value


def versions(server: Row, version_of: Callable[[str], str] = metadata.version) -> Row:
    """Return the versions of everything that a failure can depend on; null for what is not installed."""
    versions: Row = {}
    for library in _LIBRARIES:
        try:
            versions[library] = version_of(library)
        except metadata.PackageNotFoundError:
            versions[library] = None
    return {
        **server,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        **versions,
    }
