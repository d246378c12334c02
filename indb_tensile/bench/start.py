"""How long a trainer and the service take from asked for to ready, forked from one that has imported it all or anew.

    tensile bench start [--dsn "host=… user=postgres"] [--rounds 5] [--json]

In turns, one at a time. A row for each way: the median time until it says that it is ready, the processor's time it
took until then, and the memory that is its own alone and that it has its part of (private and proportional bytes).
The server itself is paid once, with the controller's start: its own time and memory are a row as well. The service is
ready when it answers. `service first` is that of a controller's start: it waits for all that the server imports. It
has a database made for it, on a server of its own unless one is named; `python -m indb_tensile.bench.start` has
services only where one is.
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
from indb_tensile.bench.database import fresh
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.rows import stamped
from indb_tensile.config import MIB, Inheritance
from indb_tensile.controller.forkserver import ForkServer
from indb_tensile.errors import UnavailableError
from indb_tensile.link import Link, Ready

_TRAINER, _SERVICE = "indb_tensile.worker.trainer", "indb_tensile.worker.service"
_POLL_S = 0.001
_PATIENCE_S = 60.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
Start = Callable[[Inheritance], object]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each way, and the ratio."""
    given = _parser().parse_args(arguments)
    rows = measure(given.rounds)
    if given.dsn is not None:
        with fresh(given.dsn, "start") as dsn, TemporaryDirectory() as directory:
            rows += measure_services(given.rounds, dsn, Path(directory))
    for row in rows:
        print(stamped(row) if given.json else _line(row), flush=True)
    forked, anew = rows[0], rows[1]
    told = f"forked: {anew['ready_ms'] / forked['ready_ms']:.0f} times as fast as started anew"
    print(told, file=sys.stderr if given.json else sys.stdout)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Rows of those forked, those started anew, and the server."""
    seen: dict[str, list[dict[str, float]]] = {"forked": [], "anew": []}
    with Path(os.devnull).open() as device:
        server = ForkServer(os.environ)
        ways: dict[str, Start] = {
            "forked": lambda inherited: server.ask(_TRAINER, descriptors=inherited.descriptors),
            "anew": _start_anew,
        }
        started_s = time.perf_counter()
        _one(ways["forked"], device.fileno())  # waits for the server
        import_ms = (time.perf_counter() - started_s) * 1e3
        for _ in range(rounds):
            for way, start in ways.items():
                seen[way].append(_one(start, device.fileno()))
        assert server.pid is not None
        told = {"ready_ms": import_ms} | _weight(server.pid)
        server.close()
    return [_row(way, found) for way, found in seen.items()] + [_row("server", [told])]


def measure_services(rounds: int, dsn: str, directory: Path) -> list[dict[str, Any]]:
    """Rows of services: forked, started anew, and the first one of a server that has yet to import everything."""
    environment = {
        config.variable("dsn"): dsn,
        config.variable("service_directory"): str(directory),
        config.variable("link_out_bytes_per_s"): str(config.GIB),  # known to whatever a controller starts
        config.variable("link_in_bytes_per_s"): str(config.GIB),
        config.variable("log_level"): "warning",
        "TENSILE_WORKER_ID": "1",
        "TENSILE_SERVICE_PEER_UID": str(os.getuid()),
    }
    seen: dict[str, list[dict[str, float]]] = {"service forked": [], "service anew": [], "service first": []}
    for _ in range(rounds):
        with closing(ForkServer(os.environ, (_SERVICE, _TRAINER))) as server:
            for way in ("service first", "service forked"):
                seen[way].append(_answering(lambda: _fork(server, environment), directory))
        seen["service anew"].append(_answering(lambda: _start(_SERVICE, environment).pid, directory))
    return [_row(way, found) for way, found in seen.items()]


def _answering(start: Callable[[], int], directory: Path) -> dict[str, float]:
    """Start a service, weigh it when it answers, and have it end."""
    started_s = time.perf_counter()
    pid = start()
    while not _answers(directory):
        if time.perf_counter() > started_s + _PATIENCE_S:
            raise UnavailableError(
                f"the service did not answer in {directory} within {_PATIENCE_S:g} s",
                hint="A forked one says why on the standard error.",
            )
        time.sleep(_POLL_S)
    told = {"ready_ms": (time.perf_counter() - started_s) * 1e3} | _weight(pid)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return told


def _answers(directory: Path) -> bool:
    """Whether the first worker's service greets there; the installation's id is before the worker's in its name."""
    for path in directory.glob("*-1.sock"):
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(str(path))
                return bool(asking.recv(4))
            except (FileNotFoundError, ConnectionError):
                return False
    return False


def _fork(server: ForkServer, environment: Mapping[str, str]) -> int:
    copy = server.ask(_SERVICE, environment=environment, descriptors={})
    while copy.pid is None:
        select.select([server.fileno()], [], [])
        server.receive()
        if copy.failed:
            raise UnavailableError("the service could not be forked", hint="Why is on the standard error.")
    return copy.pid


def _one(start: Start, device_fd: int) -> dict[str, float]:
    """Start a trainer, weigh it when it is ready, and have it end by itself."""
    ours, theirs = socket.socketpair()
    started_s = time.perf_counter()
    start(Inheritance(link_fd=theirs.fileno(), device_fd=device_fd))
    theirs.close()
    link = Link(ours)
    ready = link.receive()
    told = {"ready_ms": (time.perf_counter() - started_s) * 1e3}
    assert isinstance(ready, Ready)
    told |= _weight(ready.pid)
    ours.close()  # the trainer ends: nobody is there to assign it a job
    os.waitpid(ready.pid, 0)
    return told


def _start_anew(inherited: Inheritance) -> None:
    _start(_TRAINER, inherited.environment(), tuple(inherited.descriptors.values()))


def _start(module: str, environment: Mapping[str, str], descriptors: Sequence[int] = ()) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"),
        env={**os.environ, **environment},
        pass_fds=descriptors,
        stderr=subprocess.DEVNULL,
    )


def _weight(pid: int) -> dict[str, float]:
    """Its processor's time and its memory."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}
    return {
        "processor_ms": (int(user) + int(system)) * _TICK_S * 1e3,
        "private_bytes": sizes["Private_Clean:"] + sizes["Private_Dirty:"],
        "proportional_bytes": sizes["Pss:"],
    }


def _row(way: str, found: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {"start": way, "rounds": len(found)} | {
        name: round(median(one[name] for one in found)) for name in found[0]
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['start']:<14} ready after {row['ready_ms']:6.0f} ms, {row['processor_ms']:6.0f} ms of a processor; "
        f"{row['private_bytes'] / MIB:6.1f} MB of its own, {row['proportional_bytes'] / MIB:6.1f} MB with its part "
        "of what is shared"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", help="of a superuser, to any database of a server: services as well")
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
