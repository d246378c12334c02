"""The sets of trainings that `bench share` runs, and the memory that each set has.

A mix names its jobs, when they come, whose they are, and how much memory they share. Its budget is a size, or a
multiple of the memory that jobs need when nothing is saved, which the benchmark measures first. The bars that a mix
is judged by are part of its definition (bench/harness/share/share_bars.py computes them).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from indb_tensile.config import MIB
from indb_tensile.errors import MissingError

# An address is found for each tensor within about 1 % of a plan's peak (scheduler/memory/tensor_placement.py).
_PLACEMENT = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class MixTraining:
    """One training: equal values give equal parameters, bit by bit. `table` is a sample data set."""

    table: str
    architecture: str
    epochs: int
    batch_size: int
    learning_rate: float
    clip_norm: float | None = None
    seed: int = 7

    @property
    def hyperparams(self) -> str:
        """Return the hyperparameters as JSON."""
        values = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
        }
        return json.dumps(values if self.clip_norm is None else values | {"clip_norm": self.clip_norm})


@dataclass(frozen=True, slots=True, kw_only=True)
class MixJob:
    """One job of a mix. It is enqueued `after_s` seconds after the first. Owners are numbered from 0."""

    training: MixTraining
    after_s: float = 0.0
    owner: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixBudget:
    """The memory that all jobs of a mix share: `size_bytes`, or a multiple of what the jobs need without saving.

    `of_largest` counts jobs as large as the largest; `of_all` is a share of the sum over all jobs. Exactly one of the
    three is set.
    """

    size_bytes: int | None = None
    of_largest: float | None = None
    of_all: float | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.size_bytes, self.of_largest, self.of_all)) != 1:
            raise ValueError(f"a budget has exactly one measure: {self}")

    def total_bytes(self, needed_bytes: Sequence[int]) -> int:
        """Return the budget in whole regions for jobs that need this much each."""
        if self.size_bytes is not None:
            return self.size_bytes
        if self.of_largest is not None:
            return regions(self.of_largest * max(needed_bytes))
        return regions((self.of_all or 0.0) * sum(needed_bytes))


class AnttBar(StrEnum):
    """How the normalised turnaround is judged against the best rival's."""

    CLOSE = "at most 1.03 of it"
    LOWER = "lower"
    PRINTED = "printed only"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixBars:
    """The bars of a mix. The last two hold for jobs of one thread, since more threads make arithmetic the limit.

    `speedup` is the least ratio of the makespans of turns and of first fit to ours. `of_unlimited` is the least share
    of the throughput that the mix's first jobs (`Mix.unlimited`) reach without a limit of memory.
    """

    makespan: float = 1.03
    antt: AnttBar = AnttBar.CLOSE
    speedup: float | None = None
    of_unlimited: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A set of jobs, the memory that they share, and its bars.

    `about_s` is the time of one run in turns on two idle cores, for the estimate that is printed first. If
    `unlimited` is set, so many jobs also run in a memory that holds all of them.
    """

    name: str
    text: str
    jobs: tuple[MixJob, ...]
    budget: MixBudget
    about_s: float
    bars: MixBars = MixBars()
    unlimited: int | None = None

    @property
    def trainings(self) -> tuple[MixTraining, ...]:
        """Return the distinct trainings, in order of first appearance."""
        return tuple(dict.fromkeys(job.training for job in self.jobs))

    @property
    def owners(self) -> int:
        """Return the number of owners."""
        return 1 + max(job.owner for job in self.jobs)

    def budget_bytes(self, peaks_bytes: Mapping[MixTraining, int]) -> int:
        """Return the mix's memory. `peaks_bytes` are the trainings' peaks if nothing is saved."""
        return self.budget.total_bytes([room_bytes(peaks_bytes[job.training]) for job in self.jobs])

    def without_limit_bytes(self, peaks_bytes: Mapping[MixTraining, int], spare: float) -> int:
        """Return a memory that holds the first `unlimited` jobs with some to spare."""
        first = self.jobs[: self.unlimited]
        return regions(spare * sum(room_bytes(peaks_bytes[job.training]) for job in first))

    def lengthened(self, factor: float) -> "Mix":
        """Return the mix with that many times the epochs, at least one, and the same times longer waits for jobs."""
        jobs = tuple(
            replace(
                job,
                training=replace(job.training, epochs=max(1, round(job.training.epochs * factor))),
                after_s=job.after_s * factor,
            )
            for job in self.jobs
        )
        return replace(self, jobs=jobs, about_s=self.about_s * factor)


def regions(size_bytes: float) -> int:
    """Round up to whole regions of an emulated device."""
    return math.ceil(size_bytes / MIB) * MIB


def room_bytes(peak_bytes: int) -> int:
    """Return the memory in which a job runs unplanned: its peak with addresses, in whole regions."""
    return regions(_PLACEMENT * peak_bytes)


def find_mix(name: str) -> Mix:
    """Return the mix of this name. Raises MissingError."""
    for mix in MIXES:
        if mix.name == name:
            return mix
    raise MissingError(f"there is no mix '{name}'", hint=f"Mixes are: {', '.join(mix.name for mix in MIXES)}.")


# --- trainings -----------------------------------------------------------------------------------------------------


def _network(kind: str, **parameters: object) -> str:
    return json.dumps({"type": kind, **parameters})


_WIDE = _network("mlp", hidden=[2048] * 4, dropout=0.2)


def _convolutional(epochs: int, batch_size: int = 448) -> MixTraining:
    """Return the quickstart's training on digits: nearly all of its memory holds activations."""
    architecture = _network("cnn", channels=[64], depth=12, hidden=[256], dropout=0.2)
    return MixTraining(
        table="digits", architecture=architecture, epochs=epochs, batch_size=batch_size, learning_rate=0.002
    )


