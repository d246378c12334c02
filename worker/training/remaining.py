"""How long a training still takes: the steps, the ends of epochs and the publication that are left.

Pure: durations come in, seconds go out. What a step takes changes with the jobs that share the device, so older
durations count less: their weight halves every `_HALF_LIFE_S` of training. A step's duration is the wall-clock time
from the end of the step before, so it holds all that happens between two steps: plans adopted, progress written. The
end of an epoch holds its validation, its checkpoint where one is due, and what is written of it.
"""

import math
from dataclasses import dataclass

EVALUATION_SHARE = 1 / 3  # of a training step: forward without backward and optimizer
_HALF_LIFE_S = 8.0
_LEAST_WEIGHT = 1e-6  # what was learned is never forgotten before something new is


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a training consists of; an evaluation pass of one batch takes `evaluation_share` of a training step."""

    epochs: int
    steps: int  # of one epoch
    valid_batches: int
    test_batches: int
    evaluation_share: float = EVALUATION_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training is: whole epochs done, steps done of the one after those."""

    epochs: int
    steps: int = 0


class Remaining:
    """Learns from each step and each end of an epoch what they take."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._step = _Mean()
        self._end = _Mean()
        self._first_step_s: float | None = None

    def stepped(self, took_s: float) -> None:
        """A training step is done. The first one of a process takes longer than all others and counts for nothing."""
        if self._first_step_s is None:
            self._first_step_s = took_s
        else:
            self._step.add(took_s)

    def closed(self, took_s: float) -> None:
        """An epoch was validated, reported and kept."""
        self._end.add(took_s)
        self._step.fade(took_s)

    def seconds(self, position: Position, *, epochs: int | None = None) -> float | None:
        """Seconds from this position to the published version; `epochs` are all that are trained, if not all.

        None while no step is done.
        """
        work, step_s = self._work, self._step.value
        step_s = self._first_step_s if step_s is None else step_s
        if step_s is None:
            return None
        end_s = self._end.value
        if end_s is None:
            end_s = work.valid_batches * work.evaluation_share * step_s
        epochs_left = max(0, (work.epochs if epochs is None else min(epochs, work.epochs)) - position.epochs)
        steps_left = max(0, epochs_left * work.steps - position.steps)
        return steps_left * step_s + epochs_left * end_s + work.test_batches * work.evaluation_share * step_s


class _Mean:
    """A mean of durations, weighted towards the latest."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._count = 0.0

    def add(self, took_s: float) -> None:
        self.fade(took_s)
        self._total_s += took_s
        self._count += 1

    def fade(self, passed_s: float) -> None:
        weight = max(_LEAST_WEIGHT, math.exp2(-max(0.0, passed_s) / _HALF_LIFE_S))
        self._total_s *= weight
        self._count *= weight

    @property
    def value(self) -> float | None:
        return self._total_s / self._count if self._count else None
