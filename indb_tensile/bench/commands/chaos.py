"""Chaos test: runs jobs of several owners while faults hit processes, the server, disks, connections, clocks, locks.

    tensile bench chaos [--seed 0] [--events 100] [--minutes M] [--lease 15] [--controllers 2] [--devices 1] [--json]
    tensile bench chaos --devices 3 --controllers 4 --kinds signals --events 250 --lease 6

The test creates a private server on a small disk of its own, a database with the catalog, controllers that reach the
server through forwarders, and owners with tables. Each distinct training first runs once undisturbed, which gives the
expected weights. Then owners keep requesting these trainings and a client keeps requesting predictions, while events
follow one another. At the end every fault is repaired. Each job must have ended exactly once: with the same weights
bit by bit, cancelled by its owner, or failed because of an action of its owner. No file, process or memory may be
left behind. `--events 500 --lease 6` and `--events 100` run nightly. The test writes a line of JSON for each event to
the standard error output, or to the file that `--log` names.

With `--devices` above 1 the requests are for one device, two devices and so on in turns; the undisturbed runs are on
one device, with batches in the same parts. `--kinds signals` draws kills and stops of trainers and controllers only:
of 250 events 200 are SIGKILL and 50 are SIGSTOP with a later SIGCONT.

A test that SIGTERM or an interrupt ends prints the figures of its events and predictions so far. One sentence on
standard error says that jobs and leftovers were not checked. Processes are still ended, and files are removed.

The same seed draws the same events. Events that the machine does not support are left out, such as full disks without
the right to mount a file system. The report gives the reason.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

import psycopg

from indb_tensile import config
from indb_tensile.bench.harness.chaos.chaos_client import Client
from indb_tensile.bench.harness.chaos.chaos_events import ChaosEvent, ChaosEventKind, draw_events, parse_kinds
from indb_tensile.bench.harness.chaos.chaos_faults import Faults
from indb_tensile.bench.harness.chaos.chaos_jobs import OWNERS, TRAININGS, Jobs
from indb_tensile.bench.harness.chaos.chaos_progress import ChaosProgress
from indb_tensile.bench.harness.chaos.chaos_rig import ChaosRig, ChaosRigOptions, poll_until, set_up
from indb_tensile.bench.harness.chaos.chaos_users import Users
from indb_tensile.bench.harness.chaos.chaos_verdict import is_clean, judge
from indb_tensile.bench.harness.chaos.chaos_watch import MemoryWatch, descriptors, device_bytes, shared_memory_files
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.error_report import print_error
from indb_tensile.errors import DatabaseError, RequestError, TensileError, UnavailableError

Value = TypeVar("Value")
READY_S = 600.0  # on a busy machine, several controllers of several devices take minutes
RECOVERY_S = 180.0  # after one event; generous, so that only a system that does not recover exceeds it
_HISTORIES = 5  # jobs whose history the report contains, at most
LEFT_S = 20.0  # time for processes that end to disappear, and for memory and files to be released


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """Options of one chaos test."""

    seed: int
    events: int
    limit_s: float | None  # of the whole run; None: no limit
    lease_s: float
    controllers: int
    unended: int  # jobs that wait or run at any moment
    ending_timeout_s: float  # time for the last jobs to end
    kinds: Sequence[ChaosEventKind]
    devices: int = 1  # the most devices that train a job together


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the test and print its report, one object. The exit code is 1 if anything went wrong."""
    options = _parser().parse_args(arguments)
    plan = ChaosOptions(
        seed=options.seed,
        events=options.events,
        limit_s=None if options.minutes is None else 60.0 * options.minutes,
        lease_s=options.lease,
        controllers=options.controllers,
        unended=options.jobs,
        ending_timeout_s=options.ending_timeout,
        kinds=parse_kinds(options.kinds),
        devices=options.devices,
    )
    progress = ChaosProgress(planned=plan.events)
    with ExitStack() as stack:
        log = stack.enter_context(options.log.open("a", buffering=1)) if options.log else sys.stderr
        try:
            report = run_chaos(plan, log, progress)
        except (KeyboardInterrupt, SystemExit) as end:  # SIGTERM raises SystemExit: see process_exit.py
            _print(_settings(plan) | progress.event_figures() | progress.prediction_figures(), as_json=options.json)
            print_error(progress.interruption("an interrupt" if isinstance(end, KeyboardInterrupt) else "SIGTERM"))
            raise
    _print(report, as_json=options.json)
    sys.exit(0 if is_clean(report) else 1)


