"""Starts a controller on a benchmark's own database, and waits for what it does."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo

from indb_tensile import config
from indb_tensile.bench.harness.processes.controller_process import start_controller
from indb_tensile.bench.harness.processes.process_table import all_processes
from indb_tensile.errors import UnavailableError

TIMEOUT_S = 3600.0
POLL_S = 0.01
_LINK_BYTES_PER_S = 10**12  # fast enough not to matter


@contextmanager
def bench_controller(dsn: str, benchmark: str, **changed: object) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a controller of a superuser's database, with a ready trainer. `changed` are settings.

    If the controller ends before, the error contains its log.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"tensile-{benchmark}-"))
    directory.chmod(0o755)
    (directory / "service").mkdir()
    settings: dict[str, object] = {
        "dsn": make_conninfo(dsn, user="tensile_worker"),
        "device": "emulated",
        "link_out_bytes_per_s": _LINK_BYTES_PER_S,
        "link_in_bytes_per_s": _LINK_BYTES_PER_S,
        "spare_trainers": 1,
        "survey_s": 0.0,
        "service_directory": directory / "service",
        "state_dir": directory,
        **changed,
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(config.PREFIX)}
    environment |= {config.variable(key): str(value) for key, value in settings.items()}
    log = directory / "controller.log"
    with log.open("wb") as output:
        process = start_controller(environment, output)
    try:
        wait_for(lambda: trainers_of(process.pid) or _raise_if_ended(process, log), "a trainer to be ready")
        yield process
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)


def _raise_if_ended(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    if process.poll() is not None:
        raise UnavailableError(f"the controller ended: {log.read_text(errors='replace')[-2000:]}")
    return False


def trainers_of(controller: int) -> list[int]:
    """Return the processes that train, or wait to train, for this controller."""
    return [
        process.pid
        for process in all_processes()
        if process.parent == controller and process.name == "tensile trainer"
    ]


def wait_for(condition: Callable[[], Any], awaited: str) -> None:
    """Wait until the condition is true. Raises UnavailableError after TIMEOUT_S."""
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end_s:
            raise UnavailableError(f"timed out after {TIMEOUT_S:g} s waiting for {awaited}", hint="Use fewer rows.")
        time.sleep(POLL_S)
