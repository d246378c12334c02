"""Measures how long each trainer may still work on its job before it exceeds the job's `max_runtime`.

The time of a parked job does not count, because it holds no device then.
"""

from indb_tensile.scheduler.admission.pool import TrainerId


class RuntimeLimits:
    """When the run time of each trainer is over, by the caller's clock, and for a parked job what is left of it."""

    def __init__(self) -> None:
        self._ends_s: dict[TrainerId, float] = {}
        self._left_s: dict[TrainerId, float] = {}

    def start(self, trainer: TrainerId, left_s: float, now_s: float) -> None:
        """Begin to count: the trainer may work for `left_s` from now on."""
        self._ends_s[trainer] = now_s + left_s

    def pause(self, trainer: TrainerId, now_s: float) -> None:
        """Stop counting, because the trainer's job is parked. Without a limit nothing happens."""
        end_s = self._ends_s.pop(trainer, None)
        if end_s is not None:
            self._left_s[trainer] = end_s - now_s

    def resume(self, trainer: TrainerId, now_s: float) -> None:
        """Count on, if the trainer's limit was paused."""
        left_s = self._left_s.pop(trainer, None)
        if left_s is not None:
            self.start(trainer, left_s, now_s)

    def forget(self, trainer: TrainerId) -> None:
        """Remove the limit of a trainer whose job has ended."""
        self._ends_s.pop(trainer, None)
        self._left_s.pop(trainer, None)

    def take_exceeded(self, now_s: float) -> tuple[TrainerId, ...]:
        """Return the trainers whose time is over, and forget their limits, so each is returned once."""
        exceeded = tuple(trainer for trainer, end_s in self._ends_s.items() if end_s <= now_s)
        for trainer in exceeded:
            del self._ends_s[trainer]
        return exceeded