def run_chaos(plan: ChaosOptions, log: TextIO, progress: ChaosProgress) -> dict[str, Any]:
    """Create the rig, disturb it, let it recover, and return the report."""
    started_s = time.monotonic()
    files_before = shared_memory_files()
    if plan.devices > plan.controllers:
        raise RequestError(
            f"--devices is {plan.devices}, and there are {plan.controllers} controllers with a device each",
            hint="Raise --controllers.",
        )
    design = ChaosRigOptions(
        owners=OWNERS,
        controllers=plan.controllers,
        lease_s=plan.lease_s,
        kinds=plan.kinds,
        rank_timeout_s=plan.lease_s if plan.devices > 1 else config.Settings().rank_timeout_s,
    )
    trainings = tuple(replace(training, in_parts=plan.devices > 1) for training in TRAININGS)
    with set_up(design) as rig, closing(Jobs(rig=rig, trainings=trainings)) as jobs:
        report = _ChaosTest(plan, rig, jobs, log, progress).run()
    report["shared_memory_files_left"] = len(shared_memory_files() - files_before)
    return report | {"seconds": round(time.monotonic() - started_s, 1)}


class _ChaosTest:
    """Runs one chaos test on a rig."""

    def __init__(self, plan: ChaosOptions, rig: ChaosRig, jobs: Jobs, log: TextIO, progress: ChaosProgress) -> None:
        self._plan, self._rig, self._jobs, self._log, self._progress = plan, rig, jobs, log, progress
        self._users = Users(rig, jobs)
        self._actions = {**Faults(rig, jobs).actions(), **self._users.actions()}
        self._disturbed: tuple[str, float] | None = None  # first event without recovery so far, and when it ended
        self._requested = 0
        self._began_s = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Run the undisturbed trainings, then the events. Returns the report."""
        self._start()
        self._jobs.prepare()
        descriptors_before = descriptors(self._rig)
        memory = MemoryWatch(self._rig)
        client = Client(self._rig, self._jobs.trainings, self._jobs.references)
        self._progress.client = client
        client.start()
        try:
            self._run_events()
            ended = self._wait_for_jobs()
        finally:
            client.stop()
        left = self._leftovers(descriptors_before)
        memory.stop()
        verdict = judge(self._jobs.endings(), self._jobs.digests)
        return (
            self._summary(ended)
            | verdict
            | {"histories": {job: self._jobs.history(job) for job in verdict["jobs_at_fault"][:_HISTORIES]}}
            | self._users.invalid_job_figures()
            | self._progress.prediction_figures()
            | left
            | {"peak_rss_mb": {name: round(size / config.MIB) for name, size in memory.peak_bytes.items()}}
        )

    def _start(self) -> None:
        """Start the controllers and wait until all of them are ready."""
        for controller in self._rig.controllers:
            controller.start()
        if not poll_until(lambda: self._ready({}), READY_S):
            logs = [controller.log.read_text(errors="replace")[-1500:] for controller in self._rig.controllers]
            raise UnavailableError(
                f"the controllers were not ready within {READY_S:g} s, and nothing disturbs them yet",
                detail="\n".join(logs),
                hint="Run the benchmark while this machine has less to do.",
            )

    def _run_events(self) -> None:
        """Let one event follow another, and keep the planned number of jobs unended."""
        kinds = [kind for kind in self._plan.kinds if kind not in self._rig.left_out]
        events = islice(draw_events(self._plan.seed, kinds, self._plan.lease_s), self._plan.events)
        end_s = None if self._plan.limit_s is None else time.monotonic() + self._plan.limit_s
        for event in events:
            self._enqueue_jobs()
            time.sleep(event.pause_s)
            self._disturb(event)
            if end_s is not None and time.monotonic() > end_s:
                break

    def _enqueue_jobs(self) -> None:
        """Enqueue jobs until the planned number is unended. Stops when the server does not accept them now."""
        with suppress(psycopg.Error, DatabaseError):
            for _ in range(self._plan.unended - len(self._jobs.unended())):
                self._requested += 1
                training = self._jobs.trainings[self._requested % len(self._jobs.trainings)]
                self._jobs.enqueue(training, devices=1 + self._requested // 2 % self._plan.devices)

    def _disturb(self, event: ChaosEvent) -> None:
        """Apply an event. Wait for the recovery from it, unless the next event follows at once."""
        began_s = time.monotonic()
        try:
            outcome: Mapping[str, Any] = self._actions[event.kind](event)
        except (psycopg.Error, DatabaseError) as error:
            outcome = {"interrupted": str(error).splitlines()[0]}  # by the effects of an earlier event
        over_s = time.monotonic()
        self._progress.events[event.kind.value] += 1
        self._rig.mend()
        line: dict[str, Any] = {
            "event": event.number,
            "kind": event.kind,
            "began_s": round(began_s - self._began_s, 2),
        }
        line |= {"hold_s": event.hold_s, "took_s": round(over_s - began_s, 2)}
        self._disturbed = self._disturbed or (event.kind.value, over_s)
        if not event.at_once:
            line["recovery_s"] = self._recover(*self._disturbed)
            self._disturbed = None
        print(json.dumps(line | dict(outcome)), file=self._log, flush=True)

    def _recover(self, kind: str, since_s: float) -> float | None:
        """Return the seconds until server, controllers and services recovered; None if they exceeded the limit."""
        beats = _safely(self._beats, dict[int, str]())
        if not poll_until(lambda: self._recovered(beats), RECOVERY_S):
            self._progress.not_recovered += 1
            return None
        recovery_s = round(time.monotonic() - since_s, 2)
        self._progress.record_recovery(kind, recovery_s)
        return recovery_s

    def _recovered(self, beats: Mapping[int, str]) -> bool:
        self._rig.mend()
        return _safely(lambda: self._ready(beats), False)

    def _beats(self) -> dict[int, str]:
        """Return the last heartbeat of each live worker, by process id."""
        return {pid: beat for pid, beat, _ in self._jobs.look("controllers")}

    def _ready(self, beats: Mapping[int, str]) -> bool:
        """Return whether each controller has sent a heartbeat since `beats`, and its service answers."""
        rows = {pid: (beat, serves) for pid, beat, serves in self._jobs.look("controllers")}
        workers = [(controller.pid, rows.get(controller.pid)) for controller in self._rig.controllers]
        return all(row is not None and row[1] and row[0] != beats.get(pid) for pid, row in workers)

    def _wait_for_jobs(self) -> bool:
        """Repair all faults and wait for all jobs to end. Returns whether they ended in time."""

        def all_ended() -> bool:
            self._rig.mend()
            return _safely(lambda: self._jobs.look("unended_of_all") == [(0,)], False)

        return poll_until(all_ended, self._plan.ending_timeout_s)

    def _leftovers(self, descriptors_before: Counter[str]) -> dict[str, Any]:
        """Return the resources still in use after all jobs ended, and after the controllers ended."""
        poll_until(lambda: self._ready({}) and device_bytes(self._jobs) == 0, LEFT_S)
        poll_until(lambda: descriptors(self._rig).total() <= descriptors_before.total(), LEFT_S)
        descriptors_now = descriptors(self._rig)
        grown = max(0, descriptors_now.total() - descriptors_before.total())
        leftovers = {
            "device_bytes_left": device_bytes(self._jobs),
            "descriptors_grown": grown,
            "descriptors_more": dict(descriptors_now - descriptors_before) if grown else {},
        }
        for controller in self._rig.controllers:
            controller.end()
        poll_until(lambda: not self._rig.processes(), LEFT_S)
        return leftovers | {
            "catalog_rows_left": self._jobs.run("catalog_rows_left")[0][0],
            "processes_left": len(self._rig.processes()),
            "state_files_left": [str(path.relative_to(self._rig.directory)) for path in self._rig.old_state_files],
            "controllers_that_ended_badly": [end for c in self._rig.controllers for end in c.ended_badly],
        }

    def _summary(self, ended: bool) -> dict[str, Any]:
        ((interruptions, on_several),) = self._jobs.run("interruptions")
        return {
            **_settings(self._plan),
            "jobs_on_several_devices": on_several,
            "interruptions": interruptions,
            **self._progress.event_figures(),
            "events_left_out": {kind.value: why for kind, why in self._rig.left_out.items()},
            "events_denied": {kind.value: count for kind, count in self._users.denied.items()},
            "all_ended_in_time": ended,
        }


def _settings(plan: ChaosOptions) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "lease_s": plan.lease_s,
        "controllers": plan.controllers,
        "devices": plan.devices,
    }


def _print(report: Mapping[str, Any], *, as_json: bool) -> None:
    print(json.dumps(report) if as_json else "\n".join(f"{name:>28} {value}" for name, value in report.items()))


def _safely(look: Callable[[], Value], otherwise: Value) -> Value:
    """Return the result of `look`, or `otherwise` while the server does not answer."""
    try:
        return look()
    except (psycopg.Error, TensileError):
        return otherwise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random events")
    parser.add_argument("--events", type=whole(), default=100)
    parser.add_argument("--minutes", type=float, help="time after which no event begins; default: no limit")
    parser.add_argument("--lease", type=float, default=config.Settings().lease_s, help="of controllers, in seconds")
    parser.add_argument("--controllers", type=whole(), default=2)
    parser.add_argument("--devices", type=whole(), default=1, help="the most devices that train a job together")
    parser.add_argument("--jobs", type=whole(), default=6, help="jobs that wait or run at any moment of the events")
    parser.add_argument("--ending-timeout", type=float, default=300.0, help="seconds for the last jobs to end")
    parser.add_argument(
        "--kinds", default="all", help="kinds of events, separated by commas; also all, cheap, signals"
    )
    parser.add_argument("--log", type=Path, help="a file for the events, in place of the standard error output")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


if __name__ == "__main__":
    run(main)
