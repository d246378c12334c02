"""Estimates the remaining time of a training: the remaining steps, ends of epochs and the publication.

Pure: durations come in, seconds go out. The duration of a step depends on the jobs that share the device, so older
durations count less: their weight halves every `_HALF_LIFE_S` of training. The duration of a step is the wall-clock
time since the end of the step before, so it includes all work between two steps, such as adopting plans and writing
progress. The end of an epoch includes its validation, its checkpoint if one is due, and its writes to the catalog.
"""

import math
from dataclasses import dataclass

# An evaluation as a share of a training step, before a measurement: forward without backward and optimizer.
EVALUATION_SHARE = 1 / 3
_HALF_LIFE_S = 8.0
_LEAST_WEIGHT = 1e-6  # old durations keep this weight, so that there is always an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a training. An evaluation of one batch takes `evaluation_share` of a training step.

    The training step is that of full batches of the longest texts. The mean step takes `step_share` of it.
    """

    epochs: int
    steps: int  # of one epoch
    valid_batches: int
    test_batches: int
    evaluation_share: float = EVALUATION_SHARE
    step_share: float = 1.0

    def steps_left(self, position: "Position") -> float:
        """Return the training steps from this position to the end. An evaluation counts as a fraction of a step."""
        epochs = max(0, self.epochs - position.epochs)
        steps = max(0, epochs * self.steps - position.steps)
        evaluations = epochs * self.valid_batches + self.test_batches
        return steps * self.step_share + evaluations * self.evaluation_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a training: completed epochs, and completed steps of the epoch after them."""

    epochs: int = 0
    steps: int = 0


class Remaining:
    """Estimates the remaining time from the durations of steps and of ends of epochs."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._step = _Mean()
        self._end = _Mean()
        self._first_step_s: float | None = None

    def stepped(self, took_s: float) -> None:
        """Record a training step.

        The first step of a process is slower than all others, and is used only until the next.
        """
        if self._first_step_s is None:
            self._first_step_s = took_s
        else:
            self._step.add(took_s)

    def closed(self, took_s: float) -> None:
        """Record the end of an epoch: its validation, report and checkpoint."""
        self._end.add(took_s)
        self._step.fade(took_s)

    def seconds(self, position: Position, *, epochs: int | None = None) -> float | None:
        """Return the seconds from this position to the published version; None before the first step.

        `epochs` is the number of epochs that are trained, if fewer than all.
        """
        work, step_s = self._work, self._step.value
        step_s = self._first_step_s if step_s is None else step_s
        if step_s is None:
            return None
        end_s, evaluated_s = self._end.value, work.evaluation_share * step_s / work.step_share
        if end_s is None:
            end_s = work.valid_batches * evaluated_s
        epochs_left = max(0, (work.epochs if epochs is None else min(epochs, work.epochs)) - position.epochs)
        steps_left = max(0, epochs_left * work.steps - position.steps)
        return steps_left * step_s + epochs_left * end_s + work.test_batches * evaluated_s


class _Mean:
    """The mean of durations. Later ones weigh more."""

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
