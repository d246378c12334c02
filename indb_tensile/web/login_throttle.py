"""Slows down whoever guesses passwords: after three failures, each one doubles the wait for the next attempt."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_FREE_FAILURES = 3
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 300.0
_REMEMBERED = 10_000  # addresses and roles; the one that failed longest ago is forgotten first


class LoginThrottle:
    """Counts failed logins by key: an address, or a role's name.

    The wait for a role applies to all addresses, so that nobody can guess its password from many addresses. The role
    itself has to wait too, for at most five minutes.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count, and when the next try may come

    def wait_s(self, *keys: str) -> float:
        """Return the seconds until an attempt with these keys is allowed; 0 if it is allowed now."""
        now_s = self._clock_s()
        with self._lock:
            return max(0.0, *(self._failures.get(key, (0, 0.0))[1] - now_s for key in keys))

    def fail(self, *keys: str) -> None:
        """Count a failure for each key."""
        now_s = self._clock_s()
        with self._lock:
            for key in keys:
                count = self._failures.pop(key, (0, 0.0))[0] + 1
                excess = count - _FREE_FAILURES
                wait_s = 0.0 if excess <= 0 else min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (min(excess, 32) - 1))
                self._failures[key] = (count, now_s + wait_s)
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)

    def succeed(self, *keys: str) -> None:
        """Forget the failures of these keys."""
        with self._lock:
            for key in keys:
                self._failures.pop(key, None)
