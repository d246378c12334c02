"""What is left of trainers that are killed at random moments: no region with two owners, none lost.

    python -m indb_tensile.bench.soak [--kills 500] [--at-once 4] [--survivors 2] [--seed 0] [--json]

Some jobs train a small network on the device again and again, their tensors in its memory; beside them others that
do nothing but allocate, fill and look after their bytes are started, given more and fewer regions, and killed by
SIGKILL: mostly amid that, some before they have begun. The controller's own code notices each death, quarantines
what it had and frees it. A region with two owners would show in bytes that its owner did not write: in one that
allocates, which looks, or in what a training ends with, which is compared to the bits of one that ran alone and
without the device's memory. A region is lost that has an owner no more when everybody is gone.
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
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.soak_victim import DAMAGED
from indb_tensile.controller.forkserver import ForkServer
from indb_tensile.controller.memory import DeviceMemory
from indb_tensile.controller.trainers import Ended, Gone, Trainers
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.executor.device import Ledger, RegionState
from indb_tensile.executor.serving import LIBRARY
from indb_tensile.job import Slot
from indb_tensile.scheduler.admission.pool import TrainerId

REGION_BYTES = config.MIB
CAPACITY_BYTES = 256 * REGION_BYTES
SURVIVOR_BYTES = 64 * REGION_BYTES
MOST_BYTES = 24 * REGION_BYTES  # of one that is killed
EARLY = 0.1  # of all kills: at any moment from the start on, the others once memory is in use
LIFE_S = 0.05  # at most, from then on
_RATE = 10**10
_REFERENCE_EPISODES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one object; the exit code says whether anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=whole(0), default=500)
    parser.add_argument("--at-once", type=whole(), default=4, help="jobs that wait for their death beside each other")
    parser.add_argument("--survivors", type=whole(0), default=2, help="trainings beside them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    row = soak(given.kills, at_once=given.at_once, survivors=given.survivors, seed=given.seed)
    print(json.dumps(row) if given.json else "\n".join(f"{name:>26} {value}" for name, value in row.items()))
    sys.exit(0 if is_clean(row) else 1)


def soak(kills: int, *, at_once: int, survivors: int, seed: int) -> dict[str, Any]:
    """Kill so many jobs and look at what is left."""
    expected = _undisturbed() if survivors else ""
    descriptors = _descriptors()
    started_s = time.monotonic()
    with Ledger.create(CAPACITY_BYTES, REGION_BYTES, _RATE, _RATE) as ledger, ExitStack() as stack:
        own_bytes = _stored_bytes(ledger)
        trainings = [stack.enter_context(_Survivor.beside(ledger)) for _ in range(survivors)]
        for training in trainings:
            training.read_one()
        crowd = _Crowd(ledger=ledger, chance=random.Random(seed))  # noqa: S311 - chance, not secrecy
        try:
            crowd.kill(kills, at_once)
        finally:
            crowd.close()
        digests = [digest for training in trainings for digest in training.stop()]
        lost = sum(region.state is not RegionState.FREE for region in ledger.regions())
        row = {
            "kills": crowd.killed,
            "kills_while_allocating": crowd.killed_amid,
            "regions_lost": lost,
            "double_owners": crowd.damaged + crowd.strangers,
            "survivors": survivors,
            "survivor_trainings": len(digests),
            "survivor_results_changed": sum(digest != expected for digest in digests),
            "survivor_device_bytes": min((training.device_bytes for training in trainings), default=0),
            "used_bytes_left": ledger.device_usage().used_bytes,
            "memory_bytes_left": _stored_bytes(ledger) - own_bytes,
            "grants_changed": crowd.regranted,
        }
    return row | {"descriptors_left": _descriptors() - descriptors, "seconds": round(time.monotonic() - started_s, 1)}


def is_clean(row: dict[str, Any]) -> bool:
    """Whether nothing is lost, shared, changed or left behind."""
    bad = ("regions_lost", "double_owners", "survivor_results_changed", "used_bytes_left", "memory_bytes_left")
    return not any(row[name] for name in (*bad, "descriptors_left"))


@dataclass(kw_only=True)
class _Crowd:
    """Those that are killed, and the controller's code that looks after them."""

    ledger: Ledger
    chance: random.Random
    trainers: Trainers = field(init=False)
    killed: int = 0
    killed_amid: int = 0
    damaged: int = 0  # found other bytes than their own
    strangers: int = 0  # owners that nobody knows
    regranted: int = 0

    def __post_init__(self) -> None:
        self._forks = ForkServer(os.environ)
        self.trainers = Trainers(
            forks=self._forks,
            module="indb_tensile.bench.soak_victim",
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
        """End whoever is left."""
        self.trainers.close()
        self._forks.close()

    def kill(self, kills: int, at_once: int) -> None:
        """Start jobs and kill them until so many are dead."""
        started = 0
        while self.killed < kills:
            while started < kills and len(self._claims) + len(self._starting) < at_once:
                started += 1
                self._start(TrainerId(started))
            for told in self.trainers.poll(0.002):
                match told:
                    case Ended(trainer=trainer):
                        self._memory.revoke(trainer)
                        self.trainers.bury(trainer)
                    case Gone(trainer=trainer, code=code):
                        self._count(trainer, code)
            for trainer in [trainer for trainer in self._starting if self.trainers.pid(trainer)]:
                self._enroll(trainer)
            for trainer in tuple(self._claims.keys() - self._dying):
                self._attend(trainer)

    def _start(self, trainer: TrainerId) -> None:
        self.trainers.spawn(trainer)
        self._starting.append(trainer)

    def _enroll(self, trainer: TrainerId) -> None:
        self._starting.remove(trainer)
        self._claims[trainer] = self._memory.claim(trainer, self.trainers.pid(trainer))
        self._regrant(trainer)
        if self.chance.random() < EARLY:
            self._kill_at_s[trainer] = time.monotonic() + self.chance.random()

    def _attend(self, trainer: TrainerId) -> None:
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
        with suppress(DeviceMemoryError):  # it uses more, or others have too much
            self._memory.grant(trainer, self.chance.randint(REGION_BYTES, MOST_BYTES))
            self.regranted += 1

    def _count(self, trainer: TrainerId, code: int) -> None:
        self._memory.release(trainer)
        del self._claims[trainer]
        self._dying.discard(trainer)
        self.killed += 1
        self.damaged += code == DAMAGED
        if code not in (DAMAGED, -signal.SIGKILL):
            raise RuntimeError(f"a job that was to be killed ended by itself with code {code}")
        known = self._others | set(self._claims.values())
        held = [region for region in self.ledger.regions() if region.state is not RegionState.FREE]
        self.strangers += sum((region.slot, region.epoch) not in known for region in held)


class _Survivor:
    """One training in a process of its own."""

    def __init__(self, ledger: Ledger, *, preload: bool) -> None:
        slot, epoch = ledger.claim_slot(0)
        ledger.grant(slot, SURVIVOR_BYTES)
        self._ledger, self._slot = ledger, slot
        self._process = subprocess.Popen(
            (sys.executable, "-m", "indb_tensile.bench.soak_survivor", str(ledger.fd), str(slot), str(epoch)),
            env={**os.environ, "OMP_NUM_THREADS": "1"} | ({"LD_PRELOAD": str(LIBRARY)} if preload else {}),
            pass_fds=(ledger.fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # an interrupt is for whoever ends it
        )
        self._rows: list[dict[str, Any]] = []

    @classmethod
    def beside(cls, ledger: Ledger) -> "_Survivor":
        """With its tensors in the device's memory."""
        return cls(ledger, preload=True)

    @property
    def device_bytes(self) -> int:
        """What it had in the device's memory at its last look."""
        return int(self._rows[-1]["device_bytes"])

    def read_one(self) -> str:
        """Wait for the end of an episode; what it ended with."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a training that nobody killed ended with code {self._process.wait()}")
        self._rows.append(json.loads(line))
        return str(self._rows[-1]["digest"])

    def stop(self) -> list[str]:
        """Let it end by itself; what all its episodes ended with."""
        told, _ = self._process.communicate()
        self._rows += [json.loads(line) for line in told.splitlines()]
        if self._process.returncode:
            raise RuntimeError(f"a training that nobody killed ended with code {self._process.returncode}")
        self._ledger.release_slot(self._slot)
        return [str(row["digest"]) for row in self._rows]

    def __enter__(self) -> "_Survivor":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        self._process.communicate()


def _undisturbed() -> str:
    """What a training ends with that is alone, in ordinary memory."""
    with Ledger.create(SURVIVOR_BYTES, REGION_BYTES, _RATE, _RATE) as ledger, _Survivor(ledger, preload=False) as one:
        digests = {one.read_one() for _ in range(_REFERENCE_EPISODES)} | set(one.stop())
    if len(digests) != 1:
        raise RuntimeError(f"a training that is alone ends with {len(digests)} different results")
    return digests.pop()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _stored_bytes(ledger: Ledger) -> int:
    """What the system has set aside for the device's file."""
    return os.fstat(ledger.fd).st_blocks * 512


if __name__ == "__main__":
    run(main)