def _wide(epochs: int, *, seed: int = 7) -> MixTraining:
    """Return the quickstart's training on breast_cancer: its memory holds mostly parameters and their state."""
    return MixTraining(
        table="breast_cancer",
        architecture=_WIDE,
        epochs=epochs,
        batch_size=64,
        learning_rate=0.0001,
        seed=seed,
    )


def _wide_clipped(epochs: int) -> MixTraining:
    """Return the quickstart's training on diabetes."""
    return replace(_wide(epochs), table="diabetes", clip_norm=1.0)


def _small(table: str, hidden: Sequence[int], epochs: int) -> MixTraining:
    """Return a training of a network that needs a few megabytes."""
    architecture = _network("mlp", hidden=list(hidden), dropout=0.1)
    return MixTraining(table=table, architecture=architecture, epochs=epochs, batch_size=32, learning_rate=0.001)


_SMALL = (
    _small("breast_cancer", (512, 512), 60),
    _small("diabetes", (768, 256), 70),
    _small("digits", (512, 256), 20),
    _small("breast_cancer", (256, 256, 256), 80),
)

# --- mixes ---------------------------------------------------------------------------------------------------------

MIXES = (
    Mix(
        name="quickstart",
        text="the quickstart's three trainings, with a third of their epochs",
        jobs=tuple(MixJob(training=training) for training in (_convolutional(4), _wide(4), _wide_clipped(4))),
        budget=MixBudget(size_bytes=360 * MIB),
        about_s=17.0,
    ),
    Mix(
        name="small",
        text="eight small networks, in memory for all of them",
        jobs=tuple(MixJob(training=training) for training in (*_SMALL, *_SMALL)),
        budget=MixBudget(of_all=1.0),
        about_s=16.0,
    ),
    Mix(
        name="convolutional_1.3",
        text="four equal convolutional networks in the memory of 1.3",
        jobs=(MixJob(training=_convolutional(3)),) * 4,
        budget=MixBudget(of_largest=1.3),
        about_s=23.0,
        bars=MixBars(speedup=1.4, of_unlimited=0.9),
        unlimited=2,
    ),
    Mix(
        name="convolutional_2",
        text="four equal convolutional networks in the memory of two",
        jobs=(MixJob(training=_convolutional(2)),) * 4,
        budget=MixBudget(of_largest=2.0),
        about_s=17.0,
    ),
    Mix(
        name="parameters_1.3",
        text="four equal networks of many parameters in the memory of 1.3",
        jobs=(MixJob(training=_wide(2)),) * 4,
        budget=MixBudget(of_largest=1.3),
        about_s=12.0,
    ),
    Mix(
        name="parameters_2",
        text="four equal networks of many parameters in the memory of two",
        jobs=(MixJob(training=_wide(2)),) * 4,
        budget=MixBudget(of_largest=2.0),
        about_s=12.0,
    ),
    Mix(
        name="late",
        text="a long job, and six short ones that come later and do not fit beside it without a plan",
        jobs=(
            MixJob(training=_convolutional(5)),
            *(MixJob(training=_convolutional(1, 224), after_s=2.0 + 0.5 * number) for number in range(6)),
        ),
        budget=MixBudget(of_largest=1.3),
        about_s=24.0,
        bars=MixBars(antt=AnttBar.LOWER),
    ),
    Mix(
        name="whole",
        text="a job that needs all of the memory, among small ones that come before and after it",
        jobs=(
            *(MixJob(training=training) for training in _SMALL[:2]),
            MixJob(training=_convolutional(3), after_s=0.5),
            *(MixJob(training=training, after_s=1.0) for training in _SMALL),
        ),
        budget=MixBudget(of_largest=1.0),
        about_s=20.0,
    ),
    Mix(
        name="owners",
        text="two owners: the first floods the queue with six jobs, the second brings two later",
        jobs=(
            *(MixJob(training=_convolutional(1)),) * 6,
            *(MixJob(training=_convolutional(1, 224), after_s=3.0, owner=1),) * 2,
        ),
        budget=MixBudget(of_largest=1.3),
        about_s=21.0,
        bars=MixBars(antt=AnttBar.LOWER),
    ),
    Mix(
        name="priorities",
        text="three equal jobs, each of a higher priority than the one before it",
        jobs=tuple(
            MixJob(training=_convolutional(4), after_s=2.0 * number, priority=10 * number) for number in range(3)
        ),
        budget=MixBudget(of_largest=1.3),
        about_s=22.0,
        bars=MixBars(makespan=1.08, antt=AnttBar.PRINTED),
    ),
)
