"""Check TENSILE's Algorithms 1 and 2 on small graphs followed by hand. Operators take 100 us, and copying a byte
takes 1 us.
"""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, load
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.tensile.swap_events import MemoryPeak, Rules, SwapEvents
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from tests.nightly import some_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.plan_parts import swap
from tests.scheduler.strategies import graphs, latencies, links

LINK = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
US = 1000
ACTIVATION, PARAMETER, STATE = Role.ACTIVATION, Role.PARAMETER, Role.OPTIMIZER_STATE

IDLE = graph_from_rows((60, PARAMETER, "r.....r"), (100, ACTIVATION, "..wrr.."))


# --- Algorithm 1 -----------------------------------------------------------------------------------------------


def test_peak_is_the_first_operator_with_the_most_bytes_after_activity_analysis() -> None:
    assert _events(IDLE).peak == MemoryPeak(size_bytes=160, operator=OpIndex(2), time_ns=200 * US)
    assert _events(IDLE).footprint.by_operator() == (60, 60, 160, 160, 160, 60, 60)


def test_memory_counts_until_the_swap_out_ends_and_from_where_the_swap_in_may_start() -> None:
    """Section IV-B (3) and (4). The copy out lasts from 100 to 160 us, the copy in from 540 to 600 us, during
    operator 5.
    """
    events = _events(IDLE)
    assert _schedule(events, 0)
    assert events.footprint.by_operator() == (60, 60, 100, 100, 100, 60, 60)


def test_rule_of_the_paper_counts_a_swap_in_from_its_end() -> None:
    """Section IV-B (3)."""
    events = _events(IDLE, Rules(counts_at_end=True))
    assert _schedule(events, 0)
    assert events.footprint.by_operator() == (60, 60, 100, 100, 100, 0, 60)


# --- Algorithm 2: choice ---------------------------------------------------------------------------------------


def test_largest_tensor_at_the_peak_is_chosen_and_the_first_of_equals() -> None:
    graph = graph_from_rows(
        (60, PARAMETER, "r...r"), (70, PARAMETER, "r...r"), (70, PARAMETER, "r...r"), (80, ACTIVATION, "wr...")
    )
    assert _candidates(_events(graph), 2) == [1, 2, 0]
    assert _candidates(_events(graph), 1) == [3, 1, 2, 0]


def test_swapped_tensor_is_not_chosen_again() -> None:
    """Line 25."""
    events = _events(IDLE)
    assert _schedule(events, 0)
    assert _candidates(events, 3) == [1]


def test_failed_tensor_is_tried_again_only_at_a_later_peak() -> None:
    graph = graph_from_rows((60, PARAMETER, "r.....r"))
    events = _events(graph)
    assert not _schedule(events, 0, at=1)
    assert _candidates(events, 1) == []
    assert _candidates(events, 2) == [0]


def test_job_at_its_rate_only_has_updated_parameters_swapped() -> None:
    """Lines 26 and 28."""
    graph = graph_from_rows((60, PARAMETER, "r.....r"), (40, STATE, "..u...."))
    events = _events(graph)
    assert _candidates(events, 4) == [0, 1]
    assert _candidates(events, 4, limited=True) == [1]


def test_tensor_without_accesses_stays_on_the_host() -> None:
    graph = graph_from_rows((60, STATE, "..."), (10, ACTIVATION, "wrr"))
    events = _events(graph)
    assert _candidates(events, 0, limited=True) == [0]
    assert _schedule(events, 0, at=0)
    assert events.away == {0}
    assert events.swapped == 0
    assert events.peak.size_bytes == 10


# --- Algorithm 2: time -----------------------------------------------------------------------------------------


def test_swap_out_is_as_early_and_swap_in_as_late_as_possible() -> None:
    events = _events(IDLE)
    assert _schedule(events, 0)
    assert events.swaps == (swap(0, 0, 2, 5, 6),)
    assert events.channel.busy() == ((100 * US, 160 * US), (540 * US, 600 * US))
    assert events.swapped == 1


def test_swap_out_ends_before_the_peak() -> None:
    """Section IV-C, first basis. 100 bytes are copied by 200 us, when operator 2 starts, and 101 bytes are not."""
    assert _schedule(_events(graph_from_rows((100, PARAMETER, "r.....r"))), 0, at=2)
    assert not _schedule(_events(graph_from_rows((101, PARAMETER, "r.....r"))), 0, at=2)
    assert _schedule(_events(graph_from_rows((101, PARAMETER, "r.....r"))), 0, at=3)


def test_failed_swap_in_also_cancels_the_swap_out() -> None:
    """Lines 17-18. 400 us have room for one of the two copies of 210 us. The channel is free again afterwards."""
    events = _events(graph_from_rows((210, PARAMETER, "r....r.")))
    assert not _schedule(events, 0, at=4)
    assert events.channel.busy() == ()
    assert events.swaps == ()


