"""Jobs in virtual time: all work is done and no more, memory is never exceeded, and equal seeds give equal rows."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.bench.commands.trace import TraceCase, main, measure, runnable_row, summary
from indb_tensile.bench.harness.virtual_time import trace_outcome
from indb_tensile.bench.harness.virtual_time.trace_device import JobsOnDevice, TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_networks import JobKind, job_kinds, perceptron
from indb_tensile.bench.harness.virtual_time.trace_outcome import Bar, Outcome, bars, figures, jain, share_errors
from indb_tensile.bench.harness.virtual_time.trace_rival_run import run_rival
from indb_tensile.bench.harness.virtual_time.trace_rivals import (
    FirstInFirstOut,
    LeastAttained,
    Packing,
    Rival,
    ShiftedPairs,
    ShortestRemaining,
    rivals,
)
from indb_tensile.bench.harness.virtual_time.trace_scheduler_run import run_admission
from indb_tensile.bench.harness.virtual_time.trace_workload import (
    PERCENTILES,
    TraceJob,
    TraceOptions,
    draw_jobs,
    run_time_s,
)
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads
from indb_tensile.scheduler.admission.pool import Pool, Sharing
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.link import Link

SECOND_NS = 1_000_000_000
REGION = 1 << 20
STEP_NS = 1_000_000
IDEAL = Contention(points=((1, 1.0), (8, 1.0)))
TURNS = Contention(points=((1, 1.0), (2, 2.0)))
HALF = JobKind(
    name="half of the device",
    trade_offs=(
        TradeOff(peak_bytes=50 * REGION, iteration_ns=STEP_NS, compute_ns=STEP_NS),
        TradeOff(peak_bytes=30 * REGION, iteration_ns=2 * STEP_NS, compute_ns=STEP_NS, stall_ns=STEP_NS),
    ),
    state_bytes=10 * REGION,
)
LARGE = replace(HALF, trade_offs=(replace(HALF.trade_offs[0], peak_bytes=80 * REGION), *HALF.trade_offs[1:]))


def _device(contention: Contention = IDEAL, *, error: float = 0.0, free_changes: bool = True) -> TraceDevice:
    return TraceDevice(
        budget_bytes=100 * REGION,
        region_bytes=REGION,
        contention=contention,
        host_bytes_per_s=10**18 if free_changes else 10 * REGION,  # a state of 10 regions moves in a second
        prepare_ns=0,
        hand_over_ns=0,
        error=error,
    )


def _job(number: int, arrival_s: float, run_s: float, kind: JobKind = HALF, *, owner: int = 1) -> TraceJob:
    return TraceJob(
        number=number,
        owner=owner,
        priority=0,
        arrival_ns=arrival_s * SECOND_NS,
        kind=kind,
        steps=run_s * SECOND_NS / STEP_NS,
    )


def _ends_s(outcome: Outcome) -> dict[int, float]:
    return {number: round(ns / SECOND_NS, 3) for number, ns in sorted(outcome.ends_ns.items())}


def _short_jobs(
    sharing: Sharing,
    startup_s: float,
    closing_s: float,
    runs_s: tuple[float, ...] = (0.6, 0.45, 0.8, 0.65) * 2,
    overheads: Overheads | None = None,
) -> tuple[float, float]:
    """Run short jobs on two cores, in memory for all of them. Return makespan and ANTT.

    At most two jobs are read and captured at once, and each for 0.3 s. `overheads` are known before the first job.
    """
    device = replace(
        _device(of_cores(2, 1)),
        prepare_ns=300_000_000,
        hand_over_ns=50_000_000,
        startup_ns=round(startup_s * SECOND_NS),
        closing_ns=round(closing_s * SECOND_NS),
    )
    pool = Pool(
        budget_bytes=100 * REGION,
        region_bytes=REGION,
        max_jobs=9,
        sharing=sharing,
        contention=of_cores(2, 1),
        link=Link(out_bytes_per_s=10**10, in_bytes_per_s=10**10),
        overheads=overheads or Overheads(),
    )
    kind = replace(HALF, trade_offs=(replace(HALF.trade_offs[0], peak_bytes=4 * REGION),), state_bytes=REGION)
    ends_s = _ends_s(run_admission(pool, [_job(k, 0.0, run_s, kind) for k, run_s in enumerate(runs_s, 1)], device))
    alone_s = [0.3 + startup_s + run_s + closing_s for run_s in runs_s]
    return max(ends_s.values()), sum(ends_s[k] / alone_s[k - 1] for k in ends_s) / len(ends_s)


@pytest.mark.parametrize(("startup_s", "closing_s"), [(0.0, 0.0), (0.05, 0.05), (0.15, 0.1), (0.3, 0.2)])
def test_short_jobs_that_start_up_and_close_are_done_as_early_as_if_all_started_at_once(
    startup_s: float, closing_s: float
) -> None:
    makespan_s, antt = _short_jobs(Sharing.COMPLETION, startup_s, closing_s)
    first_fit_s, first_fit_antt = _short_jobs(Sharing.ANY_PRICE, startup_s, closing_s)
    assert makespan_s <= 1.03 * first_fit_s
    assert antt <= 1.03 * first_fit_antt


@pytest.mark.parametrize("known", [False, True])
def test_jobs_that_close_for_long_are_done_in_time_though_none_has_closed_yet(known: bool) -> None:
    times = KindOverheads(kind="", state_bytes=0, startup_ns=0.42e9, between_ns=0.0, closing_ns=0.9e9)
    overheads = Overheads(kinds=(times,) if known else ())
    runs_s = (2.58, 0.72, 0.85, 0.61, 0.83, 2.26)
    makespan_s, antt = _short_jobs(Sharing.COMPLETION, 0.42, 0.9, runs_s, overheads)
    first_fit_s, first_fit_antt = _short_jobs(Sharing.ANY_PRICE, 0.42, 0.9, runs_s)
    assert makespan_s <= 1.02 * first_fit_s
    assert antt <= 1.03 * first_fit_antt


def _case(seed: int = 0, jobs: int = 12, device: str = "gpu") -> TraceCase:
    return TraceCase(device=device, jobs=TraceOptions(jobs=jobs, seed=seed), excess=0.1, memory=1.3)


# --- the trace -----------------------------------------------------------------------------------------------------


def test_run_times_have_the_published_percentiles_and_never_fall_between_them() -> None:
    assert [round(run_time_s(share)) for share, _ in PERCENTILES] == [seconds for _, seconds in PERCENTILES]
    times = [run_time_s(k / 1_000) for k in range(1_001)]
    assert all(shorter <= longer for shorter, longer in pairwise(times))


@pytest.mark.nightly
def test_equal_seeds_draw_equal_jobs_and_the_work_arrives_at_the_wanted_load() -> None:
    options = TraceOptions(jobs=50, load=0.5, seed=3)
    jobs = draw_jobs(job_kinds(), options)
    assert jobs == draw_jobs(job_kinds(), options)
    assert jobs != draw_jobs(job_kinds(), replace(options, seed=4))
    assert [job.number for job in jobs] == list(range(1, 51))
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(jobs))
    assert jobs[-1].arrival_ns <= 1.01 * sum(job.alone_ns for job in jobs) / options.load


def test_every_kind_of_job_needs_less_memory_for_more_time() -> None:
    for kind in job_kinds():
        assert kind.state_bytes < kind.peak_bytes
        assert all(a.peak_bytes > b.peak_bytes for a, b in pairwise(kind.trade_offs))
        assert all(a.iteration_ns <= b.iteration_ns for a, b in pairwise(kind.trade_offs))


def test_a_perceptron_is_nearly_all_parameters_and_state() -> None:
    graph = perceptron(4, 256)
    persistent_bytes = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)
    assert persistent_bytes == 3 * 4 * 4 * 256**2


# --- the device ----------------------------------------------------------------------------------------------------


def test_jobs_side_by_side_slow_each_other_down_by_contention_and_share_the_lanes() -> None:
    job, other = _job(1, 0, 1), _job(2, 0, 1)
    assert _device(TURNS).steps_ns([(job, job.point(0)), (other, other.point(0))]) == [2 * STEP_NS] * 2
    copying = TradeOff(peak_bytes=1, iteration_ns=STEP_NS, compute_ns=STEP_NS, out_ns=STEP_NS)
    assert _device().steps_ns([(job, copying), (other, copying)]) == [2 * STEP_NS] * 2


def test_a_set_has_the_same_error_each_time_and_a_job_alone_has_none() -> None:
    device = _device(TURNS, error=0.2)
    jobs = [(job, job.point(0)) for job in (_job(1, 0, 1), _job(2, 0, 1))]
    first = device.steps_ns(jobs)
    assert first == device.steps_ns(jobs) == _device(TURNS, error=0.2).steps_ns(jobs)
    assert first[0] != first[1]
    assert device.steps_ns(jobs[:1]) == [STEP_NS]


def test_a_job_trains_only_when_its_state_is_on_the_device() -> None:
    job = _job(1, 0, 3)
    here = JobsOnDevice(_device(), [job])
    here.put(job, 0, 2 * SECOND_NS)
    assert here.next_change_ns() == 2 * SECOND_NS
    assert here.advance(2 * SECOND_NS) == ()
    assert here.next_change_ns() == 5 * SECOND_NS
    assert here.advance(5 * SECOND_NS) == (1,)
    assert here.attained_ns == {1: 3 * SECOND_NS}


# --- rivals on hand-made cases -------------------------------------------------------------------------------------


def test_first_in_first_out_runs_jobs_one_after_another() -> None:
    jobs = [_job(1, 0, 10), _job(2, 1, 1), _job(3, 2, 5)]
    outcome = run_rival(FirstInFirstOut(), jobs, _device())
    assert _ends_s(outcome) == {1: 10, 2: 11, 3: 16}
    assert outcome.changes == 0


def test_shortest_remaining_first_preempts_for_a_shorter_job_only() -> None:
    jobs = [_job(1, 0, 10), _job(2, 1, 1), _job(3, 1, 20)]
    outcome = run_rival(ShortestRemaining(), jobs, _device())
    assert _ends_s(outcome) == {1: 11, 2: 2, 3: 31}
    assert outcome.changes == 1


def test_shortest_remaining_first_pays_for_a_change_and_does_not_preempt_for_less_than_that() -> None:
    jobs = [_job(1, 0, 10), _job(2, 1.5, 1)]
    outcome = run_rival(ShortestRemaining(), jobs, _device(free_changes=False))
    # 1 arrives until 1 s and leaves from 1.5 s on while 2 arrives, which trains until 3.5 s; 1 returns within 1 s
    assert _ends_s(outcome) == {1: 14, 2: 3.5}
    late = [_job(1, 0, 3), _job(2, 2, 1.5)]
    assert run_rival(ShortestRemaining(), late, _device(free_changes=False)).changes == 0


def test_a_job_that_leaves_copies_first_where_memory_is_too_small_for_both() -> None:
    jobs = [_job(1, 0, 10, LARGE), _job(2, 1.5, 1, LARGE)]
    outcome = run_rival(ShortestRemaining(), jobs, _device(free_changes=False))
    assert _ends_s(outcome) == {1: 15, 2: 4.5}  # 2 arrives a second later than where both fit


def test_least_attained_service_lets_new_jobs_past_one_that_had_its_share() -> None:
    jobs = [_job(1, 0, 10), _job(2, 1, 3), _job(3, 1, 1)]
    outcome = run_rival(LeastAttained(thresholds_ns=(4 * SECOND_NS,)), jobs, _device())
    assert _ends_s(outcome) == {1: 14, 2: 7, 3: 8}  # 1 has its first 4 s, then 2 and 3
    assert outcome.changes == 1


def test_packing_keeps_jobs_together_if_their_throughput_rises() -> None:
    jobs = [_job(1, 0, 10), _job(2, 0, 10)]
    outcome = run_rival(Packing(quantum_ns=SECOND_NS), jobs, _device())
    assert _ends_s(outcome) == {1: 10, 2: 10}
    assert outcome.changes == 0


def test_packing_is_undone_if_the_throughput_does_not_rise_and_jobs_take_turns() -> None:
    jobs = [_job(1, 0, 4), _job(2, 0, 4)]
    outcome = run_rival(Packing(quantum_ns=SECOND_NS), jobs, _device(TURNS))
    assert max(_ends_s(outcome).values()) == 8
    assert outcome.changes > 3


def test_zico_runs_two_jobs_whose_peaks_do_not_fit_together() -> None:
    jobs = [_job(1, 0, 10, LARGE), _job(2, 0, 10, LARGE), _job(3, 0, 10, LARGE)]
    outcome = run_rival(ShiftedPairs(), jobs, _device())
    assert _ends_s(outcome) == {1: 10, 2: 10, 3: 20}
    assert outcome.peak_bytes == 90 * REGION  # two states of 10, and activations of 70


@pytest.mark.parametrize("rival", [FirstInFirstOut(), ShortestRemaining(), LeastAttained(thresholds_ns=(10**9,))])
@given(runs_s=st.lists(st.integers(1, 20), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_the_makespan_of_turns_is_the_sum_of_the_run_times(rival: Rival, runs_s: list[int]) -> None:
    jobs = [_job(number, 0, run_s) for number, run_s in enumerate(runs_s, start=1)]
    assert max(_ends_s(run_rival(rival, jobs, _device())).values()) == sum(runs_s)


# --- all methods ---------------------------------------------------------------------------------------------------


@pytest.mark.by_day("filled")
@pytest.mark.parametrize("device", ["gpu", "filled", "half"])
def test_every_method_does_all_the_work_within_the_memory_and_no_faster_than_alone(device: str) -> None:
    case = _case(device=device)
    jobs = case.draw()
    outcomes = [run_rival(rival, jobs, case.true_device()) for rival in rivals(case.jobs.time_scale)]
    outcomes += [run_admission(case.pool(sharing), jobs, case.true_device()) for sharing in Sharing]
    for outcome in outcomes:
        assert sorted(outcome.ends_ns) == [job.number for job in jobs]
        assert 0 < outcome.peak_bytes <= case.budget_bytes
        for job in jobs:
            assert job.alone_ns <= outcome.attained_ns[job.number] * (1 + 1e-6)
            assert outcome.attained_ns[job.number] <= (outcome.ends_ns[job.number] - job.arrival_ns) * (1 + 1e-6)


def test_work_that_is_done_equals_the_work_that_was_demanded_at_every_moment() -> None:
    jobs = [_job(1, 0, 10), _job(2, 0, 4)]
    here = JobsOnDevice(_device(TURNS), jobs)
    for job in jobs:
        here.put(job, 0, 0.0)
    while here.numbers:
        before, times, since_ns = dict(here.left), here.step_ns(), here.now_ns
        done = here.advance(min(here.next_change_ns(), here.now_ns + SECOND_NS))
        passed_ns = here.now_ns - since_ns
        for number, step_ns in times.items():
            assert before[number] - here.left[number] == pytest.approx(passed_ns / step_ns)
        for number in done:
            here.take(number)
    assert here.now_ns == pytest.approx(14 * SECOND_NS)


@pytest.mark.nightly
def test_equal_seeds_give_equal_figures_and_other_seeds_others() -> None:
    def rows(seeds: int) -> list[dict[str, object]]:
        figured, ours = measure(_case(), seeds)
        timed = ("decision_ms", "decision_most_ms")
        return [{k: v for k, v in row.items() if k not in timed} for row in summary(_case(), figured, ours)]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_admission_takes_one_job_at_a_time_where_sharing_cannot_pay() -> None:
    pool = Pool(
        budget_bytes=100 * REGION, region_bytes=REGION, sharing=Sharing.COMPLETION, contention=TURNS, max_jobs=4
    )
    jobs = [_job(1, 0, 100), _job(2, 0, 100)]
    ends_s = _ends_s(run_admission(pool, jobs, _device(TURNS)))
    assert ends_s[2] - ends_s[1] == pytest.approx(100, abs=2)
    assert ends_s[1] == pytest.approx(100, abs=2)


def test_a_long_job_makes_way_for_a_short_one_in_the_simulation_and_all_work_is_done() -> None:
    link = Link(out_bytes_per_s=10**12, in_bytes_per_s=10**12)
    pool = Pool(
        budget_bytes=100 * REGION, region_bytes=REGION, sharing=Sharing.COMPLETION, contention=TURNS, link=link
    )
    outcome = run_admission(pool, [_job(1, 0, 100), _job(2, 20, 5)], _device(TURNS))
    ends_s = _ends_s(outcome)
    assert ends_s[2] == pytest.approx(25, abs=1)
    assert ends_s[1] == pytest.approx(105, abs=1)
    assert outcome.changes == 1
    assert outcome.attained_ns[1] == pytest.approx(100 * SECOND_NS, rel=1e-4)


def test_a_job_that_makes_way_while_host_memory_is_full_is_saved_and_all_work_is_done() -> None:
    link = Link(out_bytes_per_s=10**12, in_bytes_per_s=10**12)
    pool = Pool(
        budget_bytes=100 * REGION,
        region_bytes=REGION,
        sharing=Sharing.COMPLETION,
        contention=TURNS,
        link=link,
        parked_jobs=1,
    )
    jobs = [_job(1, 0, 4_000), _job(2, 100, 2_000), _job(3, 400, 500)]
    ends_s = _ends_s(run_admission(pool, jobs, _device(TURNS)))
    assert ends_s == pytest.approx({3: 905, 2: 2_605, 1: 6_505}, abs=20)


def test_admission_runs_jobs_side_by_side_where_they_do_not_slow_each_other_down() -> None:
    pool = Pool(budget_bytes=100 * REGION, region_bytes=REGION, sharing=Sharing.COMPLETION, contention=IDEAL)
    ends_s = _ends_s(run_admission(pool, [_job(1, 0, 100), _job(2, 0, 100)], _device()))
    assert max(ends_s.values()) < 105


def test_the_queue_hands_out_jobs_in_the_order_that_is_given() -> None:
    pool = Pool(budget_bytes=100 * REGION, region_bytes=REGION, max_jobs=1)
    jobs = [_job(1, 0, 10), _job(2, 0, 10), _job(3, 0, 10)]
    outcome = run_admission(pool, jobs, _device(), order=lambda job: (-job.number,))
    assert sorted(outcome.ends_ns, key=outcome.ends_ns.__getitem__) == [3, 2, 1]


def test_decisions_are_timed_when_that_many_jobs_can_run() -> None:
    row = runnable_row(_case(jobs=10))
    assert row["runnable"] == 10
    assert 0 < row["decision_ms"] <= row["decision_most_ms"]


# --- figures and targets -------------------------------------------------------------------------------------------


def test_figures_are_computed_from_completions_and_owners() -> None:
    jobs = [_job(1, 0, 10), _job(2, 5, 5, owner=2)]
    outcome = Outcome(
        ends_ns={1: 10.0 * SECOND_NS, 2: 15.0 * SECOND_NS}, attained_ns={}, changes=3, peak_bytes=7, decisions=()
    )
    assert figures(jobs, outcome) == {
        "mean_s": 10.0,
        "median_s": 10.0,
        "p99_s": 10.0,
        "makespan_s": 15.0,
        "antt": 1.5,
        "jain": pytest.approx(1.5**2 / (2 * 1.25)),
        "changes": 3,
        "peak_bytes": 7,
    }


def test_jains_index_is_one_for_equals_and_one_over_n_where_one_has_everything() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert jain([0.0, 5.0]) == 0.5


def test_a_target_says_whether_it_is_met() -> None:
    assert Bar(text="a", values=(1.05,), limit=1.05).met
    assert not Bar(text="a", values=(0.9,), limit=1.0, at_most=False).met
    assert Bar(text="a", values=(1.5,), limit=1.0).line() == "NOT MET  a: 1.5 <= 1"
    spread = Bar(text="a", values=(0.5, 0.9, 1.5), limit=1.0)
    assert spread.line() == "met      a: 0.9 <= 1 (seeds from 0.5 to 1.5)"


def test_targets_compare_the_same_seeds() -> None:
    ours = [{"mean_s": 2.0, "p99_s": 9.0, "jain": 0.5}, {"mean_s": 20.0, "p99_s": 9.0, "jain": 0.5}]
    theirs = [{"mean_s": 2.0, "p99_s": 10.0, "jain": 1.0}, {"mean_s": 20.0, "p99_s": 10.0, "jain": 1.0}]
    rows = dict.fromkeys(
        (trace_outcome.SHORTEST_REMAINING, trace_outcome.FIRST_IN_FIRST_OUT, trace_outcome.LEAST_ATTAINED), theirs
    )
    targets = bars({trace_outcome.COMPLETION: ours, **rows})
    assert [(bar.value, bar.met) for bar in targets] == [(1.0, True), (0.9, True), (0.5, False)]


def test_the_simulators_error_is_read_from_rows_of_bench_share(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = [{"stp_foretold": 1.1, "stp_measured": 1.0}, {"stp_foretold": None, "stp_measured": 1.0}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert share_errors(path) == pytest.approx((0.1,))
    path.write_text("{}")
    with pytest.raises(RequestError, match="has no row with stp_foretold and stp_measured"):
        share_errors(path)
    with pytest.raises(RequestError, match="cannot be read as rows of bench share"):
        share_errors(tmp_path / "missing.json")


def test_the_command_prints_the_error_first_and_the_targets_last(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--jobs", "5", "--devices", "filled", "--seeds", "1", "--runnable", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no rows of bench share are given")
    assert len(lines) == 1 + 7 + 1 + 4
    assert all(line.startswith(("met", "NOT MET")) for line in lines[-4:])


def test_json_has_one_object_for_each_case_and_method(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--jobs", "3", "--devices", "gpu", "--seeds", "1", "--runnable", "0", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["jobs"] for row in rows] == [3] * 7
    assert len({row["method"] for row in rows}) == 7


@pytest.mark.parametrize(("option", "value"), [("--load", "0"), ("--time-scale", "-1"), ("--memory", "0.5")])
def test_an_option_out_of_range_is_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--jobs", "3", f"{option}={value}"])
    assert f"argument {option}: '{value}' is no number from" in capsys.readouterr().err


def test_a_job_that_makes_way_without_a_place_in_host_memory_continues_from_its_checkpoint() -> None:
    pool = Pool(
        budget_bytes=100 * REGION,
        region_bytes=REGION,
        sharing=Sharing.COMPLETION,
        contention=TURNS,
        parked_jobs=0,
        max_slowdown=1.5,
    )
    jobs = [_job(1, 0, 100), replace(_job(2, 20, 5), priority=1)]
    ends_s = _ends_s(run_admission(pool, jobs, _device(TURNS)))
    assert ends_s[2] == pytest.approx(25, abs=1)
    assert ends_s[1] == pytest.approx(105, abs=1)
