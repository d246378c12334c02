"""Measures the time until a trainer or the service is ready, forked from a process with all imports or started anew.

    tensile bench start [--dsn "host=… user=postgres"] [--rounds 5] [--json]

The processes start in turns, one at a time. Each way to start has a row: the median time until the process reports
that it is ready, its processor time until then, and its private and proportional memory. The fork server itself
starts once, with the controller, and has a row of its own. The service is ready when it answers. `service first`
is the service of a controller that has just started: it waits for the imports of the fork server. A service needs a
database: the benchmark creates one, on a server of its own unless `--dsn` names one. `python -m
indb_tensile.bench.commands.start` measures services only with `--dsn`.
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from indb_tensile import config
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.config import MIB, InheritedDescriptors
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.device.processor_times import process_s
from indb_tensile.errors import UnavailableError
from indb_tensile.messages import Ready, TrainerLink

_TRAINER, _SERVICE = "indb_tensile.worker.trainer", "indb_tensile.worker.service"
_POLL_S = 0.001
_TIMEOUT_S = 60.0
Start = Callable[[InheritedDescriptors], object]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each way to start, and the ratio."""
    options = _parser().parse_args(arguments)
    rows = measure(options.rounds)
    if options.dsn is not None:
        with temporary_database(options.dsn, "start") as dsn, TemporaryDirectory() as directory:
            rows += measure_services(options.rounds, dsn, Path(directory))
    for row in rows:
        print(stamped(row) if options.json else _line(row), flush=True)
    forked, anew = rows[0], rows[1]
    ratio = f"forked: {anew['ready_ms'] / forked['ready_ms']:.0f} times as fast as started anew"
    print(ratio, file=sys.stderr if options.json else sys.stdout)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return rows of forked trainers, of trainers started anew, and of the fork server."""
    seen: dict[str, list[dict[str, float]]] = {"forked": [], "anew": []}
    with Path(os.devnull).open() as device:
        server = ForkServer(os.environ)
        ways: dict[str, Start] = {
            "forked": lambda inherited: server.ask(_TRAINER, descriptors=inherited.descriptors),
            "anew": _start_anew,
        }
        started_s = time.perf_counter()
        _measure_trainer(ways["forked"], device.fileno())  # waits until the server is ready
        import_ms = (time.perf_counter() - started_s) * 1e3
        for _ in range(rounds):
            for way, start in ways.items():
                seen[way].append(_measure_trainer(start, device.fileno()))
        assert server.pid is not None
        figures = {"ready_ms": import_ms} | _usage(server.pid)
        server.close()
    return [_row(way, samples) for way, samples in seen.items()] + [_row("server", [figures])]


def measure_services(rounds: int, dsn: str, directory: Path) -> list[dict[str, Any]]:
    """Return rows of services: forked, started anew, and the first fork of a server that has not imported yet."""
    environment = {
        config.variable("dsn"): dsn,
        config.variable("service_directory"): str(directory),
        config.variable("link_out_bytes_per_s"): str(config.GIB),  # a controller passes its link's rates on
        config.variable("link_in_bytes_per_s"): str(config.GIB),
        config.variable("log_level"): "warning",
        "TENSILE_WORKER_ID": "1",
        "TENSILE_SERVICE_PEER_UID": str(os.getuid()),
    }
    seen: dict[str, list[dict[str, float]]] = {"service forked": [], "service anew": [], "service first": []}
    for _ in range(rounds):
        with closing(ForkServer(os.environ, (_SERVICE, _TRAINER))) as server:
            for way in ("service first", "service forked"):
                seen[way].append(_measure_service(lambda: _fork(server, environment), directory))
        seen["service anew"].append(_measure_service(lambda: _start(_SERVICE, environment).pid, directory))
    return [_row(way, samples) for way, samples in seen.items()]


def _measure_service(start: Callable[[], int], directory: Path) -> dict[str, float]:
    """Start a service, measure it when it answers, and end it."""
    started_s = time.perf_counter()
    pid = start()
    while not _answers(directory):
        if time.perf_counter() > started_s + _TIMEOUT_S:
            raise UnavailableError(
                f"the service did not answer in {directory} within {_TIMEOUT_S:g} s",
                hint="A forked service writes the reason to the standard error output.",
            )
        time.sleep(_POLL_S)
    figures = {"ready_ms": (time.perf_counter() - started_s) * 1e3} | _usage(pid)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return figures


def _answers(directory: Path) -> bool:
    """Return whether the first worker's service sends its greeting. Its socket's name ends with the worker's id."""
    for path in directory.glob("*-1.sock"):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
                return bool(client.recv(4))
            except (FileNotFoundError, ConnectionError):
                return False
    return False


def _fork(server: ForkServer, environment: Mapping[str, str]) -> int:
    copy = server.ask(_SERVICE, environment=environment, descriptors={})
    while copy.pid is None:
        select.select([server.fileno()], [], [])
        server.receive()
        if copy.failed:
            raise UnavailableError(
                "the service could not be forked", hint="The reason is on the standard error output."
            )
    return copy.pid


def _measure_trainer(start: Start, device_fd: int) -> dict[str, float]:
    """Start a trainer, measure it when it is ready, and let it end by itself."""
    ours, theirs = socket.socketpair()
    started_s = time.perf_counter()
    start(InheritedDescriptors(link_fd=theirs.fileno(), device_fd=device_fd))
    theirs.close()
    link = TrainerLink(ours)
    ready = link.receive()
    figures = {"ready_ms": (time.perf_counter() - started_s) * 1e3}
    assert isinstance(ready, Ready)
    figures |= _usage(ready.pid)
    ours.close()  # the trainer ends, since its controller is gone
    os.waitpid(ready.pid, 0)
    return figures


def _start_anew(inherited: InheritedDescriptors) -> None:
    _start(_TRAINER, inherited.environment(), tuple(inherited.descriptors.values()))


def _start(module: str, environment: Mapping[str, str], descriptors: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"),
        env={**os.environ, **environment},
        pass_fds=descriptors,
        stderr=subprocess.DEVNULL,
    )


def _usage(pid: int) -> dict[str, float]:
    """Return the processor time and the memory of a process."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}
    return {
        "processor_ms": (process_s(pid) or 0.0) * 1e3,
        "private_bytes": sizes["Private_Clean:"] + sizes["Private_Dirty:"],
        "proportional_bytes": sizes["Pss:"],
    }


def _row(way: str, samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {"start": way, "rounds": len(samples)} | {
        name: round(median(figures[name] for figures in samples)) for name in samples[0]
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['start']:<14} ready after {row['ready_ms']:6.0f} ms, {row['processor_ms']:6.0f} ms of processor time; "
        f"{row['private_bytes'] / MIB:6.1f} MB private, {row['proportional_bytes'] / MIB:6.1f} MB proportional"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", help="a superuser's connection to any database of a server; also measures services")
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
