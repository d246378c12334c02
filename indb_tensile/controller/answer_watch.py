"""Tracks the plans that trainers have not confirmed yet, and reports the trainers that take too long."""

from collections.abc import Collection

from indb_tensile.scheduler.admission.pool import TrainerId


class AnswerWatch:
    """Stores since when each answer is awaited. A trainer has `limit_s` for an answer."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since_s: dict[tuple[TrainerId, int], float] = {}

    def overdue(self, owing: Collection[tuple[TrainerId, int]], now_s: float) -> tuple[TrainerId, ...]:
        """Return the trainers whose answer is overdue, one for each such answer.

        `owing` are the answers that are awaited now, by trainer and number; all others are forgotten. After an
        answer was reported its time starts again, so it is reported once per `limit_s`.
        """
        self._since_s = {pending: self._since_s.get(pending, now_s) for pending in owing}
        overdue = [pending for pending, since_s in sorted(self._since_s.items()) if since_s + self.limit_s <= now_s]
        self._since_s.update(dict.fromkeys(overdue, now_s))
        return tuple(trainer for trainer, _ in overdue)
