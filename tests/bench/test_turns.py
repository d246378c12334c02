"""Contenders take turns, and their times are compared within rounds and duels."""

from indb_tensile.bench.harness.comparisons.rivals import LocalContender
from indb_tensile.bench.harness.comparisons.turns import Entry, TurnLimits, duel, take_turns

PACE = TurnLimits(rounds=2, duels=3, turn_s=0.0)


def _entry(name: str, calls: list[str]) -> Entry:
    contender = LocalContender(
        method=name,
        restart=lambda: calls.append(f"{name} starts"),
        iterate=lambda: calls.append(name),
        values=dict,
    )
    return Entry(contender, 0, None)


def test_every_contender_restarts_warms_up_and_is_timed_in_every_round() -> None:
    calls: list[str] = []
    entries = [_entry("a", calls), _entry("b", calls)]
    timed: list[str] = []
    take_turns(entries, frozenset(), PACE, lambda entry: timed.append(entry.contender.method))
    turns = [[f"{name} starts", name, name] for name in "aabab"]  # the first turn measures an iteration's duration
    assert calls == [call for turn in turns for call in turn]
    assert timed == ["a", "b", "a", "b"]
    assert [(len(entry.step_ns), entry.exact) for entry in entries] == [(2, [True, True])] * 2


def test_two_contenders_alternate_as_the_first_of_a_duel() -> None:
    calls: list[str] = []
    first, second = _entry("a", calls), _entry("b", calls)
    duel(first, second, PACE)
    assert [call[0] for call in calls if call.endswith("starts")] == ["a", *"baabba"]
    assert len(first.duel_ns) == len(second.duel_ns) == 3


def test_a_ratio_compares_equal_rounds_or_duels_if_both_had_duels() -> None:
    calls: list[str] = []
    first, second = _entry("a", calls), _entry("b", calls)
    first.step_ns, second.step_ns = [1.0, 10.0, 30.0], [2.0, 2.0, 10.0]
    assert first.over(second) == 3.0
    second.duel_ns = [1.0]
    assert first.over(second) == 3.0
    first.duel_ns = [7.0]
    assert first.over(second) == 7.0
