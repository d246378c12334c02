"""Tracks the last sign of progress of each trainer and reports trainers that have stopped making progress.

The duration of an iteration depends on the job, so the deadline does too: it is a multiple of the longest time that
the trainer has measured for one piece of its work, and never less than a floor.
"""

from collections.abc import Iterable

from indb_tensile.scheduler.admission.pool import TrainerId

# times the longest iteration: a machine that swaps is slow, and a validation takes longer than a step
STALL_FACTOR = 50


class ProgressWatch:
    """Stores when each trainer last sent a message, and the longest duration that it has reported."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._last_sign: dict[TrainerId, tuple[float, float]] = {}

    def hear(self, trainer: TrainerId, now_s: float, longest_s: float = 0.0) -> None:
        """Record that the trainer sent a message at this moment."""
        _, longest_before_s = self._last_sign.get(trainer, (now_s, 0.0))
        self._last_sign[trainer] = (now_s, max(longest_before_s, longest_s))

    def stalled(self, training: Iterable[TrainerId], now_s: float) -> tuple[tuple[TrainerId, float], ...]:
        """Return the trainers that were silent beyond their deadline, and for how long.

        `training` are the trainers to judge; all others are forgotten. After a trainer was reported, its deadline
        starts again, so it is reported once per deadline.
        """
        self._last_sign = {trainer: self._last_sign.get(trainer, (now_s, 0.0)) for trainer in training}
        stalled = []
        for trainer, (last_sign_s, longest_s) in sorted(self._last_sign.items()):
            silent_s = now_s - last_sign_s
            if silent_s >= max(self.floor_s, STALL_FACTOR * longest_s):
                stalled.append((trainer, silent_s))
                self._last_sign[trainer] = (now_s, longest_s)
        return tuple(stalled)