def test_swap_that_frees_no_whole_operator_is_rejected() -> None:
    """The copy out ends at 260 us, so the memory is free from boundary 3. The copy in starts at 340 us, so it needs
    the memory at boundary 3.
    """
    assert not _schedule(_events(graph_from_rows((160, PARAMETER, "r....r."))), 0, at=4)


def test_tensor_leaves_after_its_next_use_if_the_swap_in_does_not_fit() -> None:
    """Line 19. Both copies do not fit between operators 0 and 2, but between 2 and 8."""
    events = _events(graph_from_rows((60, ACTIVATION, "w.r.....r")))
    assert _schedule(events, 0, at=5)
    assert events.swaps == (swap(0, 2, 4, 7, 8),)


def test_tensor_is_not_swapped_out_after_the_peak() -> None:
    """Line 32: latest_time > earliest_time."""
    assert not _schedule(_events(graph_from_rows((60, ACTIVATION, "w.r.....r"))), 0, at=2)


def test_channel_copies_one_tensor_at_a_time() -> None:
    """Section IV-C. The second copy out waits for the first, and the second copy in ends before the first."""
    events = _events(graph_from_rows((60, PARAMETER, "r......r"), (50, PARAMETER, "r......r")))
    assert _schedule(events, 0, at=4)
    assert _schedule(events, 1, at=4)
    assert events.swaps == (swap(0, 0, 2, 6, 7), swap(1, 0, 3, 5, 7))
    assert events.channel.busy() == ((100 * US, 210 * US), (590 * US, 700 * US))


def test_swap_in_does_not_overlap_a_swap_out() -> None:
    """The first tensor returns from 340 to 400 us, so the second leaves from 400 us on instead of 300."""
    events = _events(graph_from_rows((60, PARAMETER, "r...r....."), (110, PARAMETER, "..r......r")))
    assert _schedule(events, 0, at=3)
    assert _schedule(events, 1, at=6)
    assert events.channel.busy() == ((100 * US, 160 * US), (340 * US, 510 * US), (790 * US, 900 * US))
    assert events.swaps == (swap(0, 0, 2, 3, 4), swap(1, 2, 6, 7, 9))


def test_upload_of_the_batch_has_the_channel_to_itself() -> None:
    """Operator 2 uploads 80 bytes from 150 to 230 us. The copy out of 90 bytes has 50 us before the upload, so it
    starts after the upload.
    """
    graph = graph_from_rows(
        (90, PARAMETER, "r.......r"), (80, Role.INPUT, "..w......"), (1, ACTIVATION, ".w......."), uploads=(2,)
    )
    events = SwapEvents(graph, (100 * US, 50 * US, 0, *(100 * US,) * 6), LINK, Rules())
    assert _schedule(events, 0, at=6)
    assert events.channel.busy() == ((150 * US, 320 * US), (640 * US, 730 * US))


# --- Algorithm 2: the rest of a tensor's uses --------------------------------------------------------------------


def test_further_uses_need_no_further_copy_out() -> None:
    """Line 34 and section III-C: a tensor that was swapped in also stays on the host."""
    events = _events(graph_from_rows((60, ACTIVATION, "w....r....r")))
    assert _schedule(events, 0, at=3)
    assert events.swaps == (swap(0, 0, 2, 4, 5), swap(0, 5, 6, 9, 10, copies=False))
    assert events.swapped == 1, "one tensor, however often it leaves"
    plain = _events(graph_from_rows((60, ACTIVATION, "w....r....r")), Rules(further_uses=False))
    assert _schedule(plain, 0, at=3)
    assert plain.swaps == (swap(0, 0, 2, 4, 5),)


def test_tensor_stays_for_a_further_use_without_a_free_interval() -> None:
    """Between operators 5 and 7 the swap-in would end at 700 us, but operator 6 has 50 us for 60 us of copying."""
    graph = graph_from_rows((60, ACTIVATION, "w....r.r...r"))
    events = SwapEvents(graph, (*(100 * US,) * 6, 50 * US, *(100 * US,) * 5), LINK, Rules())
    assert _schedule(events, 0, at=3)
    assert events.swaps == (swap(0, 0, 2, 4, 5), swap(0, 7, 8, 10, 11, copies=False))


def test_written_tensor_is_copied_out_again() -> None:
    graph = graph_from_rows((60, ACTIVATION, "w....u....r"))
    events = _events(graph)
    assert _schedule(events, 0, at=3)
    before = events.swaps
    assert before == (swap(0, 0, 2, 4, 5),)
    assert _schedule(events, 0, at=8)
    assert events.swaps == (swap(0, 0, 2, 4, 5), swap(0, 5, 7, 9, 10))


# --- Algorithm 2: across iterations ------------------------------------------------------------------------------


