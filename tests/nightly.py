"""Choose which cases and how many examples the daily suite runs, and leave the rest to the nightly suite.

`sh tests/run.sh` has to end within five minutes, so it runs the cases that differ most from each other and draws few
examples of each property. `sh tests/nightly.sh` runs all cases and draws many examples.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings

Case = TypeVar("Case")


def few_examples() -> settings:
    """Return the settings of a property whose examples take a second each, by the profile of this run.

    A function, because pytest imports some modules before it chooses the profile.
    """
    return settings(max_examples=settings().max_examples // 5)


def some_examples() -> settings:
    """Return the settings of a property whose examples take a twentieth of a second each, by this run's profile."""
    return settings(max_examples=settings().max_examples // 3)


def nightly_unless(daily: Callable[[Case], bool], cases: Iterable[Case]) -> list[ParameterSet]:
    """Return the cases as parameters of one test. Those for which `daily` is false get the mark `nightly`.

    A case that is a tuple gives one value for each argument of the test.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if daily(case) else (pytest.mark.nightly,)
        )
        for case in cases
    ]
