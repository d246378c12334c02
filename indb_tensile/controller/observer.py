"""Which other workers are dead: those whose beats stand still for their lease on this process's monotonic clock.

No clock of the database or of another host is compared with anything, so a step of a clock makes nobody dead and
keeps nobody alive. The lease is counted from the answer that first showed the present count of beats to the question
that shows it again: the worker counted its own lease from before that beat, and has stopped its trainers by then.
"""

from collections.abc import Iterable

from indb_tensile.catalog.jobs import Sighting
from indb_tensile.job import WorkerId


class Observer:
    """What one controller has seen of the others."""

    def __init__(self) -> None:
        self._seen: dict[WorkerId, tuple[int, float]] = {}  # beats, and since when they are so many

    def look(self, sightings: Iterable[Sighting], *, asked_s: float, answered_s: float) -> tuple[Sighting, ...]:
        """Who is dead by what the database said between these two moments of the monotonic clock."""
        before, self._seen = self._seen, {}
        dead = []
        for sighting in sightings:
            beats, since_s = before.get(sighting.worker, (-1, answered_s))
            if beats != sighting.beats:
                since_s = answered_s
            self._seen[sighting.worker] = (sighting.beats, since_s)
            if asked_s - since_s >= sighting.lease_s:
                dead.append(sighting)
        return tuple(dead)

    def forget(self) -> None:
        """Count every lease anew: while the database was away nobody could beat."""
        self._seen.clear()
