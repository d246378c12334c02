"""Wait in tests for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def until(condition: Callable[[], _T], deadline_s: float = 120.0) -> _T:
    """Poll until the condition is true, and return its value."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"not within {deadline_s} s"
        time.sleep(0.02)  # spares the database; a longer pause would only delay the test
    return value
