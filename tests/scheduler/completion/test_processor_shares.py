"""Check how processors are divided among jobs with several wants and weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.completion.processor_shares import (
    PREPARING,
    TRAINING,
    ProcessorLoad,
    fair_parts,
    training_niceness,
    weight_of,
)

_POSITIVE = st.floats(0.01, 100.0)
_WANTED = st.lists(st.tuples(_POSITIVE, _POSITIVE), min_size=1, max_size=8)


@given(_WANTED, st.floats(0.01, 50.0))
def test_parts_are_weighted_max_min_fair(wanted: list[tuple[float, float]], processors: float) -> None:
    """Nobody has more than it wants, all is divided that is wanted, and who has less than it wants has most for its
    weight.
    """
    wants, weights = zip(*wanted, strict=True)
    parts = fair_parts(wants, weights, processors)
    assert sum(parts) == pytest.approx(min(processors, sum(wants)))
    most = max(part / weight for part, weight in zip(parts, weights, strict=True))
    for want, weight, part in zip(wants, weights, parts, strict=True):
        assert 0 <= part <= want
        assert part == pytest.approx(want) or part / weight == pytest.approx(most)


@given(_WANTED, st.floats(0.01, 50.0), _POSITIVE, _POSITIVE)
def test_nobody_has_more_beside_one_more(
    wanted: list[tuple[float, float]], processors: float, want: float, weight: float
) -> None:
    wants, weights = zip(*wanted, strict=True)
    alone = fair_parts(wants, weights, processors)
    beside = fair_parts((*wants, want), (*weights, weight), processors)[:-1]
    assert all(less <= more * (1 + 1e-9) for less, more in zip(beside, alone, strict=True))


def test_a_long_training_beside_two_processes_of_a_preparation_has_what_linux_gives_it() -> None:
    parts = fair_parts([1, 1, 1], [weight_of(4), weight_of(1), weight_of(0)], 2)
    assert parts == pytest.approx([0.371, 0.724, 0.905], abs=1e-3)
    assert fair_parts([1, 1, 1], [0.5, 1, 3], 2) == pytest.approx([1 / 3, 2 / 3, 1]), "a process uses one processor"
    assert fair_parts([1, 1, 1], [1, 1, 1], 2) == pytest.approx([2 / 3] * 3)


def test_the_weight_of_a_process_falls_by_a_fifth_with_each_level() -> None:
    assert [weight_of(niceness) for niceness in (0, PREPARING, 2)] == pytest.approx([1.25, 1.0, 0.8])
    assert weight_of(PREPARING) / weight_of(TRAINING) == pytest.approx(2.44, abs=0.01)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_longer_training_has_no_higher_priority(left_s: float, longer_s: float) -> None:
    left_s, longer_s = sorted((left_s, longer_s))
    assert PREPARING <= training_niceness(left_s) <= training_niceness(longer_s) <= TRAINING


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_without_meaning_is_refused(weight: float) -> None:
    with pytest.raises(InvariantError, match="not a positive one"):
        ProcessorLoad(weight=weight)
