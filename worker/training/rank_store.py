"""A store of torch.distributed in the catalog, by which the ranks of a job find each other.

torch's own stores are an open port without a password, or a shared directory. Only workers can read the table behind
this one, and its rows end with the attempt.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import Store

from indb_tensile.catalog import ranks
from indb_tensile.catalog.connection import Session
from indb_tensile.job import ClaimToken, JobId

PAUSE_S = 0.1  # between two looks: a few statements in the start of a training


class CatalogStore(Store):
    """The values of one attempt, as one rank reads and writes them. torch calls it on the thread that connects.

    Every call raises LostClaimError once the attempt has ended. `alive` is called while a value is awaited.
    """

    def __init__(
        self,
        session: Session,
        job: JobId,
        claim: ClaimToken,
        *,
        alive: Callable[[], None] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._session = session
        self._job = job
        self._claim = claim
        self._alive = alive
        self._pause = pause
        self._clock_s = clock_s
        self._timeout = timedelta(seconds=300)

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        stored = value.encode() if isinstance(value, str) else bytes(value)
        self._session.run(lambda c: ranks.put_value(c, self._job, self._claim, key, stored))

    def get(self, key: str) -> bytes:
        """Return a value, and wait until it has been stored."""
        self.wait([key])
        return self._session.run(lambda c: ranks.values(c, self._job, self._claim, [key]))[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a value that is a number, and return the sum."""
        return self._session.run(lambda c: ranks.add_value(c, self._job, self._claim, key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all these values have been stored."""
        stored = self._session.run(partial(ranks.values, job=self._job, claim=self._claim, keys=list(keys)))
        return set(keys) <= set(stored)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these values have been stored. Raises RuntimeError after the time."""
        limit = self._timeout if timeout is None else timeout
        until_s = self._clock_s() + limit.total_seconds()
        while not self.check(keys):
            if self._clock_s() >= until_s:
                raise RuntimeError(f"no rank has stored {' and '.join(keys)} within {limit.total_seconds():g} s")
            self._alive()
            self._pause(PAUSE_S)

    def delete_key(self, key: str) -> bool:
        """Delete a value, and return whether there was one."""
        return self._session.run(lambda c: ranks.remove_value(c, self._job, self._claim, key))

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait for values for this long."""
        self._timeout = timeout
