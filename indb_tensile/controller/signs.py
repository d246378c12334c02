"""Signs of life of trainers in mid-training, and who has given none for far too long.

How long an iteration takes is the job's own affair, so the deadline follows from it: many times the longest that the
trainer was ever busy between two signs, by its own measurement, and never less than a floor.
"""

from collections.abc import Iterable

from indb_tensile.scheduler.admission.pool import TrainerId

PATIENCE = 50  # times the longest iteration: a machine that swaps is slow, and a validation is longer than a step


class Signs:
    """When each trainer was last heard of, and how long it was busy at the most."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._heard: dict[TrainerId, tuple[float, float]] = {}

    def hear(self, trainer: TrainerId, now_s: float, longest_s: float = 0.0) -> None:
        """The trainer said something at this moment."""
        _, before_s = self._heard.get(trainer, (now_s, 0.0))
        self._heard[trainer] = (now_s, max(before_s, longest_s))

    def stalled(self, training: Iterable[TrainerId], now_s: float) -> tuple[tuple[TrainerId, float], ...]:
        """Which of those that train were silent for too long, and for how long; all others are forgotten.

        A trainer is told of once per deadline: what is told counts as heard.
        """
        self._heard = {trainer: self._heard.get(trainer, (now_s, 0.0)) for trainer in training}
        found = []
        for trainer, (heard_s, longest_s) in sorted(self._heard.items()):
            silent_s = now_s - heard_s
            if silent_s >= max(self.floor_s, PATIENCE * longest_s):
                found.append((trainer, silent_s))
                self._heard[trainer] = (now_s, longest_s)
        return tuple(found)
