"""Check what ranks let each other know of their steps: by hand, against the simulator of ranks, and in bounds."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.graph import OpIndex, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.timing.rank_steps import (
    GangForecast,
    OtherRanks,
    PublishedStep,
    exchange_times,
    iteration_together,
    latencies_without_waits,
)
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks, step_of_rank
from tests.scheduler.timing.test_simulate_ranks import STEADY, gangs, rank_of


def step_of(
    before_ns: int, beside_ns: int, after_ns: int, exchange_ns: int = 0, *, measured: bool = False
) -> PublishedStep:
    """Return a step with one exchange: work before it, beside it, and after it."""
    return PublishedStep(
        events=(0, -1), work_ns=(before_ns, beside_ns, after_ns), exchange_ns=(exchange_ns,), measured=measured
    )


def numbered(*steps: PublishedStep) -> tuple[tuple[int, PublishedStep], ...]:
    return tuple(enumerate(steps))


def test_all_take_as_long_as_the_slowest_rank_and_longer_where_each_is_late_at_another_exchange() -> None:
    quick, slow = step_of(100, 100, 100, 50), step_of(300, 100, 100, 50)
    assert iteration_together(numbered(quick, slow)) == GangForecast(iteration_ns=500, slowest=1)
    assert iteration_together(numbered(quick, quick)) == GangForecast(iteration_ns=300, slowest=None)
    # both need 310 by themselves; together the first half takes 200, the second 100 + 200, and the exchange 10 twice
    early = PublishedStep(events=(0, -1, 1, -2), work_ns=(200, 0, 100, 0, 0), exchange_ns=(10, 10))
    late = replace(early, work_ns=(100, 0, 200, 0, 0))
    assert [each.alone_ns((10, 10)) for each in (early, late)] == [320, 320]
    assert iteration_together(numbered(early, late)) == GangForecast(iteration_ns=420, slowest=None)


def test_wait_for_another_rank_is_no_time_of_the_exchange_and_counts_once() -> None:
    """Rank 0 comes 200 ns early to an exchange of 50 ns, and measures 250. Rank 1 waits for nobody."""
    quick, slow = step_of(100, 0, 100, 250, measured=True), step_of(300, 0, 100, 50, measured=True)
    assert exchange_times([quick, slow]) == (50,)
    assert iteration_together(numbered(quick, slow)) == GangForecast(iteration_ns=450, slowest=1)
    graph = rank_of((1, 1, 1)).run.graph
    seen_ns = (1, 2, 3, 250)
    assert latencies_without_waits(graph, seen_ns, OtherRanks.of(((1, slow),))) == (1, 2, 3, 50)
    foretold = replace(slow, measured=False)
    assert latencies_without_waits(graph, seen_ns, OtherRanks.of(((1, foretold),))) == seen_ns
    assert latencies_without_waits(graph, seen_ns, OtherRanks()) == seen_ns


def test_rank_that_yields_counts_with_its_fastest_plan() -> None:
    yielding = replace(step_of(400, 0, 0), least_ns=100, yields=True)
    assert OtherRanks.of(((1, yielding), (2, step_of(150, 0, 0)))).needed_ns == 150
    assert OtherRanks.of(((1, replace(yielding, yields=False)),)).needed_ns == 400
    assert OtherRanks.of(()) == OtherRanks()


def test_rank_that_waits_for_this_one_does_not_count_as_slow() -> None:
    """Rank 1 needs 150, and measures 200 for an exchange of 50, because this rank comes 150 later to it."""
    waiting, own = step_of(100, 0, 0, 200, measured=True), step_of(250, 0, 0, 50, measured=True)
    assert OtherRanks.of(((1, waiting),)).needed_ns == 300, "nothing is known of this rank yet"
    assert OtherRanks.of(((1, waiting),), own).needed_ns == 150
    assert OtherRanks.of(((1, own),), waiting).needed_ns == 300


def test_step_with_other_exchanges_is_left_out_of_the_forecast() -> None:
    other = PublishedStep(events=(), work_ns=(500,), exchange_ns=())
    own = step_of(100, 0, 0, 20)
    assert OtherRanks.of(((1, other),)).with_own(0, own) == ((0, own),)
    assert OtherRanks.of(((1, replace(own, measured=True)), (2, other))).steps == ((1, replace(own, measured=True)),)
    with pytest.raises(InvariantError, match="different numbers of exchanges"):
        iteration_together(numbered(own, other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"events": (-1, 0)}, "waits for an exchange that it has not started"),
        ({"events": (0, -1, 1, -2)}, r"starts exchanges \[0, 1\]"),
        ({"work_ns": (1, 2)}, "2 times for 2 events"),
        ({"work_ns": (1, -2, 3)}, "takes no time, or less"),
        ({"work_ns": (0, 0, 0)}, "takes no time, or less"),
        ({"exchange_ns": (1,) * 2_001}, "2001 exchanges, more than 2000"),
    ],
)
def test_invalid_step_is_refused(changes: dict[str, object], message: str) -> None:
    fields = {"events": (0, -1), "work_ns": (1, 2, 3), "exchange_ns": (0,)}
    with pytest.raises(InvariantError, match=message):
        PublishedStep(**(fields | changes))  # type: ignore[arg-type]


def test_copy_that_is_late_is_work_before_the_exchange() -> None:
    """The rank waits 274 ns for copies before operator 1, as in the simulator's own test."""
    away = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(1), needed_by=OpIndex(1))
    link = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9, per_copy_ns=87)
    slow = replace(rank_of((100, 100, 100), Plan(policy="test", swaps=(away,))), link=link)
    assert step_of_rank(slow) == PublishedStep(events=(0, -1), work_ns=(474, 100, 0), exchange_ns=(200,))


