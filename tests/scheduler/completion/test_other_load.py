"""Other programs on the device's cores slow jobs down like more jobs, and noise of their use changes no forecast."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.other_load import CoreUse, OtherLoad
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice

from .job_demands import MIB, set_forecasts

_FACTORS = st.lists(st.floats(0.5, 6.0), min_size=3, max_size=3)


@st.composite
def _contentions(draw: st.DrawFn) -> Contention:
    """Return a contention without load, with or without short steps."""
    points = tuple(zip((1, 2, 4, 8), (1.0, *draw(_FACTORS)), strict=True))
    if not draw(st.booleans()):
        return Contention(points=points)
    short = tuple(zip((1, 2, 4, 8), (1.0, *draw(_FACTORS)), strict=True))
    return Contention(points=points, short_points=short, short_ns=draw(st.integers(1, 10_000_000)))


@st.composite
def _loads(draw: st.DrawFn) -> OtherLoad:
    """Return the load of a device of some cores, from none to all of them."""
    cores = draw(st.integers(1, 16))
    used_cores = draw(st.floats(0, 1)) * cores
    return OtherLoad(
        cores=cores, threads=draw(st.integers(1, cores)), used_cores=used_cores, beside_jobs=draw(st.floats(0.5, 20))
    )


_JOBS = st.integers(1, 20)
_STEPS_NS = st.floats(1, 1e9)


@given(contention=_contentions(), load=_loads(), jobs=_JOBS, step_ns=_STEPS_NS)
def test_without_other_programs_forecasts_are_those_of_the_jobs_alone(
    contention: Contention, load: OtherLoad, jobs: int, step_ns: float
) -> None:
    idle = replace(contention, load=replace(load, used_cores=0.0))
    assert idle.slowdown(jobs, step_ns) == contention.slowdown(jobs, step_ns)
    assert replace(contention, load=load).of_jobs() == contention
    assert idle.observed(jobs, 2.5, step_ns).of_jobs() == contention.observed(jobs, 2.5, step_ns)


@given(contention=_contentions(), load=_loads(), more=st.floats(0, 1), jobs=_JOBS, step_ns=_STEPS_NS)
def test_no_job_is_faster_beside_more_jobs_or_beside_more_load(
    contention: Contention, load: OtherLoad, more: float, jobs: int, step_ns: float
) -> None:
    used_cores = load.used_cores + more * (load.cores - load.used_cores)
    before = replace(contention, load=load)
    after = replace(contention, load=replace(load, used_cores=min(used_cores, load.cores)))
    least = before.slowdown(jobs, step_ns) * (1 - 1e-9)
    assert least >= 1 - 1e-9
    assert after.slowdown(jobs, step_ns) >= least
    assert before.slowdown(jobs + 1, step_ns) >= least


@given(forecasts=set_forecasts(4), load=_loads(), more=st.floats(0, 1))
def test_no_step_of_a_set_is_shorter_beside_more_load(forecasts: SetForecasts, load: OtherLoad, more: float) -> None:
    # Only plans without copies: where all jobs are slower, the lanes are less full.
    demands = [replace(demand, trade_offs=demand.trade_offs[:1]) for demand in forecasts.demands]
    used_cores = load.used_cores + more * (load.cores - load.used_cores)
    everybody = (1 << len(demands)) - 1
    times = [
        SetForecasts(
            demands,
            replace(
                forecasts.device,
                contention=replace(forecasts.device.contention, load=replace(load, used_cores=used)),
            ),
            running=everybody,
        ).step_ns(everybody)
        for used in (0.0, load.used_cores, min(used_cores, load.cores))
    ]
    idle = SetForecasts(demands, forecasts.device, running=everybody).step_ns(everybody)
    assert times[0] == idle
    for early, late in pairwise(times):
        assert (early is None) == (late is None)
        assert all(a <= b * (1 + 1e-9) for a, b in zip(early or (), late or (), strict=True))


def test_jobs_share_the_cores_that_are_left_and_are_not_slowed_down_if_these_suffice() -> None:
    half_used = replace(of_cores(2, 1), load=OtherLoad(cores=2, used_cores=1.0, beside_jobs=8.0))
    assert [half_used.slowdown(k) for k in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 4.0]
    little = replace(of_cores(2, 1), load=OtherLoad(cores=2, used_cores=0.25, beside_jobs=8.0))
    assert [little.slowdown(k) for k in (1, 2, 4)] == pytest.approx([1.0, 2 / 1.75, 4 / 1.75])
    threads = replace(of_cores(8, 4), load=OtherLoad(cores=8, threads=4, used_cores=2.0, beside_jobs=8.0))
    assert [threads.slowdown(k) for k in (1, 2, 3)] == pytest.approx([1.0, 8 / 6, 12 / 6])


def test_programs_that_could_use_all_cores_give_way_to_more_jobs() -> None:
    """Two busy threads beside jobs of one thread and equal weight, measured beside one job and beside six."""
    for beside_jobs in (1, 6):
        used_cores = 2 * 2 / (2 + beside_jobs)
        load = OtherLoad(cores=2, used_cores=used_cores, beside_jobs=float(beside_jobs))
        expected = [3.0 if beside_jobs == 1 else 1.0, 6.0 + 2.0, 8.0 + 2.0]
        assert [load.as_jobs(k) for k in (1, 6, 8)] == pytest.approx(expected)


@given(load=_loads(), jobs=st.integers(1, 20))
def test_other_programs_leave_as_much_as_was_measured_to_as_many_jobs(load: OtherLoad, jobs: int) -> None:
    load = replace(load, beside_jobs=float(jobs))
    left_cores = load.cores - load.used_cores
    assume(load.cores / 16 < left_cores < jobs * load.threads and load.used_cores)
    assert load.as_jobs(jobs) == pytest.approx(jobs * load.cores / left_cores)


def test_a_device_without_a_core_left_still_serves_its_jobs() -> None:
    full = replace(of_cores(2, 1), load=OtherLoad(cores=2, used_cores=2.0, beside_jobs=8.0))
    assert [full.slowdown(k) for k in (1, 2)] == [8.0, 16.0]


@given(load=_loads(), used=st.lists(st.floats(0, 17), max_size=30))
def test_the_load_is_never_far_from_the_last_measurement(load: OtherLoad, used: list[float]) -> None:
    for used_cores in used:
        load = load.measured(CoreUse(used_cores=used_cores, beside_jobs=2.0))
        assert abs(load.used_cores - min(used_cores, load.cores)) <= 0.05 * load.cores + 1e-9


@given(
    load=_loads(),
    least=st.floats(0, 1),
    fewest=st.floats(0.5, 20),
    noise=st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1.49)), min_size=2, max_size=30),
)
def test_noise_changes_the_load_at_most_once(
    load: OtherLoad, least: float, fewest: float, noise: list[tuple[float, float]]
) -> None:
    """Whatever the load was before, and wherever the measurements lie, if they differ by at most a twentieth of the
    cores and by less than half as many jobs.
    """
    loads = [load]
    for part, ratio in noise:
        use = CoreUse(used_cores=(least + 0.0499 * part) * load.cores, beside_jobs=fewest * ratio)
        loads.append(loads[-1].measured(use))
    changes = sum(a != b for a, b in pairwise(loads))
    assert changes <= 1


def test_a_device_whose_cores_cannot_be_watched_has_no_load() -> None:
    contention = of_cores(2, 1)
    assert contention.beside(CoreUse(used_cores=1.5, beside_jobs=1.0)) == contention
    gpu = Contention(points=((1, 1.0), (2, 1.5))).beside(CoreUse(used_cores=64.0, beside_jobs=1.0))
    assert gpu.slowdown(2) == 1.5


@given(contention=_contentions(), load=_loads(), jobs=st.integers(2, 8), step_ns=_STEPS_NS)
def test_a_slowdown_that_other_programs_explain_teaches_no_contention(
    contention: Contention, load: OtherLoad, jobs: int, step_ns: float
) -> None:
    beside = replace(contention, load=load)
    taught = beside.observed(jobs, beside.slowdown(jobs, step_ns), step_ns)
    for number in (1, 2, 4, 8):
        for ns in (step_ns, 1e15):
            assert taught.of_jobs().slowdown(number, ns) == pytest.approx(contention.slowdown(number, ns))


def test_what_is_learned_beside_other_programs_is_what_they_do_not_explain() -> None:
    idle = of_cores(2, 1)
    busy = replace(idle, load=OtherLoad(cores=2, used_cores=1.0, beside_jobs=8.0))
    assert busy.slowdown(2) == 2.0
    taught = busy.observed(2, 3.0).of_jobs()
    assert [taught.slowdown(k) for k in (2, 4)] == pytest.approx([idle.observed(2, 1.5).slowdown(k) for k in (2, 4)])


def test_one_job_has_a_throughput_of_one_whatever_other_programs_use() -> None:
    point = TradeOff(peak_bytes=MIB, iteration_ns=1100, compute_ns=1000)
    demands = [
        JobDemand(job=JobId(number), owner=1, priority=0, steps=10, steps_left=10, trade_offs=(point,))
        for number in (1, 2)
    ]
    for used_cores, together in ((0.0, 2.0), (0.5, 2 * 1100 / 1433), (1.0, 2 * 1100 / 2100)):
        contention = replace(of_cores(2, 1), load=OtherLoad(cores=2, used_cores=used_cores, beside_jobs=8.0))
        device = SharedDevice(budget_bytes=9 * MIB, region_bytes=MIB, contention=contention, max_slowdown=2.0)
        forecasts = SetForecasts(demands, device)
        assert forecasts.throughput(0b01) == 1.0
        assert forecasts.throughput(0b11) == pytest.approx(together, rel=1e-3)
    full = replace(of_cores(2, 1), load=OtherLoad(cores=2, used_cores=2.0, beside_jobs=8.0))
    forecasts = SetForecasts(demands, replace(device, contention=full, max_slowdown=1.2))
    assert forecasts.throughput(0b01) == 1.0
    assert forecasts.throughput(0b11) == 0.0, "each of them would be twice as slow as alone"
    forecasts = SetForecasts(demands, replace(device, contention=full, max_slowdown=2.0))
    assert forecasts.throughput(0b11) == pytest.approx(1.0, abs=0.01), "and 16 times as slow as on idle cores"


@pytest.mark.parametrize(
    ("threads", "used_cores", "beside_jobs"),
    [(0, 0.0, 1.0), (1, 2.5, 1.0), (1, -1.0, 1.0), (1, float("nan"), 1.0), (1, 1.0, 0.0), (1, 1.0, float("nan"))],
)
def test_a_load_without_meaning_is_refused(threads: int, used_cores: float, beside_jobs: float) -> None:
    with pytest.raises(InvariantError, match=r"others use .* of 2 cores"):
        OtherLoad(cores=2, threads=threads, used_cores=used_cores, beside_jobs=beside_jobs)