def test_updated_parameter_is_away_until_its_first_use_in_the_next_iteration() -> None:
    """Lines 8-9 and 27. The copy out lasts from 600 to 660 us, the copy in from 1240 to 1300 us, 300 us into the next
    iteration of 1000 us.
    """
    events = _events(graph_from_rows((60, PARAMETER, "...r.u....")))
    assert _schedule(events, 0, at=0)
    assert events.swaps == (swap(0, 5, 7, 2, 3),)
    assert events.footprint.by_operator() == (0, 0, 60, 60, 60, 60, 60, 0, 0, 0)
    assert not _schedule(
        _events(graph_from_rows((60, PARAMETER, "...r.u....")), Rules(across_iterations=False)), 0, at=0
    )


def test_updated_parameter_leaves_before_a_peak_in_the_same_iteration() -> None:
    assert not _schedule(_events(graph_from_rows((60, PARAMETER, "...r.u...."))), 0, at=6)
    assert _schedule(_events(graph_from_rows((60, PARAMETER, "...r.u...."))), 0, at=7)


def test_parameter_away_between_iterations_needs_no_copy_out_in_the_next() -> None:
    events = _events(graph_from_rows((60, PARAMETER, "..r....u..")))
    assert _schedule(events, 0, at=0)
    assert not _schedule(events, 0, at=2), "the parameter is used at the peak"
    assert _schedule(events, 0, at=5)
    assert events.swaps == (swap(0, 2, 3, 6, 7, copies=False), swap(0, 7, 9, 1, 2))


def test_unneeded_copy_out_frees_the_channel_and_its_memory() -> None:
    events = _events(graph_from_rows((60, PARAMETER, "..r....u..")))
    assert _schedule(events, 0, at=5)
    before = events.swaps
    assert before == (swap(0, 2, 4, 6, 7),)
    assert _schedule(events, 0, at=0)
    assert events.swaps == (swap(0, 2, 3, 6, 7, copies=False), swap(0, 7, 9, 1, 2))
    assert events.channel.busy() == ((140 * US, 200 * US), (640 * US, 700 * US), (800 * US, 860 * US))
    assert events.footprint.by_operator() == (0, 60, 60, 0, 0, 0, 60, 60, 60, 0)


def test_failed_tensor_is_tried_again_once_the_channel_has_more_free_time() -> None:
    events = _events(graph_from_rows((60, PARAMETER, "..r....u.."), (500, PARAMETER, "..r....r..")))
    assert _schedule(events, 0, at=5)
    assert not _schedule(events, 1, at=5)
    assert _candidates(events, 5) == []
    assert _schedule(events, 0, at=0)
    assert _candidates(events, 5) == [1]


def test_tensor_returning_at_the_start_has_no_host_copy() -> None:
    """The copy in may start at boundary 0. A first iteration starts with the tensor on the device and no copy on the
    host.
    """
    events = _events(graph_from_rows((60, PARAMETER, ".r....u...")))
    assert _schedule(events, 0, at=9)
    assert _schedule(events, 0, at=4)
    assert events.swaps == (swap(0, 1, 3, 5, 6), swap(0, 6, 8, 0, 1))


def test_copy_in_progress_at_the_start_is_a_host_copy_of_that_iteration() -> None:
    """The copy out lasts from 950 to 1010 us of 1000, so its memory is released at boundary 1."""
    graph = graph_from_rows((60, PARAMETER, "...r....u"), (10, ACTIVATION, "w........"))
    events = SwapEvents(graph, (*(100 * US,) * 8, 150 * US), LINK, Rules())
    assert _schedule(events, 0, at=2)
    assert _schedule(events, 0, at=6)
    assert events.swaps == (swap(0, 3, 4, 7, 8, copies=False), swap(0, 8, 1, 2, 3))
    assert check.faults(graph, Plan(policy="test", swaps=events.swaps)) == ()


# --- the device's lanes ------------------------------------------------------------------------------------------


def test_delayed_copy_releases_its_memory_later_if_the_peak_allows() -> None:
    """90 bytes leave from 200 to 290 us. 150 bytes more are queued before them at 100 us and delay them to 340 us."""
    graph = graph_from_rows(
        (90, PARAMETER, ".r.......r"), (150, PARAMETER, "r........r"), (20, ACTIVATION, ".....wr...")
    )
    events = _events(graph)
    assert _schedule(events, 0, at=6)
    assert events.swaps[0] == swap(0, 1, 3, 8, 9)
    assert _schedule(events, 1, at=6)
    assert events.swaps == (swap(0, 1, 4, 8, 9), swap(1, 0, 5, 6, 9))
    assert events.footprint.by_operator() == load(graph, Plan(policy="test", swaps=events.swaps))


