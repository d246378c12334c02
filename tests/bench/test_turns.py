"""Turns: who runs when, and whose times are compared."""

from indb_tensile.bench.harness.rivals import LocalContender
from indb_tensile.bench.harness.turns import Entry, TurnLimits, duel, take_turns

PACE = TurnLimits(rounds=2, duels=3, turn_s=0.0)


def _entry(name: str, calls: list[str]) -> Entry:
    one = LocalContender(
        method=name,
        restart=lambda: calls.append(f"{name} starts"),
        iterate=lambda: calls.append(name),
        values=dict,
    )
    return Entry(one, 0, None)


def test_everyone_starts_anew_warms_up_and_is_timed_in_every_round() -> None:
    calls: list[str] = []
    entries = [_entry("a", calls), _entry("b", calls)]
    told: list[str] = []
    take_turns(entries, frozenset(), PACE, lambda entry: told.append(entry.contender.method))
    turns = [[f"{name} starts", name, name] for name in "aabab"]  # the first one says how long an iteration takes
    assert calls == [call for turn in turns for call in turn]
    assert told == ["a", "b", "a", "b"]
    assert [(len(one.step_ns), one.exact) for one in entries] == [(2, [True, True])] * 2


def test_each_of_two_is_the_first_in_every_other_duel() -> None:
    calls: list[str] = []
    one, other = _entry("a", calls), _entry("b", calls)
    duel(one, other, PACE)
    assert [call[0] for call in calls if call.endswith("starts")] == ["a", *"baabba"]
    assert len(one.duel_ns) == len(other.duel_ns) == 3


def test_a_ratio_is_of_the_same_round_and_of_duels_where_both_met_in_any() -> None:
    calls: list[str] = []
    one, other = _entry("a", calls), _entry("b", calls)
    one.step_ns, other.step_ns = [1.0, 10.0, 30.0], [2.0, 2.0, 10.0]
    assert one.over(other) == 3.0
    other.duel_ns = [1.0]
    assert one.over(other) == 3.0
    one.duel_ns = [7.0]
    assert one.over(other) == 7.0
