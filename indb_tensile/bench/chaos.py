"""Jobs of several owners in a storm: processes killed and stopped, full disks, lost connections, clocks, locks.

    tensile bench chaos [--seed 0] [--events 100] [--minutes M] [--lease 15] [--controllers 2] [--json]

It makes a private server, on a small disk of its own, a database with the catalog, controllers that reach it through
forwarders, and owners with tables. Each distinct training runs once undisturbed: that is what its weights have to be.
Then owners keep asking for these trainings, a client keeps asking for predictions, and one event comes after another.
In the end all is mended, and every job has to have ended once: with the same weights bit by bit, cancelled by its
owner, or failed for what its owner did. Nothing may be left behind. `--events 500 --lease 6` and `--events 100` are
run nightly. A line of JSON for each event goes to the standard error output, or to the file that `--log` names.

The same seed draws the same events. Kinds that a machine cannot have, such as full disks without the right to mount
one, are left out, and the report says why.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

import psycopg

from indb_tensile import config
from indb_tensile.bench.chaos_client import Client
from indb_tensile.bench.chaos_events import Event, Kind, draw, parse_kinds
from indb_tensile.bench.chaos_faults import Faults
from indb_tensile.bench.chaos_jobs import OWNERS, TRAININGS, Jobs
from indb_tensile.bench.chaos_rig import Design, Rig, set_up, until
from indb_tensile.bench.chaos_users import Users
from indb_tensile.bench.chaos_verdict import is_clean, judge
from indb_tensile.bench.chaos_watch import MemoryWatch, descriptors, device_bytes, shared_memory_files
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.errors import DatabaseError, TensileError, UnavailableError

Found = TypeVar("Found")
READY_S = 120.0
RECOVERY_S = 180.0  # after one event: a guard, not a promise
_HISTORIES = 5  # of jobs at fault, that a report has
LEFT_S = 20.0  # how long what ends may take to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a storm consists of."""

    seed: int
    events: int
    limit_s: float | None  # of the events together
    lease_s: float
    controllers: int
    unended: int  # jobs that are kept waiting or running
    patience_s: float  # how long the last jobs may take to end
    kinds: Sequence[Kind]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one object; the exit code says whether anything went wrong."""
    given = _parser().parse_args(arguments)
    plan = Plan(
        seed=given.seed,
        events=given.events,
        limit_s=None if given.minutes is None else 60.0 * given.minutes,
        lease_s=given.lease,
        controllers=given.controllers,
        unended=given.jobs,
        patience_s=given.patience,
        kinds=parse_kinds(given.kinds),
    )
    with ExitStack() as stack:
        log = stack.enter_context(given.log.open("a", buffering=1)) if given.log else sys.stderr
        report = storm(plan, log)
    print(json.dumps(report) if given.json else "\n".join(f"{name:>28} {value}" for name, value in report.items()))
    sys.exit(0 if is_clean(report) else 1)


def storm(plan: Plan, log: TextIO) -> dict[str, Any]:
    """Set everything up, disturb it, let it recover, and say what became of it."""
    started_s = time.monotonic()
    files_before = shared_memory_files()
    design = Design(owners=OWNERS, controllers=plan.controllers, lease_s=plan.lease_s, kinds=plan.kinds)
    with set_up(design) as rig, closing(Jobs(rig=rig)) as jobs:
        storming = _Storm(plan, rig, jobs, log)
        report = storming.run()
    report["shared_memory_files_left"] = len(shared_memory_files() - files_before)
    return report | {"seconds": round(time.monotonic() - started_s, 1)}


class _Storm:
    """One storm on a rig."""

    def __init__(self, plan: Plan, rig: Rig, jobs: Jobs, log: TextIO) -> None:
        self._plan, self._rig, self._jobs, self._log = plan, rig, jobs, log
        self._users = Users(rig, jobs)
        self._deeds = {**Faults(rig, jobs).deeds(), **self._users.deeds()}
        self._events: Counter[str] = Counter()
        self._recovery_s = 0.0
        self._slowest = ""
        self._not_recovered = 0
        self._asked = 0
        self._began_s = time.monotonic()

    def run(self) -> dict[str, Any]:
        """From the undisturbed runs to the report."""
        self._start()
        self._jobs.prepare()
        before = descriptors(self._rig)
        memory = MemoryWatch(self._rig)
        client = Client(self._rig, TRAININGS, self._jobs.references)
        client.start()
        try:
            self._blow()
            ended = self._calm_down()
        finally:
            client.stop()
        left = self._leftovers(before)
        memory.stop()
        verdict = judge(self._jobs.endings(), self._jobs.digests)
        return (
            self._told(ended)
            | verdict
            | {
                "histories": {job: self._jobs.history(job) for job in verdict["jobs_at_fault"][:_HISTORIES]},
                "invalid_jobs_left": self._jobs.run("invalid_jobs_left")[0][0],
                "predictions": client.answers,
                "wrong_predictions": len(client.wrong),
                "prediction_faults": len(client.faults),
                "prediction_errors": dict(client.errors),
                "longest_prediction_s": round(client.longest_s, 2),
                "faults_told": [*client.wrong, *client.faults][:5],
            }
            | left
            | {"peak_rss_mb": {name: round(size / config.MIB) for name, size in memory.peak_bytes.items()}}
        )

    def _start(self) -> None:
        """Start the controllers, and wait until all are ready."""
        for controller in self._rig.controllers:
            controller.start()
        if not until(lambda: self._ready({}), READY_S):
            logs = [controller.log.read_text(errors="replace")[-1500:] for controller in self._rig.controllers]
            raise UnavailableError(
                f"the controllers were not ready within {READY_S:g} s, and nothing disturbs them yet",
                detail="\n".join(logs),
                hint="Run the benchmark while this machine has less to do.",
            )

    def _blow(self) -> None:
        """One event after another, and always jobs that have yet to end."""
        kinds = [kind for kind in self._plan.kinds if kind not in self._rig.left_out]
        events = islice(draw(self._plan.seed, kinds, self._plan.lease_s), self._plan.events)
        end_s = None if self._plan.limit_s is None else time.monotonic() + self._plan.limit_s
        for event in events:
            self._feed()
            time.sleep(event.pause_s)
            self._disturb(event)
            if end_s is not None and time.monotonic() > end_s:
                break

    def _feed(self) -> None:
        """Have as many jobs unended as planned, where the server takes them now."""
        with suppress(psycopg.Error, DatabaseError):
            for _ in range(self._plan.unended - len(self._jobs.unended())):
                self._asked += 1
                self._jobs.enqueue(TRAININGS[self._asked % len(TRAININGS)])

    def _disturb(self, event: Event) -> None:
        """Let an event happen, and unless the next one shall come at once, wait until it is recovered from."""
        began_s = time.monotonic()
        try:
            told: Mapping[str, Any] = self._deeds[event.kind](event)
        except (psycopg.Error, DatabaseError) as error:
            told = {"interrupted": str(error).splitlines()[0]}  # by what an event before has left
        over_s = time.monotonic()
        self._events[event.kind.value] += 1
        self._rig.mend()
        line: dict[str, Any] = {
            "event": event.number,
            "kind": event.kind,
            "began_s": round(began_s - self._began_s, 2),
        }
        line |= {"hold_s": event.hold_s, "took_s": round(over_s - began_s, 2)}
        if not event.at_once:
            line["recovery_s"] = self._recover(event, over_s)
        print(json.dumps(line | dict(told)), file=self._log, flush=True)

    def _recover(self, event: Event, since_s: float) -> float | None:
        """Seconds until server, controllers and services were back; None where they were not in time."""
        beats = _safely(self._beats, dict[int, str]())
        if not until(lambda: self._mended(beats), RECOVERY_S):
            self._not_recovered += 1
            return None
        recovery_s = round(time.monotonic() - since_s, 2)
        if recovery_s > self._recovery_s:
            self._recovery_s, self._slowest = recovery_s, event.kind.value
        return recovery_s

    def _mended(self, beats: Mapping[int, str]) -> bool:
        self._rig.mend()
        return _safely(lambda: self._ready(beats), False)

    def _beats(self) -> dict[int, str]:
        """The last beat of each live worker, by its process."""
        return {pid: beat for pid, beat, _ in self._jobs.look("controllers")}

    def _ready(self, beats: Mapping[int, str]) -> bool:
        """Whether each controller has beaten since, and its service answers."""
        rows = {pid: (beat, serves) for pid, beat, serves in self._jobs.look("controllers")}
        found = [(controller.pid, rows.get(controller.pid)) for controller in self._rig.controllers]
        return all(row is not None and row[1] and row[0] != beats.get(pid) for pid, row in found)

    def _calm_down(self) -> bool:
        """Mend everything and wait for all jobs to end; whether they did."""

        def quiet() -> bool:
            self._rig.mend()
            return _safely(lambda: self._jobs.look("unended_of_all") == [(0,)], False)

        return until(quiet, self._plan.patience_s)

    def _leftovers(self, descriptors_before: int) -> dict[str, Any]:
        """What is left once nothing is to be done, and then once the controllers have ended."""
        until(lambda: self._ready({}) and device_bytes(self._jobs) == 0, LEFT_S)
        until(lambda: descriptors(self._rig) <= descriptors_before, LEFT_S)
        kept = {
            "device_bytes_left": device_bytes(self._jobs),
            "descriptors_grown": max(0, descriptors(self._rig) - descriptors_before),
        }
        for controller in self._rig.controllers:
            controller.end()
        until(lambda: not self._rig.processes(), LEFT_S)
        return kept | {
            "catalog_rows_left": self._jobs.run("catalog_rows_left")[0][0],
            "processes_left": len(self._rig.processes()),
            "state_files_left": len(self._rig.state_files),
            "controllers_that_ended_badly": [code for c in self._rig.controllers for code in c.ended_badly],
        }

    def _told(self, ended: bool) -> dict[str, Any]:
        plan = self._plan
        return {
            "seed": plan.seed,
            "lease_s": plan.lease_s,
            "controllers": plan.controllers,
            "events": self._events.total(),
            "events_by_kind": dict(self._events),
            "events_left_out": {kind.value: why for kind, why in self._rig.left_out.items()},
            "events_denied": {kind.value: count for kind, count in self._users.denied.items()},
            "all_ended_in_time": ended,
            "longest_recovery_s": self._recovery_s,
            "slowest_to_recover_from": self._slowest,
            "not_recovered": self._not_recovered,
        }


def _safely(look: Callable[[], Found], otherwise: Found) -> Found:
    """What it finds, or `otherwise` while the server cannot be asked."""
    try:
        return look()
    except (psycopg.Error, TensileError):
        return otherwise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="of the events")
    parser.add_argument("--events", type=whole(), default=100)
    parser.add_argument("--minutes", type=float, help="no event begins later; without it, all events come")
    parser.add_argument("--lease", type=float, default=config.Settings().lease_s, help="of controllers, in seconds")
    parser.add_argument("--controllers", type=whole(), default=2)
    parser.add_argument("--jobs", type=whole(), default=6, help="kept waiting or running while events come")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for the last jobs to end")
    parser.add_argument("--kinds", default="all", help="of events, by name, between commas; also all and cheap")
    parser.add_argument("--log", type=Path, help="a file for the events, in place of the standard error output")
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