def test_swap_whose_delay_of_another_copy_raises_the_peak_is_rejected() -> None:
    """With 20 bytes more at operator 3 the delay would raise the load there to 260 bytes, above the peak of 240."""
    graph = graph_from_rows(
        (90, PARAMETER, ".r.......r"), (150, PARAMETER, "r........r"), (20, ACTIVATION, "...w......")
    )
    events = _events(graph)
    assert _schedule(events, 0, at=6)
    before = (events.swaps, events.channel.busy(), events.footprint.by_operator())
    assert events.peak.size_bytes == 240
    assert not _schedule(events, 1, at=6)
    assert (events.swaps, events.channel.busy(), events.footprint.by_operator()) == before


def test_no_copy_is_delayed_if_one_of_them_may_not_be() -> None:
    """Tensor 0 could release its memory at boundary 4. Tensor 2, whose copy ends at 401 us, could not at 5."""
    rows = ((90, PARAMETER, ".r.........r"), (150, PARAMETER, "r..........r"), (61, PARAMETER, "..r........r"))
    events = _events(graph_from_rows(*rows, (100, ACTIVATION, "....w.......")))
    assert _schedule(events, 0, at=4)
    assert _schedule(events, 2, at=4)
    before = (events.swaps, events.channel.busy(), events.footprint.by_operator())
    assert not _schedule(events, 1, at=7)
    assert (events.swaps, events.channel.busy(), events.footprint.by_operator()) == before


def test_copy_behind_another_ends_before_the_peak_or_is_rejected() -> None:
    """Tensor 1 has 150 free us from 220 us on, but is queued at 100 us, before tensor 2."""
    rows = ((20, PARAMETER, ".r.........r"), (150, PARAMETER, "r..........r"), (60, PARAMETER, "r..........r"))
    for at, swapped in ((3, False), (4, True)):
        events = _events(graph_from_rows(*rows))
        assert _schedule(events, 0, at=6)
        assert _schedule(events, 1, at=6)
        assert _schedule(events, 2, at=at) == swapped
    assert events.swaps[2] == swap(2, 0, 4, 8, 11)


def test_swap_in_behind_another_that_is_needed_later_is_rejected() -> None:
    """Both copies are queued at the start of operator 3, 60 us before one of them is needed. The tensor with the
    lower id goes first.
    """
    first, later, sooner = (50, PARAMETER, "r....r"), (60, PARAMETER, "r....r"), (50, PARAMETER, "r...r.")
    latency = tuple(us * US for us in (100, 300, 440, 60, 100, 100))
    for rows, swapped in (((first, later, sooner), False), ((sooner, first, later), True)):
        events = SwapEvents(graph_from_rows(*rows), latency, LINK, Rules())
        for row in (first, later):
            assert _schedule(events, rows.index(row), at=2)
        assert _schedule(events, rows.index(sooner), at=2) == swapped


# --- any graph ---------------------------------------------------------------------------------------------------


@some_examples()
@given(st.data(), graphs(), links(), st.booleans())
def test_swaps_are_valid_never_raise_the_footprint_and_cause_no_stalls(
    data: st.DataObject, graph: StepGraph, link: Link, slow: bool
) -> None:
    latency = tuple(ns * (40 if slow else 1) for ns in data.draw(latencies(graph)))
    events = SwapEvents(graph, latency, link, Rules())
    idle = simulate([JobRun(graph=graph, plan=LIVENESS, latency_ns=latency)], link)[0]
    for _ in range(12):
        operator = OpIndex(data.draw(st.integers(0, len(graph.operators) - 1)))
        candidates = events.candidates(operator, limited=False)
        if not len(candidates):
            continue
        before = events.footprint.by_operator()
        succeeded = events.schedule(int(candidates[0]), operator)
        after = events.footprint.by_operator()
        assert max(after) <= max(before)
        assert succeeded or after == before
        plan = Plan(policy="test", swaps=events.swaps, away=frozenset(events.away))
        assert check.faults(graph, plan) == ()
        assert load(graph, plan) == after
        forecast = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency)], link)[0]
        assert (forecast.stall_out_ns, forecast.stall_in_ns) == (0, 0)
        assert forecast.iteration_ns == idle.iteration_ns


def _events(graph: StepGraph, rules: Rules | None = None) -> SwapEvents:
    return SwapEvents(graph, (100 * US,) * len(graph.operators), LINK, rules or Rules())


def _schedule(events: SwapEvents, tensor: int, *, at: int = 2) -> bool:
    """Schedule this tensor with the peak at this operator."""
    numbers = [n for n in events.candidates(OpIndex(at), limited=False).tolist() if events.tensor_of(n) == tensor]
    return bool(numbers) and events.schedule(numbers[0], OpIndex(at))


def _candidates(events: SwapEvents, at: int, *, limited: bool = False) -> list[int]:
    return [events.tensor_of(n) for n in events.candidates(OpIndex(at), limited=limited).tolist()]
