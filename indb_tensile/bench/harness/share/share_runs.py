"""Runs one mix with all its methods: a cold run, then rounds in which the methods take turns.

The cold run has each distinct training once, one after the other, in a database that knows none of their latencies.
It says how much memory each training needs if nothing is saved, from which the mix's budget follows. Each round runs
the distinct trainings alone, then the mix with each method; the method that begins changes from round to round.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.bench.harness.share.share_bars import ShareBar, judge_mix
from indb_tensile.bench.harness.share.share_jobs import job_rows
from indb_tensile.bench.harness.share.share_measures import JobTimes, RunMeasures, measure_run, share_row
from indb_tensile.bench.harness.share.share_methods import TURNS, TURNS_METHOD, UNLIMITED, WITHOUT_LIMIT, ShareMethod
from indb_tensile.bench.harness.share.share_mixes import Mix, MixJob, MixTraining
from indb_tensile.bench.harness.share.share_site import ShareController, ShareSite
from indb_tensile.config import GIB

COLD = "cold"
_COLD_BYTES = 2 * GIB  # more than any training of a mix needs
_SPARE = 1.25  # ample memory divided by the largest need, so that a plan fits despite gaps between its tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOutcome:
    """All measures of one mix with one number of threads. `faults` are sentences, `jobs` rows of share_jobs.py."""

    mix: Mix
    threads: int
    budget_bytes: int
    cold: RunMeasures
    rounds: Mapping[str, Sequence[RunMeasures]]
    faults: tuple[str, ...]
    jobs: tuple[dict[str, Any], ...] = ()

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
    times, cold = _run_cold(site, mix, threads, known)
    trial = _MixTrial(
        mix, threads, {job.training: job.needed_bytes for job in times}, {job.training: job.digest for job in times}
    )
    runs = [*methods, *([WITHOUT_LIMIT] if mix.unlimited is not None else [])]
    names = [method.name for method in runs]
    with ExitStack() as stack:
        controllers: dict[str, ShareController] = {}
        for method in dict.fromkeys([TURNS_METHOD, *runs]):  # the trainings alone also run in turns
            settings = {**method.settings(len(mix.jobs), known), **_memory(trial.budget_of(method.name))}
            controllers[method.name] = stack.enter_context(site.controller(method.name, threads, settings))
        for controller in controllers.values():
            controller.wait_until_ready()  # they start at the same time, which takes less
        for number in range(rounds):
            alone = trial.run_alone(controllers[TURNS], number + 1)
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                trial.run(controllers[name], number + 1, alone)
    return MixOutcome(
        mix=mix,
        threads=threads,
        budget_bytes=trial.budget_of(TURNS),
        cold=cold,
        rounds={name: trial.measures[name] for name in names},
        faults=tuple(trial.faults),
        jobs=tuple(trial.jobs),
    )


def _run_cold(site: ShareSite, mix: Mix, threads: int, known: frozenset[str]) -> tuple[list[JobTimes], RunMeasures]:
    """Run each distinct training once, in turns and in ample memory. The site knows their latencies afterwards."""
    settings = {**TURNS_METHOD.settings(1, known), **_memory(_COLD_BYTES)}
    with site.warm_controller(threads, settings) as controller:
        controller.wait_until_ready()
        times = controller.run([MixJob(training=training) for training in mix.trainings])
        return times, measure_run(times, controller.peak_bytes())


def _memory(size_bytes: int) -> dict[str, object]:
    return {"capacity_bytes": size_bytes, "budget_bytes": size_bytes}


@dataclass(slots=True)
class _MixTrial:
    """The runs of one mix so far, and what was wrong with them."""

    mix: Mix
    threads: int
    peaks_bytes: Mapping[MixTraining, int]  # of each training, if nothing is saved
    digests: Mapping[MixTraining, str]  # of each training's parameters, from its first run alone
    measures: dict[str, list[RunMeasures]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)  # a row for each job of each run

    def budget_of(self, method: str) -> int:
        """Return the memory that all jobs share with this method."""
        if method == UNLIMITED:
            return self.mix.without_limit_bytes(self.peaks_bytes, _SPARE)
        return self.mix.budget_bytes(self.peaks_bytes)

    def run_alone(self, controller: ShareController, number: int) -> dict[MixTraining, JobTimes]:
        """Run each distinct training alone, and return its times."""
        alone = {training: controller.run_alone(training) for training in self.mix.trainings}
        self._add_jobs("alone", number, controller, list(alone.values()), alone)
        self.faults += differing(f"{self.mix.name}, alone, round {number}", list(alone.values()), self.digests)
        return alone

    def run(self, controller: ShareController, number: int, alone: Mapping[MixTraining, JobTimes]) -> None:
        """Run the mix once with this controller and record its measures and faults."""
        name = controller.name
        times = controller.run(self.mix.jobs[: self.mix.unlimited] if name == UNLIMITED else self.mix.jobs)
        peak_bytes, budget_bytes = controller.peak_bytes(), self.budget_of(name)
        measures = measure_run(times, peak_bytes, alone, controller.sets(times))
        self._add_jobs(name, number, controller, times, alone)
        self.measures.setdefault(name, []).append(measures)
        run = f"{self.mix.name}, {name}, round {number}"
        self.faults += differing(run, times, self.digests)
        if peak_bytes > budget_bytes:
            over = f"the jobs used {peak_bytes} bytes at once, more than the budget of {budget_bytes}"
            self.faults.append(f"{run}: {over}")

    def _add_jobs(
        self,
        method: str,
        number: int,
        controller: ShareController,
        times: Sequence[JobTimes],
        alone: Mapping[MixTraining, JobTimes],
    ) -> None:
        label = {"mix": self.mix.name, "method": method, "threads": self.threads, "round": number}
        self.jobs += job_rows(label, times, alone, controller.sets(times), controller.iterations(times))


def differing(label: str, times: Sequence[JobTimes], digests: Mapping[MixTraining, str]) -> list[str]:
    """Return a sentence for each job whose parameters differ from those of the same training's first run alone."""
    return [
        f"{label}: the parameters of job {place} differ from those of the same training alone"
        for place, job in enumerate(times, start=1)
        if job.digest != digests[job.training]
    ]