@given(gangs(free=True))
def test_step_of_a_rank_takes_as_long_as_the_simulator_says(ranks: list[RankRun]) -> None:
    """The same iterations within what rounding, and a state that does not repeat soon, can change."""
    for rank in ranks:
        (alone,) = simulate_ranks([rank])
        step = step_of_rank(rank)
        work_ns = alone.forecast.compute_ns + alone.forecast.copies_ns
        assert sum(step.work_ns) == pytest.approx(work_ns, abs=4 + len(step.work_ns))
        assert step.alone_ns(step.exchange_ns) == pytest.approx(
            alone.forecast.iteration_ns, rel=0.02, abs=4 + len(step.work_ns)
        )


@given(gangs(free=True, copies=False))
def test_ranks_without_copies_take_as_long_together_as_the_simulator_says(ranks: list[RankRun]) -> None:
    """There nothing goes on during a wait, so the times between exchanges are all that counts."""
    times = tuple(map(_longest, zip(*(rank.exchanges for rank in ranks), strict=True)))
    steps = numbered(*(step_of_rank(replace(rank, exchanges=times)) for rank in ranks))
    foretold_ns = max(own.forecast.iteration_ns for own in simulate_ranks(ranks))
    assume(ranks[0].exchanges)
    together_ns = iteration_together(steps).iteration_ns
    assert foretold_ns / STEADY - 9 <= together_ns <= foretold_ns * STEADY + 9


@given(st.data())
def test_together_is_between_the_slowest_rank_and_the_sum_of_all_latest_stretches(data: st.DataObject) -> None:
    ranks = data.draw(_steps())
    steps = [step for _, step in ranks]
    forecast = iteration_together(ranks)
    times_ns = exchange_times(steps)
    own_ns = {rank: step.alone_ns(times_ns) for rank, step in ranks}
    assert forecast.iteration_ns >= max(own_ns.values()) / STEADY - 1
    latest_ns = sum(max(step.work_ns[place] for step in steps) for place in range(len(steps[0].work_ns)))
    assert forecast.iteration_ns <= latest_ns + sum(times_ns) + 1
    if forecast.slowest is not None:
        assert own_ns[forecast.slowest] == max(own_ns.values())


@given(st.data())
def test_equal_ranks_take_as_long_as_one(data: st.DataObject) -> None:
    ((_, step), *_) = data.draw(_steps())
    count = data.draw(st.integers(2, 4))
    assert iteration_together(numbered(*[step] * count)) == GangForecast(
        iteration_ns=step.alone_ns(step.exchange_ns), slowest=None
    )


@given(st.data())
def test_slower_rank_makes_no_iteration_shorter_and_order_does_not_matter(data: st.DataObject) -> None:
    ranks = data.draw(_steps())
    before_ns = iteration_together(ranks).iteration_ns
    assert iteration_together(tuple(reversed(ranks))).iteration_ns == before_ns
    rank = data.draw(st.integers(0, len(ranks) - 1))
    place = data.draw(st.integers(0, len(ranks[rank][1].work_ns) - 1))
    work_ns = list(ranks[rank][1].work_ns)
    work_ns[place] += data.draw(st.integers(1, 500))
    slowed = [*ranks]
    slowed[rank] = (rank, replace(ranks[rank][1], work_ns=tuple(work_ns)))
    assert iteration_together(slowed).iteration_ns >= before_ns / STEADY - 1


def _longest(times: tuple[ExchangeTime, ...]) -> ExchangeTime:
    return max(times, key=lambda time: time.alone_ns)


@st.composite
def _steps(draw: st.DrawFn) -> tuple[tuple[int, PublishedStep], ...]:
    """Draw the steps of some ranks, which exchange in one order."""
    count = draw(st.integers(0, 4))
    events: list[int] = []
    started = awaited = 0
    while awaited < count:
        if started < count and (started == awaited or draw(st.booleans())):
            events.append(started)
            started += 1
        else:
            events.append(-1 - awaited)
            awaited += 1
    times = st.integers(0, 1_000)
    steps = []
    for rank in range(draw(st.integers(1, 4))):
        work_ns = (1 + draw(times), *(draw(times) for _ in events))
        exchange_ns = tuple(draw(times) for _ in range(count))
        steps.append(
            (
                rank,
                PublishedStep(
                    events=tuple(events), work_ns=work_ns, exchange_ns=exchange_ns, measured=draw(st.booleans())
                ),
            )
        )
    return tuple(steps)
