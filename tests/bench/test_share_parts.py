"""The parts of the benchmark of sharing that need no server: mixes, methods, measures, rows, bars, estimate."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.bench.commands.share import estimate, print_bars
from indb_tensile.bench.harness.share.share_bars import ShareBar, judge_mix, judged_method
from indb_tensile.bench.harness.share.share_jobs import IterationTimes, job_rows
from indb_tensile.bench.harness.share.share_measures import (
    JobTimes,
    RunMeasures,
    SetShare,
    covered_s,
    measure_run,
    sets_error,
    share_row,
)
from indb_tensile.bench.harness.share.share_methods import METHODS, available
from indb_tensile.bench.harness.share.share_mixes import (
    MIXES,
    AnttBar,
    Mix,
    MixBars,
    MixBudget,
    MixJob,
    MixTraining,
    find_mix,
)
from indb_tensile.bench.harness.share.share_runs import differing
from indb_tensile.bench.harness.share.share_site import MOST_OWNERS, TABLES
from indb_tensile.config import MIB, Settings
from indb_tensile.errors import MissingError
from indb_tensile.request.network_rules import check_architecture, read_architecture

ONE = MixTraining(table="digits", architecture="mlp", epochs=10, batch_size=32, learning_rate=0.1)
OTHER = replace(ONE, table="diabetes", clip_norm=1.0)
MIX = Mix(
    name="mix",
    text="two jobs",
    jobs=(MixJob(training=ONE), MixJob(training=OTHER, after_s=2.0, owner=1)),
    budget=MixBudget(of_largest=1.3),
    about_s=10.0,
)
RUN = RunMeasures(
    makespan_s=10.0, antt=2.0, stp_measured=1.0, worst_slowdown=3.0, first_step_s=1.0, peak_bytes=7 * MIB
)
ROW_KEYS = (
    *("mix", "method", "threads", "makespan_s", "antt", "stp_foretold", "stp_measured", "worst_slowdown"),
    *("first_step_s", "peak_bytes"),
)


def times(
    training: MixTraining, enqueued_s: float, trains_s: float, ended_s: float, left_s: float | None = None
) -> JobTimes:
    return JobTimes(
        job_id=1,
        training=training,
        enqueued_s=enqueued_s,
        trains_s=trains_s,
        stepped_s=trains_s + 0.5,
        left_s=ended_s if left_s is None else left_s,
        ended_s=ended_s,
        needed_bytes=MIB,
        digest="aa",
    )


# --- mixes -----------------------------------------------------------------------------------------------------


def test_a_mix_has_its_distinct_trainings_and_owners() -> None:
    mix = replace(MIX, jobs=(*MIX.jobs, *MIX.jobs))
    assert (mix.trainings, mix.owners) == ((ONE, OTHER), 2)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (MixBudget(size_bytes=123), 123),
        (MixBudget(of_largest=1.3), 132 * MIB),  # 1.3 of the 101 regions of a peak of 100 MB with its addresses
        (MixBudget(of_largest=2.0), 202 * MIB),
        (MixBudget(of_all=1.0), 142 * MIB),
    ],
)
def test_a_budget_follows_from_the_peaks_without_saving(budget: MixBudget, expected: int) -> None:
    assert replace(MIX, budget=budget).budget_bytes({ONE: 100 * MIB, OTHER: 40 * MIB}) == expected


def test_a_memory_without_a_limit_holds_the_first_jobs_with_some_to_spare() -> None:
    mix = replace(MIX, jobs=MIX.jobs * 2, unlimited=2)
    assert mix.without_limit_bytes({ONE: 100 * MIB, OTHER: 40 * MIB}, 1.25) == 178 * MIB


@pytest.mark.parametrize("measures", [{}, {"size_bytes": 1, "of_all": 1.0}])
def test_a_budget_with_no_or_two_measures_is_an_error(measures: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match="exactly one measure"):
        MixBudget(**measures)  # type: ignore[arg-type]


def test_a_lengthened_mix_has_more_epochs_and_waits_longer_for_its_jobs() -> None:
    longer = MIX.lengthened(2.5)
    assert [(job.training.epochs, job.after_s, job.owner) for job in longer.jobs] == [(25, 0.0, 0), (25, 5.0, 1)]
    assert longer.about_s == 25.0
    assert MIX.lengthened(0.001).jobs[0].training.epochs == 1


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_the_site_has_the_tables_and_owners_of_every_mix_and_its_networks_are_accepted(mix: Mix) -> None:
    assert {training.table for training in mix.trainings} <= set(TABLES)
    assert mix.owners <= MOST_OWNERS
    assert mix.jobs[0].after_s == 0
    for training in mix.trainings:
        check_architecture(read_architecture(training.architecture))


def test_there_are_the_mixes_that_the_bars_name() -> None:
    assert [mix.name for mix in MIXES] == [
        *("quickstart", "small", "convolutional_1.3", "convolutional_2", "parameters_1.3", "parameters_2"),
        *("late", "whole", "owners", "priorities"),
    ]
    assert {mix.name: mix.bars for mix in MIXES if mix.bars != MixBars()} == {
        "convolutional_1.3": MixBars(speedup=1.4, of_unlimited=0.9),
        "late": MixBars(antt=AnttBar.LOWER),
        "owners": MixBars(antt=AnttBar.LOWER),
        "priorities": MixBars(makespan=1.08, antt=AnttBar.PRINTED),
    }
    assert find_mix("small").owners == 1
    assert [job.priority for job in find_mix("priorities").jobs] == [0, 10, 20]


def test_an_unknown_mix_is_an_error_that_lists_the_mixes() -> None:
    with pytest.raises(MissingError, match="no mix 'large'") as error:
        find_mix("large")
    assert "quickstart" in error.value.hint


# --- methods ---------------------------------------------------------------------------------------------------


def test_foretold_completion_runs_where_the_controller_has_its_setting() -> None:
    assert [method.name for method in available({"policy"})] == ["turns", "first_fit", "any_price"]
    assert [method.name for method in available({"policy", "sharing"})] == [method.name for method in METHODS]
    with pytest.raises(MissingError, match="no setting 'sharing'"):
        available({"policy"}, ["completion"])
    with pytest.raises(MissingError, match="no method 'zico'"):
        available({"policy"}, ["zico"])


def test_methods_are_settings_of_the_controller() -> None:
    known = {"policy", "max_jobs", "sharing"}
    assert {method.name: method.settings(8, known) for method in METHODS} == {
        "turns": {"policy": "liveness", "max_jobs": 1, "sharing": "any_price"},
        "first_fit": {"policy": "liveness", "max_jobs": 9, "sharing": "any_price"},
        "any_price": {"policy": "tensile+", "max_jobs": 9, "sharing": "any_price"},
        "completion": {"policy": "tensile+", "max_jobs": 9, "sharing": "completion"},
    }
    for method in METHODS[:3]:
        settings = method.settings(3, {"policy"})
        assert settings == {"policy": method.policy, "max_jobs": method.max_jobs or 8}
        Settings(**settings)  # type: ignore[arg-type]


# --- measures and rows -----------------------------------------------------------------------------------------


def test_the_measures_of_two_jobs_side_by_side() -> None:
    jobs = [times(ONE, 0.0, 1.0, 5.0), times(OTHER, 2.0, 3.0, 10.0)]
    alone = {ONE: times(ONE, 0.0, 1.0, 4.0), OTHER: times(OTHER, 0.0, 2.0, 4.0)}
    assert measure_run(jobs, 3 * MIB, alone, [_set(1.1, 1.0)]) == RunMeasures(
        makespan_s=10.0,
        antt=(5 / 4 + 8 / 4) / 2,
        stp_foretold=0.55 * 4 / 9,
        sets_error=1.1,
        stp_measured=(3 + 2) / 9,  # trained from 1 to 10
        worst_slowdown=2.0,
        first_step_s=1.5,
        peak_bytes=3 * MIB,
    )


def test_jobs_in_turns_have_a_throughput_of_one() -> None:
    alone = {ONE: times(ONE, 0.0, 1.0, 4.0)}
    jobs = [times(ONE, 0.0, 1.0, 4.0), times(ONE, 0.0, 5.0, 8.0)]
    assert measure_run(jobs, MIB, alone).stp_measured == 1.0


def test_a_run_without_times_alone_has_no_ratios_to_them() -> None:
    measures = measure_run([times(ONE, 0.0, 1.0, 4.0)], MIB)
    assert (measures.antt, measures.stp_measured, measures.worst_slowdown) == (None, None, None)
    assert (measures.makespan_s, measures.first_step_s) == (4.0, 1.5)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8))
def test_covered_time_counts_each_moment_once(drawn: list[tuple[int, int]]) -> None:
    spans = [(float(start), float(start + length)) for start, length in drawn]
    moments = {moment for start, length in drawn for moment in range(start, start + length)}
    assert covered_s(spans) == len(moments)


def test_a_run_as_it_was_foretold_has_the_throughput_that_is_measured() -> None:
    """Two jobs of 6 s alone, of which the second begins 2 s later. Side by side they run at 0.75 of their speed."""
    jobs = [times(ONE, 0.0, 0.0, 7.5), replace(times(OTHER, 0.0, 2.0, 9.5), job_id=2)]
    alone = {ONE: times(ONE, 0.0, 0.0, 6.0), OTHER: times(OTHER, 0.0, 1.0, 7.0)}
    rows = [(1, 1.0, 2.0), (1, 0.75, 5.5), (2, 0.75, 5.5), (2, 1.0, 2.0)]
    sets = [replace(_set(1.5, None, seconds), job_id=job, speed_foretold=speed) for job, speed, seconds in rows]
    measures = measure_run(jobs, MIB, alone, sets)
    assert measures.stp_measured == pytest.approx(12 / 9.5)
    assert measures.stp_foretold == pytest.approx((2 + 0.75 * 5.5 * 2 + 2) / 9.5)
    first, second = job_rows(
        {"round": 1}, jobs, alone, sets, {2: IterationTimes(foretold_ns=10**6, measured_ns=2 * 10**6)}
    )
    assert (first["foretold_s"], first["alone_s"], first["iteration_ms"]) == (6.12, 6.0, None)
    assert second == {
        "round": 1,
        "job": 2,
        "training": "diabetes, 10 epochs",
        "waits_s": 2.0,
        "first_s": 0.5,
        "first_alone_s": 0.5,
        "trains_s": 7.5,
        "closes_s": 0.0,
        "alone_s": 6.0,
        "foretold_s": 6.12,
        "ratio": 1.02,
        "iteration_ms": 2.0,
        "iteration_foretold_ms": 1.0,
    }


def test_what_a_job_does_after_it_has_left_the_device_counts_in_no_throughput() -> None:
    jobs = [times(ONE, 0.0, 0.0, 7.0, left_s=6.0), times(ONE, 0.0, 6.0, 13.0, left_s=12.0)]
    alone = {ONE: times(ONE, 0.0, 0.0, 7.0, left_s=6.0)}
    assert measure_run(jobs, MIB, alone).stp_measured == 1.0
    assert measure_run(jobs, MIB, alone).makespan_s == 13.0
    assert [row["closes_s"] for row in job_rows({}, jobs, alone, (), {})] == [1.0, 1.0]


def test_without_recorded_sets_nothing_is_foretold() -> None:
    jobs, alone = [times(ONE, 0.0, 0.0, 6.0)], {ONE: times(ONE, 0.0, 0.0, 6.0)}
    assert measure_run(jobs, MIB, alone).stp_foretold is None
    (row,) = job_rows({}, jobs, alone, (), {})
    assert (row["foretold_s"], row["ratio"]) == (None, None)


def test_the_error_of_sets_is_that_of_several_jobs_which_were_measured() -> None:
    first, second = _set(1.8, 1.6, 4.0), _set(1.5, 1.5, 2.0)
    assert sets_error([first, second, _set(9.0, None), _set(1.0, 0.5, jobs=1)]) == pytest.approx(
        (1.8 * 2 + 1.5) / (1.6 * 2 + 1.5)
    )
    assert sets_error([_set(1.8, None), _set(1.0, 1.0, jobs=1)]) is None


def _set(foretold: float, measured: float | None, seconds: float = 4.0, jobs: int = 2) -> SetShare:
    return SetShare(
        job_id=1,
        stp_foretold=foretold,
        stp_measured=measured,
        speed_foretold=foretold / jobs,
        seconds=seconds,
        jobs=jobs,
    )


def test_a_row_has_the_medians_of_the_rounds_and_the_largest_peak() -> None:
    runs = [RUN, replace(RUN, makespan_s=30.0, antt=5.0, peak_bytes=9 * MIB), replace(RUN, makespan_s=12.3456)]
    row = share_row("mix", "turns", 2, runs)
    assert tuple(row) == ROW_KEYS
    assert row == {
        "mix": "mix",
        "method": "turns",
        "threads": 2,
        "makespan_s": 12.35,
        "antt": 2.0,
        "stp_foretold": None,
        "stp_measured": 1.0,
        "worst_slowdown": 3.0,
        "first_step_s": 1.0,
        "peak_bytes": 9 * MIB,
    }


# --- bars ------------------------------------------------------------------------------------------------------


def rounds(**factors: float) -> dict[str, list[RunMeasures]]:
    """Return three rounds of each method, whose makespan and ANTT are multiples of those of RUN.

    The machine is twice as slow in the second round, and the third is disturbed for the first method.
    """
    first = next(iter(factors))
    return {
        method: [
            replace(RUN, makespan_s=10 * factor * pace, antt=2 * factor * pace)
            for pace in (1.0, 2.0, 5.0 if method == first else 1.0)
        ]
        for method, factor in factors.items()
    }


def test_the_rival_with_the_worst_median_ratio_of_rounds_is_the_best() -> None:
    bars = list(judge_mix(MIX, 1, rounds(completion=1.0, turns=2.0, first_fit=0.8, any_price=3.0)))
    assert bars == [
        ShareBar(
            mix="mix",
            threads=1,
            text="makespan over that of first_fit",
            figure=1.25,
            asked="at most 1.03",
            met=False,
        ),
        ShareBar(
            mix="mix",
            threads=1,
            text="ANTT over that of first_fit",
            figure=1.25,
            asked="at most 1.03 of it",
            met=False,
        ),
    ]


@pytest.mark.parametrize(
    ("bar", "factor", "met"),
    [
        (AnttBar.CLOSE, 1.02, True),
        (AnttBar.CLOSE, 1.04, False),
        (AnttBar.LOWER, 1.0, False),
        (AnttBar.LOWER, 0.99, True),
        (AnttBar.PRINTED, 9.0, None),
    ],
)
def test_turnaround_is_judged_as_the_mix_says(bar: AnttBar, factor: float, met: bool | None) -> None:
    mix = replace(MIX, bars=MixBars(makespan=1.08, antt=bar))
    makespan, turnaround = judge_mix(mix, 1, rounds(completion=factor, turns=1.0))
    assert (turnaround.met, makespan.met) == (met, factor <= 1.08)


def test_speed_and_throughput_are_judged_for_jobs_of_one_thread() -> None:
    mix = replace(MIX, bars=MixBars(speedup=1.4, of_unlimited=0.9), unlimited=2)
    runs = rounds(completion=1.0, turns=1.5, first_fit=1.3)
    runs["unlimited"] = [replace(RUN, stp_measured=1.25)] * 3
    bars = list(judge_mix(mix, 1, runs))
    assert [(bar.text, round(bar.figure, 2), bar.met) for bar in bars[2:]] == [
        ("times as fast as turns", 1.5, True),
        ("times as fast as first_fit", 1.3, False),
        ("STP over that of 2 without a limit", 0.8, False),
    ]
    assert len(list(judge_mix(mix, 2, runs))) == 2


@pytest.mark.parametrize(("foretold", "met"), [(1.09, True), (0.91, True), (1.11, False), (0.89, False)])
def test_a_foretold_throughput_is_judged_once_it_is_known(foretold: float, met: bool) -> None:
    runs = {"completion": [replace(RUN, stp_foretold=foretold)] * 3, "turns": [RUN] * 3}
    assert [bar.met for bar in judge_mix(MIX, 1, runs)][2:] == [met]


def test_the_error_in_undisturbed_iterations_is_printed_and_not_judged() -> None:
    runs = {"completion": [replace(RUN, stp_foretold=1.3, sets_error=error) for error in (1.0, 1.05, 1.5)]}
    bars = list(judge_mix(MIX, 1, {**runs, "turns": [RUN] * 3}))[2:]
    assert [(bar.text, bar.figure, bar.met) for bar in bars] == [
        ("foretold over measured STP", 1.3, False),
        ("the same in undisturbed iterations", 1.05, None),
    ]


def test_without_foretold_completion_the_admission_before_it_is_judged() -> None:
    assert judged_method(["turns", "any_price"]) == "any_price"
    assert judged_method(["turns", "completion", "any_price"]) == "completion"
    assert list(judge_mix(MIX, 1, rounds(turns=1.0))) == []
    texts = [bar.text for bar in judge_mix(MIX, 1, rounds(any_price=1.0, turns=1.0))]
    assert texts == ["makespan over that of turns", "ANTT over that of turns"]
    assert list(judge_mix(MIX, 1, rounds(any_price=1.0))) == []  # it has no rival


def test_the_estimate_counts_every_run() -> None:
    mix = replace(MIX, about_s=58.0)
    # per mix: 58 s alone and 8 s for the controllers, then 2 rounds of 3 methods and 58 s alone
    assert estimate([mix] * 10, METHODS[:3], 2, 1) == (
        "mixes: 10, methods: 3, rounds: 2, minutes on two idle cores: about 88"
    )
    assert estimate([mix] * 10, METHODS[:3], 2, 2).endswith("about 177")


def test_a_job_with_other_parameters_than_alone_is_named() -> None:
    jobs = [times(ONE, 0.0, 1.0, 4.0), replace(times(OTHER, 0.0, 1.0, 4.0), digest="bb")]
    assert differing("mix, turns, round 1", jobs, {ONE: "aa", OTHER: "bb"}) == []
    assert differing("mix, turns, round 1", jobs, {ONE: "aa", OTHER: "aa"}) == [
        "mix, turns, round 1: the parameters of job 2 differ from those of the same training alone"
    ]


def test_the_table_of_bars_says_whether_each_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    mix = replace(MIX, bars=MixBars(antt=AnttBar.PRINTED))
    print_bars(list(judge_mix(mix, 1, rounds(completion=1.1, turns=1.0))), ["turns", "completion"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].strip() == "bars of completion"
    assert printed[2].split()[-6:] == ["1.100", "at", "most", "1.03", "NOT", "MET"]
    assert printed[3].split()[-1] == "-"
