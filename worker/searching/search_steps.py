"""One step of a search: decides by the stored results which trials train next, and writes the decisions."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg

from indb_tensile.catalog import searches
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.searches import ActiveSearch, NewTrial, StoredTrial
from indb_tensile.errors import PrivilegeError, RequestError
from indb_tensile.job import JobState
from indb_tensile.request.search_rules import (
    SEARCHED,
    Dimension,
    adapted,
    check_search,
    check_space,
    dimensions,
    pick_from,
    resolve,
    rung_shares,
)
from indb_tensile.trials.samplers import TrialSampler
from indb_tensile.trials.trial_order import Decided, Stage, StageResult, TrialNumber, TrialRules, replay

log = logging.getLogger("steward")

_WRITTEN = "Start searches with tensile_search, which writes it."
_ENDED_WELL = JobState.SUCCEEDED
_ACTIVE = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
_ENDED_ILL = (JobState.FAILED, JobState.CANCELLED)
_TOO_LATE = "the time of the search was over before the trial began"
_PRUNED = "other trials of the search were better at the rung that it had reached"


class SearchSteps:
    """Takes the steps of one search. Raises RequestError for a specification that cannot be searched."""

    def __init__(self, search: ActiveSearch) -> None:
        self._search = search.search
        self.spec = dict(search.spec)
        options, space = _checked(self.spec)
        self._space = space
        self._deploy = str(self.spec.get("deploy", "if_better"))
        self._most_s = options["max_duration_s"]
        self._rungs = rung_shares(options["prune"])
        self._rules = TrialRules(
            trials=options["trials"],
            parallel=options["parallel"],
            prune=options["prune"]["type"],
            factor=options["prune"].get("factor", 2),
            shares=self._rungs,
        )
        self._sampler = TrialSampler(space=space, kind=options["sampler"], seed=options["search_seed"])

    def take(self, connection: Connection, running_s: float) -> None:
        """Read the results, decide, and write the decisions. Safe to repeat.

        `running_s` are the seconds since the first trial of the search.
        """
        closing = self._most_s is not None and running_s >= self._most_s
        if closing:
            searches.prune_unstarted(connection, self._search, _TOO_LATE)
        trials = {trial.number: trial for trial in searches.trials_of(connection, self._search)}
        picked: dict[TrialNumber, dict[str, Any]] = {number: dict(trial.picks) for number, trial in trials.items()}

        def begin(number: TrialNumber, results: Mapping[Stage, StageResult]) -> None:
            if number not in picked:
                earlier = {own: picks for own, picks in picked.items() if own < number}
                picked[number] = self._sampler.draw(number, earlier, results)

        def was_begun(stage: Stage) -> bool:
            trial = trials.get(stage[0])
            return trial is not None and trial.allowed_rung >= stage[1]

        decided = replay(
            self._rules,
            partial(_result, trials),
            begin,
            may_begin=was_begun if closing else lambda stage: True,
        )
        self._train(connection, trials, picked, decided)
        self._hold(connection, trials, decided)
        self._prune(connection, trials, decided)
        if decided.over:
            self._end(connection, trials, decided)

    def _train(
        self,
        connection: Connection,
        trials: Mapping[TrialNumber, StoredTrial],
        picked: Mapping[TrialNumber, Mapping[str, Any]],
        decided: Decided,
    ) -> None:
        """Let the begun stages be trained. What a lock or a quota prevents is done in a later step."""
        refused = None
        for number, rung in decided.stages:
            trial = trials.get(number)
            try:
                if trial is None:
                    searches.add_trial(connection, self._search, self._new_trial(number, picked[number]))
                elif trial.allowed_rung < rung or (
                    trial.allowed_rung == rung and trial.waits and rung not in trial.results
                ):
                    searches.allow_rung(connection, self._search, number, rung)
            except (psycopg.errors.ProgramLimitExceeded, psycopg.errors.ConfigurationLimitExceeded) as refusal:
                refused = f"trial {number}: {refusal.diag.message_primary}"
                break
            except psycopg.errors.InsufficientPrivilege as refusal:
                message = refusal.diag.message_primary or str(refusal)
                raise PrivilegeError(message, hint=refusal.diag.message_hint or "") from refusal
        searches.set_waits_for(connection, self._search, refused)

    def _hold(self, connection: Connection, trials: Mapping[TrialNumber, StoredTrial], decided: Decided) -> None:
        """Tell the trials that have just reached a rung, and do not go on now, to wait."""
        furthest: dict[TrialNumber, int] = {}
        for number, rung in decided.stages:
            furthest[number] = max(rung, furthest.get(number, 0))
        waiting = []
        for number, trial in trials.items():
            reached = max((rung for rung, result in trial.results.items() if not result.complete), default=-1)
            active = trial.state in (JobState.STARTING, JobState.RUNNING)
            if active and reached >= furthest.get(number, 0) and trial.held_rung < reached:
                waiting.append(number)
        if waiting:
            searches.hold_trials(connection, self._search, waiting)

    def _prune(self, connection: Connection, trials: Mapping[TrialNumber, StoredTrial], decided: Decided) -> None:
        """End the trials that can no longer win: they give up their checkpoints, and their places in the queue."""
        lost = [number for number in decided.lost if trials[number].waits]
        if lost:
            searches.prune_trials(connection, self._search, lost, _PRUNED)

    def _end(self, connection: Connection, trials: Mapping[TrialNumber, StoredTrial], decided: Decided) -> None:
        """Prune the trials that wait, and end the search with the best one.

        A trial that has just been told to wait may still be leaving; the search then ends in a later step.
        """
        leaving = [trial for trial in trials.values() if not trial.waits and trial.state in _ACTIVE]
        if leaving:
            return
        waiting = [number for number, trial in trials.items() if trial.waits]
        if waiting:
            searches.prune_trials(connection, self._search, waiting, _PRUNED)
        if decided.best is None:
            raise self._failure(trials)
        version = trials[decided.best].version
        if version is not None and searches.end_search(connection, self._search, version, self._deploy):
            log.info("search %s ends with trial %s", self._search, decided.best)

    def _failure(self, trials: Mapping[TrialNumber, StoredTrial]) -> RequestError:
        errors = [
            f"Trial {number}: {trial.error}." for number, trial in trials.items() if trial.error and not trial.pruned
        ]
        undefined = "The metric is not defined on the validation rows of any trial."
        return RequestError(
            f"none of the {len(trials)} trials of search {self._search} was trained to an end that can be compared",
            detail=errors[0] if errors else undefined,
            hint=f"The view tensile.stat_trials has all trials of search_id {self._search}.",
        )

    def _new_trial(self, number: TrialNumber, picks: Mapping[str, Any]) -> NewTrial:
        """Return the trial with its specification, which a trainer checks like that of any other job."""
        arguments = resolve(self._space, pick_from(picks))
        spec = {name: value for name, value in self.spec.items() if name != "search"}
        spec |= {name: arguments[name] for name in SEARCHED if name in arguments} | {"deploy": "never"}
        spec = adapted(spec, self._space)
        known = {dimension.name: dimension for dimension in dimensions(self._space)}
        idle = (self._space.get("hyperparams") or {}).keys() - (arguments.get("hyperparams") or {}).keys()
        return NewTrial(
            number=number,
            picks=picks,
            parameters={name: shown_value(known[name], pick) for name, pick in picks.items() if name not in idle},
            rungs=self._rungs,
            spec=spec,
        )


def shown_value(dimension: Dimension, pick: Any) -> Any:
    """Return a picked value as users see it: a choice in which other arguments vary is shown by its type."""
    if dimension.choices is None:
        return pick
    choice = dimension.choices[pick]
    if isinstance(choice, dict | list) and dimensions({"choice": choice}):
        return choice.get("type", f"choice {pick + 1}") if isinstance(choice, dict) else f"choice {pick + 1}"
    return choice


def _checked(spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options and the space of a stored search. Its owner may have written any specification."""
    stored = spec.get("search")
    space = stored.get("space") if isinstance(stored, dict) else None
    if not isinstance(stored, dict) or not isinstance(space, dict) or not space.keys() <= set(SEARCHED):
        raise RequestError("the specification of the search is not complete", hint=_WRITTEN)
    if not all(isinstance(value, dict) for value in space.values()):
        raise RequestError("the space of the search has an argument that is no JSON object", hint=_WRITTEN)
    check_space(space)
    return check_search({name: value for name, value in stored.items() if name != "space"}, space), space


def _result(trials: Mapping[TrialNumber, StoredTrial], stage: Stage) -> StageResult | None:
    """Return the result of a stage, or None if it is not known yet.

    The result of a training that has ended counts once its version is published. It also stands for the rungs that
    the training did not reach.
    """
    number, rung = stage
    trial = trials.get(number)
    if trial is None:
        return None
    stored = trial.results.get(rung)
    if stored is None or stored.complete:
        ended = next((result for result in trial.results.values() if result.complete), None)
        if trial.state in _ENDED_ILL:
            return StageResult(score=None, complete=True)
        if ended is None or trial.state is not _ENDED_WELL or trial.version is None:
            return None
        stored = ended
    metric = stored.metric
    score = None if metric is None else metric if stored.higher_is_better else -metric
    tie_break = -stored.valid_loss if stored.valid_loss is not None else float("-inf")
    return StageResult(score=score, tie_break=tie_break, complete=stored.complete)
