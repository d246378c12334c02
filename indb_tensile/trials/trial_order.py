"""Decides which trials of a search are trained, how far, and which one is the best.

A training is divided into stages by rungs: shares of its epochs at which trials are compared. `replay` runs the whole
search anew, from its first trial on, over the results that are known, and returns the stages that have been begun. It
is called after every result; nothing is remembered between two calls, so a search continues after a crash as if there
had been none.

The order is that of a virtual clock: `parallel` places take stages, a stage lasts as long as its share of a training,
and a place that is free takes the next one. A decision looks only at the results of stages that ended before it on
this clock, and waits for them if they are not known yet. So the decisions do not depend on how fast the machine was,
on the number of controllers, or on a restart: the same search has the same trials, and the same best one.

The rules are successive halving, where a rung's best 1/factor of all trials go on once all have reached the rung
(Jamieson and Talwalkar 2016), and its asynchronous form ASHA, where a trial goes on as soon as it is among the best
1/factor of those that have reached the rung by then (Li et al., A System for Massively Parallel Hyperparameter
Tuning, 2020, section 3.3). Unlike there, a trial that ends early, because its training stops early, has the same
result at all later rungs. If no trial has been trained to its end when nothing else is left to do, the best one of
the highest rung is.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

TrialNumber = int  # the trials of a search count from 1
_Ranked = tuple[float, float, int]  # the rank of a trial's result, and its number, negated
_FAILED = float("-inf")  # the score of a trial that failed
Stage = tuple[TrialNumber, int]  # a trial and a rung: the training from the rung before to this one


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The outcome of a stage.

    `score` is the validation metric, larger is better; None for a trial that failed. Of equal scores the larger
    `tie_break` is better. `complete`: the training has ended with this stage.
    """

    score: float | None
    tie_break: float = 0.0
    complete: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """Return what stages are compared by; the larger is better."""
        return (_FAILED if self.score is None else self.score, self.tie_break)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRules:
    """The rules of a search. `shares` are the rungs as shares of a training, ascending; the last one is 1."""

    trials: int
    parallel: int
    prune: str  # "asha", "halving" or "none"
    factor: int = 3
    shares: tuple[float, ...] = (1.0,)

    @property
    def top(self) -> int:
        """Return the last rung."""
        return len(self.shares) - 1

    def duration(self, rung: int) -> float:
        """Return how long the stage that ends at this rung lasts on the virtual clock."""
        return self.shares[rung] - (self.shares[rung - 1] if rung else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The state of a search as far as the known results decide it.

    `stages` have been begun, in this order; those without a result are to be trained now. `over`: nothing is left to
    be trained. `best` is the best trial among those that are trained to their end; None if there is none. `lost` are
    the trials that wait at a rung and can no longer go on, whatever the results to come are.
    """

    stages: tuple[Stage, ...]
    over: bool
    best: TrialNumber | None
    lost: tuple[TrialNumber, ...] = ()


# Called when a trial begins, with its number and the results that the search has by then. It draws the values of the
# trial, unless they are known already.
Begin = Callable[[TrialNumber, Mapping[Stage, StageResult]], None]


def replay(
    rules: TrialRules,
    result_of: Callable[[Stage], StageResult | None],
    begin: Begin = lambda number, results: None,
    *,
    may_begin: Callable[[Stage], bool] = lambda stage: True,
) -> Decided:
    """Run the search over the known results.

    `result_of` returns the result of a stage, or None if it is not known yet. Once the time of a search is over,
    `may_begin` is true only for the stages that were begun before. Then no other stage is begun, except that one
    trial is trained to its end if none is yet.
    """
    search = _Replay(rules=rules)
    running: list[tuple[float, int, Stage]] = []
    now = 0.0
    while True:
        while len(running) < rules.parallel:
            stage = search.next_stage(may_begin, idle=not running)
            if stage is None:
                break
            if stage[1] == 0:
                begin(stage[0], search.results)
            heapq.heappush(running, (now + rules.duration(stage[1]), len(search.stages), stage))
        if not running:
            return search.decided(over=True)
        now, _, stage = heapq.heappop(running)
        result = result_of(stage)
        if result is None:
            return search.decided(over=False)
        search.record(stage, result)


@dataclass(slots=True, kw_only=True)
class _Replay:
    """The stages that are begun, and the results of those that have ended on the virtual clock."""

    rules: TrialRules
    stages: list[Stage] = field(default_factory=list)
    results: dict[Stage, StageResult] = field(default_factory=dict)
    _begun: set[Stage] = field(default_factory=set)
    _trials: int = 0
    _reached: list[list[_Ranked]] = field(init=False)  # by rung: the trials that have reached it, the worst one first

    def __post_init__(self) -> None:
        self._reached = [[] for _ in self.rules.shares]

    def next_stage(self, may_begin: Callable[[Stage], bool], *, idle: bool) -> Stage | None:
        """Begin the next stage and return it; None if there is none now. `idle`: nothing is being trained."""
        stage = self._continued() or self._new()
        if stage is not None and not may_begin(stage):
            stage = None
        if stage is None and idle and self.best() is None:
            stage = self._rescued()
        if stage is not None:
            self.stages.append(stage)
            self._begun.add(stage)
            self._trials = max(self._trials, stage[0])
        return stage

    def record(self, stage: Stage, result: StageResult) -> None:
        """Note the result of a stage. One of a training that has ended counts at the later rungs too."""
        number, rung = stage
        self.results[stage] = result
        for reached in self._reached[rung : None if result.complete else rung + 1]:
            insort(reached, (*result.rank, -number))

    def best(self) -> TrialNumber | None:
        """Return the best trial that is trained to its end; of equal ones the first."""
        ended = (self._number(own) for own in reversed(self._reached[self.rules.top]) if own[0] > _FAILED)
        return next(ended, None)

    def decided(self, *, over: bool) -> Decided:
        """Return what the search has decided by now."""
        return Decided(stages=tuple(self.stages), over=over, best=self.best(), lost=self._lost())

    def _lost(self) -> tuple[TrialNumber, ...]:
        """Return the trials that wait and are behind the best 1/factor of all that may ever reach their rung.

        Until a trial is trained to its end none is lost: if all better ones fail, the search goes on with it. A trial
        that is lost at a rung never reaches a later one, so fewer trials do.
        """
        if self.best() is None:
            return ()
        lost: set[TrialNumber] = set()
        least = 1 if self.rules.prune == "halving" else 0
        for rung, reached in enumerate(self._reached[:-1]):
            numbers = {self._number(own) for own in reached}
            most = max(least, (self.rules.trials - len(lost - numbers)) // self.rules.factor)
            lost |= {
                number
                for number in map(self._number, reached[: max(0, len(reached) - most)])
                if self._waits(number, rung)
            }
        return tuple(sorted(lost))

    def _waits(self, number: TrialNumber, rung: int) -> bool:
        result = self.results.get((number, rung))
        return result is not None and not result.complete and (number, rung + 1) not in self._begun

    def _new(self) -> Stage | None:
        return None if self._trials == self.rules.trials else (self._trials + 1, 0)

    def _continued(self) -> Stage | None:
        """Return the next stage of a trial that goes on; None if none does now."""
        if self.rules.prune != "halving":
            rungs = range(self.rules.top - 1, -1, -1)  # trials at higher rungs go first
            return next((stage for rung in rungs if (stage := self._survivor(rung, least=0))), None)
        if self._trials < self.rules.trials:
            return None
        for rung in range(self.rules.top):
            if any(stage not in self.results for stage in self._begun if stage[1] <= rung):
                return None
            if stage := self._survivor(rung, least=1):
                return stage
        return None

    def _survivor(self, rung: int, *, least: int) -> Stage | None:
        """Return the next stage of the best trial that waits at the rung and is among its best 1/factor.

        At least the `least` best ones are among them.
        """
        reached = self._reached[rung]
        return self._waiting(rung, max(least, len(reached) // self.rules.factor))

    def _rescued(self) -> Stage | None:
        """Return the next stage of the best trial of the highest rung."""
        rungs = range(self.rules.top - 1, -1, -1)
        return next((stage for rung in rungs if (stage := self._waiting(rung, len(self._reached[rung])))), None)

    def _waiting(self, rung: int, most: int) -> Stage | None:
        """Return the next stage of the first of the `most` best trials of a rung that has not gone on yet."""
        for place in range(1, most + 1):
            own = self._reached[rung][-place]
            if own[0] > _FAILED and self._waits(self._number(own), rung):
                return self._number(own), rung + 1
        return None

    def _number(self, ranked: _Ranked) -> TrialNumber:
        return -ranked[2]
