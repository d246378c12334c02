"""Soak test of device memory: kills trainers at random moments and checks that no region is shared or lost.

    python -m indb_tensile.bench soak [--kills 500] [--at-once 4] [--survivors 2] [--seed 0] [--json]
    python -m indb_tensile.bench soak --rounds 550 [--seed 0] [--json]

Survivors train a small network on the device again and again, with their tensors in the device's memory. Beside them
the test starts victims, which only allocate, fill and check memory. It changes their grants and kills them by
SIGKILL, most of them while they allocate and some before they have begun. The controller's own code notices each
death, quarantines the victim's regions and frees them. A region with two owners shows as bytes that the owner did not
write: a victim checks its bytes, and a survivor's result is compared bit for bit with that of a training that runs
alone in ordinary memory. A region is lost if it is not free after all processes have ended.

With --rounds the jobs share memory in phases, in so many rounds. Members are killed at random moments, parked, and
told to leave, and everybody else has to go on (bench/harness/soak/soak_rounds.py).
"""

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indb_tensile import config
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.soak.soak_rounds import is_clean_of_rounds, soak_rounds
from indb_tensile.bench.harness.soak.soak_victim import DAMAGED
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.trainers import ProcessEnded, TrainerGone, Trainers
from indb_tensile.device.allocator_shim import LIBRARY
from indb_tensile.device.ledger import Ledger, RegionState
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.job import Slot
from indb_tensile.scheduler.admission.pool import TrainerId

REGION_BYTES = config.MIB
CAPACITY_BYTES = 256 * REGION_BYTES
SURVIVOR_BYTES = 64 * REGION_BYTES
MOST_BYTES = 24 * REGION_BYTES  # largest grant of a victim
EARLY = 0.1  # share of victims killed at a random moment after their start; the others only once they use memory
LIFE_S = 0.05  # longest life of those others after they begin to use memory
_RATE = 10**10
_REFERENCE_EPISODES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the test and print its result, one object. The exit code is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=whole(0), default=500)
    parser.add_argument("--at-once", type=whole(), default=4, help="victims that run at the same time")
    parser.add_argument("--survivors", type=whole(0), default=2, help="trainings that run beside the victims")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=whole(0), default=0, help="rounds of jobs that share memory in phases")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if options.rounds:
        row = soak_rounds(options.rounds, seed=options.seed)
        clean = is_clean_of_rounds(row)
    else:
        row = soak(options.kills, at_once=options.at_once, survivors=options.survivors, seed=options.seed)
        clean = is_clean(row)
    print(json.dumps(row) if options.json else "\n".join(f"{name:>26} {value}" for name, value in row.items()))
    sys.exit(0 if clean else 1)


def soak(kills: int, *, at_once: int, survivors: int, seed: int) -> dict[str, Any]:
    """Kill `kills` victims and return the counts of what is left."""
    expected = _undisturbed() if survivors else ""
    descriptors = _descriptors()
    started_s = time.monotonic()
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, _RATE, _RATE) as ledger, ExitStack() as stack:
        own_bytes = _stored_bytes(ledger)
        trainings = [stack.enter_context(_Survivor.beside(ledger)) for _ in range(survivors)]
        for training in trainings:
            training.read_one()
        victims = _Victims(ledger=ledger, chance=random.Random(seed))  # noqa: S311 - chance, not secrecy
        try:
            victims.kill(kills, at_once)
        finally:
            victims.close()
        digests = [digest for training in trainings for digest in training.stop()]
        lost = sum(region.state is not RegionState.FREE for region in ledger.regions())
        row = {
            "kills": victims.killed,
            "kills_while_allocating": victims.killed_amid,
            "regions_lost": lost,
            "double_owners": victims.damaged + victims.strangers,
            "survivors": survivors,
            "survivor_trainings": len(digests),
            "survivor_results_changed": sum(digest != expected for digest in digests),
            "survivor_device_bytes": min((training.device_bytes for training in trainings), default=0),
            "used_bytes_left": ledger.device_usage().used_bytes,
            "memory_bytes_left": _stored_bytes(ledger) - own_bytes,
            "grants_changed": victims.regranted,
        }
    return row | {"descriptors_left": _descriptors() - descriptors, "seconds": round(time.monotonic() - started_s, 1)}


def is_clean(row: dict[str, Any]) -> bool:
    """Return whether no region is lost or shared, no result has changed and nothing is left behind."""
    bad = ("regions_lost", "double_owners", "survivor_results_changed", "used_bytes_left", "memory_bytes_left")
    return not any(row[name] for name in (*bad, "descriptors_left"))


