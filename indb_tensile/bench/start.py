"""How long a trainer takes from asked for to ready, forked from one that has imported everything and started anew.

    python -m indb_tensile.bench.start [--rounds 5] [--json]

In turns, one at a time. A row for each way: the median time until it says that it is ready, the processor's time it
took until then, and the memory that is its own alone and that it has its part of (private and proportional bytes).
The server itself is paid once, with the controller's start: its own time and memory are a row as well.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.rows import stamped
from indb_tensile.config import MIB, Inheritance
from indb_tensile.controller.forkserver import ForkServer
from indb_tensile.link import Link, Ready

_MODULE = "indb_tensile.worker.trainer"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
Start = Callable[[Inheritance], object]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each way, and the ratio."""
    given = _parser().parse_args(arguments)
    rows = measure(given.rounds)
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
            "forked": lambda inherited: server.ask(_MODULE, descriptors=inherited.descriptors),
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
    subprocess.Popen(
        (sys.executable, "-c", f"import sys; from {_MODULE} import main; sys.exit(main())"),
        env=os.environ | inherited.environment(),
        pass_fds=tuple(inherited.descriptors.values()),
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
        f"{row['start']:<7} ready after {row['ready_ms']:6.0f} ms, {row['processor_ms']:6.0f} ms of a processor; "
        f"{row['private_bytes'] / MIB:6.1f} MB of its own, {row['proportional_bytes'] / MIB:6.1f} MB with its part "
        "of what is shared"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
