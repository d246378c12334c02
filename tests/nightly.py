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


def leave_cases_to_the_night(items: Iterable[pytest.Item], *, all_cases: bool) -> None:
    """Mark those cases `nightly` that the mark `by_day` of their test does not name.

    `@pytest.mark.by_day("cnn-adam", "lstm")` names cases by words of their ids, which also suits tests with several
    parameters. A word that no case has would leave fewer cases for the day than its author meant, so it is an error,
    unless not `all_cases` of a test are collected, because the command line names some.
    """
    unused: dict[str, set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("by_day")
        if mark is None:
            continue
        case = item.nodeid.partition("[")[2].removesuffix("]")
        words = {word for word in mark.args if word in case}
        if not words:
            item.add_marker("nightly")
        test = item.nodeid.partition("[")[0]
        unused[test] = unused.get(test, set(mark.args)) - words
    for test, words in unused.items():
        if words and all_cases:
            raise pytest.UsageError(f"{test}: by_day names {sorted(words)}, and no case has that in its id")