@dataclass(kw_only=True)
class _Victims:
    """The jobs that the test kills, and the controller's code that manages their memory."""

    ledger: Ledger
    chance: random.Random
    trainers: Trainers = field(init=False)
    killed: int = 0
    killed_amid: int = 0
    damaged: int = 0  # victims that read bytes other than their own
    strangers: int = 0  # regions whose owner is unknown
    regranted: int = 0

    def __post_init__(self) -> None:
        self._forks = ForkServer(os.environ)
        self.trainers = Trainers(
            forks=self._forks,
            module="indb_tensile.bench.harness.soak.soak_victim",
            device_fd=self.ledger.fd,
            grace_s=10.0,
        )
        self._memory = DeviceMemory(self.ledger, kind="emulated")
        self._others = {(usage.slot, usage.epoch) for usage in self.ledger.slots()}
        self._starting: list[TrainerId] = []
        self._claims: dict[TrainerId, tuple[Slot, int]] = {}
        self._kill_at_s: dict[TrainerId, float] = {}
        self._dying: set[TrainerId] = set()

    def close(self) -> None:
        """End the processes that still run."""
        self.trainers.close()
        self._forks.close()

    def kill(self, kills: int, at_once: int) -> None:
        """Start jobs and kill them until `kills` of them are dead."""
        started = 0
        while self.killed < kills:
            while started < kills and len(self._claims) + len(self._starting) < at_once:
                started += 1
                self._start(TrainerId(started))
            for event in self.trainers.poll(0.002):
                match event:
                    case ProcessEnded(trainer=trainer):
                        self._memory.revoke(trainer)
                        self.trainers.reap(trainer)
                    case TrainerGone(trainer=trainer, code=code):
                        self._count(trainer, code)
            for trainer in [trainer for trainer in self._starting if self.trainers.pid(trainer)]:
                self._claim_slot(trainer)
            for trainer in tuple(self._claims.keys() - self._dying):
                self._kill_when_due(trainer)

    def _start(self, trainer: TrainerId) -> None:
        self.trainers.spawn(trainer)
        self._starting.append(trainer)

    def _claim_slot(self, trainer: TrainerId) -> None:
        self._starting.remove(trainer)
        self._claims[trainer] = self._memory.claim(trainer, self.trainers.pid(trainer))
        self._regrant(trainer)
        if self.chance.random() < EARLY:
            self._kill_at_s[trainer] = time.monotonic() + self.chance.random()

    def _kill_when_due(self, trainer: TrainerId) -> None:
        now_s = time.monotonic()
        amid = self.ledger.usage(self._claims[trainer][0]).used_bytes > 0
        if amid and self.chance.random() < 0.2:
            self._regrant(trainer)
        due_s = self._kill_at_s.get(trainer)
        if due_s is None and amid:
            self._kill_at_s[trainer] = now_s + self.chance.random() * LIFE_S
        elif due_s is not None and due_s <= now_s:
            with suppress(ProcessLookupError):
                os.kill(self.trainers.pid(trainer), signal.SIGKILL)
            self.killed_amid += amid
            self._dying.add(trainer)

    def _regrant(self, trainer: TrainerId) -> None:
        with suppress(DeviceMemoryError):  # the job uses more than the new grant, or other grants leave too little
            self._memory.grant(trainer, self.chance.randint(REGION_BYTES, MOST_BYTES))
            self.regranted += 1

    def _count(self, trainer: TrainerId, code: int) -> None:
        self._memory.release(trainer)
        del self._claims[trainer]
        self._dying.discard(trainer)
        self.killed += 1
        self.damaged += code == DAMAGED
        if code not in (DAMAGED, -signal.SIGKILL):
            raise RuntimeError(f"victim {trainer} ended by itself, with code {code}")
        known = self._others | set(self._claims.values())
        occupied = [region for region in self.ledger.regions() if region.state is not RegionState.FREE]
        self.strangers += sum((region.slot, region.epoch) not in known for region in occupied)


class _Survivor:
    """One training in a process of its own."""

    def __init__(self, ledger: Ledger, *, preload: bool) -> None:
        slot, epoch = ledger.claim_slot(0)
        ledger.grant(slot, SURVIVOR_BYTES)
        self._ledger, self._slot = ledger, slot
        self._process = subprocess.Popen(
            (
                sys.executable,
                "-m",
                "indb_tensile.bench.harness.soak.soak_survivor",
                str(ledger.fd),
                str(slot),
                str(epoch),
            ),
            env={**os.environ, "OMP_NUM_THREADS": "1"} | ({"LD_PRELOAD": str(LIBRARY)} if preload else {}),
            pass_fds=(ledger.fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # an interrupt from the terminal must reach only the test, which ends this process
        )
        self._rows: list[dict[str, Any]] = []

    @classmethod
    def beside(cls, ledger: Ledger) -> "_Survivor":
        """Start a training with its tensors in the device's memory."""
        return cls(ledger, preload=True)

    @property
    def device_bytes(self) -> int:
        """Return the bytes of device memory that the training reported last."""
        return int(self._rows[-1]["device_bytes"])

    def read_one(self) -> str:
        """Wait for the end of an episode and return its digest."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a survivor ended before the test did, with code {self._process.wait()}")
        self._rows.append(json.loads(line))
        return str(self._rows[-1]["digest"])

    def stop(self) -> list[str]:
        """Let the process end by itself and return the digests of all its episodes."""
        output, _ = self._process.communicate()
        self._rows += [json.loads(line) for line in output.splitlines()]
        if self._process.returncode:
            raise RuntimeError(f"a survivor ended with code {self._process.returncode}")
        self._ledger.release_slot(self._slot)
        return [str(row["digest"]) for row in self._rows]

    def __enter__(self) -> "_Survivor":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        self._process.communicate()


def _undisturbed() -> str:
    """Return the digest of a training that runs alone, in ordinary memory."""
    with (
        Ledger.create(SURVIVOR_BYTES, REGION_BYTES, _RATE, _RATE) as ledger,
        _Survivor(ledger, preload=False) as survivor,
    ):
        digests = {survivor.read_one() for _ in range(_REFERENCE_EPISODES)} | set(survivor.stop())
    if len(digests) != 1:
        raise RuntimeError(f"a training that runs alone gives {len(digests)} different results")
    return digests.pop()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _stored_bytes(ledger: Ledger) -> int:
    """Return the bytes that the system has allocated for the device's file."""
    return os.fstat(ledger.fd).st_blocks * 512


if __name__ == "__main__":
    run(main)
