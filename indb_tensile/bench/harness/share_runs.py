"""Runs one mix with all its methods: a cold run, then rounds in which the methods take turns.

The cold run has each distinct training once, one after the other, in a database that knows none of their latencies.
It says how much memory each training needs if nothing is saved, from which the mix's budget follows. Each round runs
the distinct trainings alone, then the mix with each method; the method that begins changes from round to round.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.bench.harness.share_bars import ShareBar, judge_mix
from indb_tensile.bench.harness.share_measures import JobTimes, RunMeasures, measure_run, share_row
from indb_tensile.bench.harness.share_methods import TURNS, UNLIMITED, WITHOUT_LIMIT, ShareMethod
from indb_tensile.bench.harness.share_mixes import Mix, MixJob, MixTraining
from indb_tensile.bench.harness.share_site import ShareController, ShareSite
from indb_tensile.config import GIB

COLD = "cold"
_COLD_BYTES = 2 * GIB  # more than any training of a mix needs
_SPARE = 1.25  # of a memory that is no limit, so that a plan may also be placed with gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOutcome:
    """All measures of one mix with one number of threads. `faults` are sentences."""

    mix: Mix
    threads: int
    budget_bytes: int
    cold: RunMeasures
    rounds: Mapping[str, Sequence[RunMeasures]]
    faults: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for the cold run and one for each method."""
        return [
            share_row(self.mix.name, method, self.threads, runs)
            for method, runs in {COLD: [self.cold], **self.rounds}.items()
        ]

    def bars(self) -> list[ShareBar]:
        """Return the mix's bars."""
        return list(judge_mix(self.mix, self.threads, self.rounds))


def run_mix(
    site: ShareSite,
    mix: Mix,
    methods: Sequence[ShareMethod],
    *,
    threads: int,
    rounds: int,
    known: frozenset[str],
) -> MixOutcome:
    """Return the measures of a mix. `known` are the names of the controller's settings."""
    turns = ShareMethod(name=TURNS, policy="liveness", max_jobs=1)
    settings = {**turns.settings(1, known), "capacity_bytes": _COLD_BYTES, "budget_bytes": _COLD_BYTES}
    with site.warm_controller(threads, settings) as controller:
        controller.wait_until_ready()
        times = controller.run([MixJob(training=training) for training in mix.trainings])
        cold = measure_run(times, controller.peak_bytes())
    needed = {job.training: job.needed_bytes for job in times}
    budget_bytes = mix.budget_bytes(needed)
    trial = _MixTrial(mix, budget_bytes, {job.training: job.digest for job in times})
    with ExitStack() as stack:
        controllers: dict[str, ShareController] = {}
        runs = [*methods, *([WITHOUT_LIMIT] if mix.unlimited is not None else [])]
        for method in [turns, *(method for method in runs if method.name != TURNS)]:
            size_bytes = trial.budget_of(method, needed)
            memory = {"capacity_bytes": size_bytes, "budget_bytes": size_bytes}
            settings = {**method.settings(len(mix.jobs), known), **memory}
            controllers[method.name] = stack.enter_context(site.controller(method.name, threads, settings))
        for controller in controllers.values():
            controller.wait_until_ready()  # they start at the same time, which takes less
        names = [method.name for method in runs]
        for number in range(rounds):
            alone = {training: controllers[TURNS].run_alone(training) for training in mix.trainings}
            label = f"{mix.name}, alone, round {number + 1}"
            trial.faults += differing(label, list(alone.values()), trial.digests)
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                trial.run(controllers[name], number + 1, alone)
    ordered = {name: trial.measures[name] for name in names}
    return MixOutcome(
        mix=mix, threads=threads, budget_bytes=budget_bytes, cold=cold, rounds=ordered, faults=tuple(trial.faults)
    )


@dataclass(slots=True)
class _MixTrial:
    """The runs of one mix so far, and what was wrong with them."""

    mix: Mix
    budget_bytes: int
    digests: Mapping[MixTraining, str]  # of each training's parameters, from its first run alone
    measures: dict[str, list[RunMeasures]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def budget_of(self, method: ShareMethod, needed: Mapping[MixTraining, int]) -> int:
        """Return the memory that all jobs share with this method."""
        if method.name != UNLIMITED:
            return self.budget_bytes
        return self.mix.without_limit_bytes(needed, _SPARE)

    def run(self, controller: ShareController, number: int, alone: Mapping[MixTraining, JobTimes]) -> None:
        """Run the mix once with this controller and record its measures and faults."""
        name = controller.name
        unlimited = name == UNLIMITED
        times = controller.run(self.mix.jobs[: self.mix.unlimited] if unlimited else self.mix.jobs)
        peak_bytes = controller.peak_bytes()
        self.measures.setdefault(name, []).append(measure_run(times, peak_bytes, alone))
        label = f"{self.mix.name}, {name}, round {number}"
        self.faults += differing(label, times, self.digests)
        if not unlimited and peak_bytes > self.budget_bytes:
            over = f"the jobs used {peak_bytes} bytes at once, more than the budget of {self.budget_bytes}"
            self.faults.append(f"{label}: {over}")


def differing(label: str, times: Sequence[JobTimes], digests: Mapping[MixTraining, str]) -> list[str]:
    """Return a sentence for each job whose parameters differ from those of the same training's first run alone."""
    return [
        f"{label}: the parameters of job {place} differ from those of the same training alone"
        for place, job in enumerate(times, start=1)
        if job.digest != digests[job.training]
    ]
