"""Finds dead workers: those whose count of heartbeats has not changed for as long as their lease.

Time is measured by this process's monotonic clock alone. No clock of the database or of another host is compared, so
a clock that is set declares no worker dead and keeps none alive. The lease is counted from the answer that first
showed the present count to the query that shows it again. The other worker counts its own lease from before that
heartbeat, so it has stopped its trainers by then.
"""

from collections.abc import Iterable

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.job import WorkerId


class Observer:
    """Remembers what one controller has seen of the other workers."""

    def __init__(self) -> None:
        self._seen: dict[WorkerId, tuple[int, float]] = {}  # count of heartbeats, and since when it has not changed

    def look(
        self, sightings: Iterable[ObservedWorker], *, asked_s: float, answered_s: float
    ) -> tuple[ObservedWorker, ...]:
        """Return the dead workers.

        `sightings` is the answer of a query that was sent at `asked_s` and answered at `answered_s`, in monotonic
        seconds.
        """
        previous, self._seen = self._seen, {}
        dead = []
        for sighting in sightings:
            beats, since_s = previous.get(sighting.worker, (-1, answered_s))
            if beats != sighting.beats:
                since_s = answered_s
            self._seen[sighting.worker] = (sighting.beats, since_s)
            if asked_s - since_s >= sighting.lease_s:
                dead.append(sighting)
        return tuple(dead)

    def forget(self) -> None:
        """Start every lease again, because no worker could beat while the database was away."""
        self._seen.clear()
