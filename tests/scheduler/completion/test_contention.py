"""Check the factors by which jobs slow each other down."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.completion.contention import Contention, Points, of_cores
from indb_tensile.scheduler.completion.processor_shares import ProcessorLoad, fair_parts, weight_of

_SHORT = Contention(points=((1, 1.0), (2, 1.0), (4, 2.0)), short_points=((1, 1.0), (2, 1.5), (4, 3.0)), short_ns=1000)
_FACTORS = st.lists(st.floats(0.5, 8.0), min_size=3, max_size=3)
_NUMBERS = (1, 2, 4, 8)


@st.composite
def _contentions(draw: st.DrawFn) -> Contention:
    """Return measured factors, with short steps or without, of jobs with 1 to 8 processors each."""
    points = tuple(zip(_NUMBERS, (1.0, *draw(_FACTORS)), strict=True))
    contention = Contention(points=points, processors=draw(st.integers(1, 8)))
    if draw(st.booleans()):
        return contention
    short_points = tuple(zip(_NUMBERS, (1.0, *draw(_FACTORS)), strict=True))
    return replace(contention, short_points=short_points, short_ns=1_000_000)


@given(_FACTORS, _FACTORS, st.integers(1, 20), st.floats(0.1, 10.0))
@example([1.0, 8.0, 2.0], [1.0, 8.0, 2.0], 8, 1.0)
def test_no_job_is_faster_beside_more_jobs(
    long_factors: list[float], short_factors: list[float], jobs: int, steps: float
) -> None:
    """Also beyond the largest number that was measured, and where a measured factor is below an earlier one."""
    contention = Contention(
        points=tuple(zip(_NUMBERS, (1.0, *long_factors), strict=True)),
        short_points=tuple(zip(_NUMBERS, (1.0, *short_factors), strict=True)),
        short_ns=1_000_000,
    )
    step_ns = steps * contention.short_ns
    assert 1 <= contention.slowdown(jobs, step_ns) <= contention.slowdown(jobs + 1, step_ns) * (1 + 1e-12)


def test_contention_is_interpolated_and_never_falls() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.5), (4, 1.4), (8, 4.0)))
    expected = [1.0, 1.5, 1.5, 1.5, 2.05, 2.7, 3.35, 4.0, 4.5, 8.0]
    assert [contention.slowdown(k) for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)] == pytest.approx(expected)


def test_cores_are_shared_by_the_threads_beyond_them() -> None:
    assert [of_cores(2, 1).slowdown(k) for k in (1, 2, 3, 4, 8)] == [1, 1, 1.5, 2, 4]
    assert [of_cores(2, 2).slowdown(k) for k in (1, 2, 3)] == [1, 2, 3]
    assert [of_cores(2, 4).slowdown(k) for k in (1, 2, 3)] == [1, 2, 3]


@given(_contentions(), st.integers(1, 8), st.integers(0, 8), st.floats(1e3, 1e9))
def test_edges_slow_steps_down_by_at_least_nothing_and_at_most_like_as_many_jobs(
    contention: Contention, jobs: int, edges: int, step_ns: float
) -> None:
    factor = contention.slowdown(jobs, step_ns, edges)
    assert contention.slowdown(jobs, step_ns) <= factor * (1 + 1e-12)
    assert factor <= contention.slowdown(jobs + edges, step_ns)
    assert factor <= contention.slowdown(jobs, step_ns, edges + 1) * (1 + 1e-12)


@given(_contentions(), st.integers(0, 8), st.integers(1, 8))
def test_an_edge_is_slowed_down_by_at_most_as_many_jobs_and_never_less_beside_more_edges(
    contention: Contention, jobs: int, edges: int
) -> None:
    factor = contention.edge_slowdown(jobs, edges)
    assert 1 <= factor <= contention.slowdown(jobs + edges) * (1 + 1e-12)
    assert factor <= contention.edge_slowdown(jobs, edges + 1) * (1 + 1e-12)


@given(_contentions(), st.integers(1, 8), st.integers(1, 8), st.floats(1e3, 1e9))
def test_an_edge_of_a_job_with_one_processor_counts_like_a_job(
    contention: Contention, jobs: int, edges: int, step_ns: float
) -> None:
    contention = replace(contention, processors=1)
    assert contention.slowdown(jobs, step_ns, edges) == contention.slowdown(jobs + edges, step_ns)
    assert contention.edge_slowdown(jobs, edges) == pytest.approx(contention.slowdown(jobs + edges))


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.data())
def test_steps_and_edges_together_use_all_cores_that_they_want(
    threads: int, jobs: int, edges: int, data: st.DataObject
) -> None:
    cores = data.draw(st.one_of(st.integers(1, 8).map(lambda k: k * threads), st.integers(1, threads)))
    contention = of_cores(cores, threads)
    wanted = jobs * contention.processors + edges
    step, edge = contention.slowdown(jobs, edges=edges), contention.edge_slowdown(jobs, edges)
    used = jobs * contention.processors / step + edges / edge
    assert used == pytest.approx(min(wanted, cores))
    assert contention.processors / step >= (1 - 1e-12) / edge, "a job has no less than an edge, which wants one core"


def test_a_core_that_an_edge_cannot_use_is_left_to_the_steps() -> None:
    two, eight = of_cores(2, 2), of_cores(8, 4)
    assert [two.slowdown(1, edges=1), two.edge_slowdown(1, 1)] == [2.0, 1.0], "a core each"
    assert [two.slowdown(1, edges=2), two.edge_slowdown(1, 2)] == pytest.approx([3.0, 1.5]), "2/3 of a core each"
    assert [two.edge_slowdown(0, edges) for edges in (0, 1, 2, 3)] == pytest.approx([1.0, 1.0, 1.0, 1.5])
    assert [eight.slowdown(2, edges=1), eight.edge_slowdown(2, 1)] == pytest.approx([8 / 7, 1.0])
    assert [eight.slowdown(1, edges=4), eight.edge_slowdown(1, 4)] == [1.0, 1.0]


@given(
    first=st.floats(1, 4), observations=st.lists(st.floats(0.5, 4), min_size=30, max_size=30), jobs=st.integers(2, 8)
)
def test_observations_move_the_contention_towards_themselves(
    first: float, observations: list[float], jobs: int
) -> None:
    contention = Contention(points=((1, 1.0), (jobs, first)))
    for observed in observations:
        contention = contention.observed(jobs, observed)
    low, high = min(1.0, *observations), max(first, *observations)
    assert max(1.0, low) <= contention.slowdown(jobs) <= max(1.0, high)
    assert contention.slowdown(1) == 1.0


def test_first_observations_weigh_more_because_the_measurement_is_a_few_samples_too() -> None:
    contention, factors = Contention(points=((1, 1.0), (2, 1.0))), []
    for _ in range(4):
        contention = contention.observed(2, 2.0)
        factors.append(contention.slowdown(2))
    assert factors == pytest.approx([1.5, 1.5 + 0.5 / 3, 1.75, 1.8125])
    assert contention.observed(2, 3.0).observations == contention.observations == ((2, 2),)
    assert contention.observed(4, 4.0).slowdown(4) == pytest.approx((2 * 1.8125 + 4) / 2), "the first of four jobs"


def test_an_observation_corrects_larger_numbers_of_jobs_as_well_and_no_smaller_ones() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.0), (4, 2.0))).observed(3, 3.0)  # 1.5 was assumed
    assert [contention.slowdown(k) for k in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 1.0, 2.25, 3.0, 6.0])


def test_a_step_is_slowed_down_by_its_length_like_a_short_one_and_like_a_long_one() -> None:
    assert [_SHORT.slowdown(4, ns) for ns in (0, 500, 1000, 2000, 4000)] == pytest.approx([3, 3, 3, 2.5, 2.25])
    assert _SHORT.slowdown(4, 1e12) == pytest.approx(2.0)
    assert _SHORT.slowdown(4) == 2.0
    assert _SHORT.slowdown(1, 1000) == 1.0
    assert of_cores(2, 1).slowdown(4, 1000) == of_cores(2, 1).slowdown(4)


@given(step_ns=st.floats(1000, 1e9), jobs=st.integers(2, 8))
def test_what_a_step_costs_beside_its_operators_does_not_depend_on_its_length(step_ns: float, jobs: int) -> None:
    cost_ns = (_SHORT.slowdown(jobs, step_ns) - _SHORT.slowdown(jobs)) * step_ns
    assert cost_ns == pytest.approx((_SHORT.slowdown(jobs, 1000) - _SHORT.slowdown(jobs)) * 1000, rel=1e-3)


def test_an_observation_of_a_short_step_corrects_short_steps_and_one_of_a_long_step_long_ones() -> None:
    short, long = _SHORT.observed(2, 3.5, 1000), _SHORT.observed(2, 3.0, 1e15)
    factors = [contention.slowdown(2, step_ns) for contention in (short, long) for step_ns in (1e15, 1000)]
    assert factors == pytest.approx([1.0, 2.5, 2.0, 1.5])
    assert [short.slowdown(4, 1000), short.slowdown(4)] == pytest.approx([5.0, 2.0])


@given(
    observations=st.lists(st.floats(1.0, 4), min_size=1, max_size=60),
    jobs=st.integers(2, 8),
    step_ns=st.floats(100, 1e8),
)
def test_observations_of_any_step_move_its_factor_towards_themselves(
    observations: list[float], jobs: int, step_ns: float
) -> None:
    contention = _SHORT
    for slowdown in observations:
        before = contention.slowdown(jobs, step_ns)
        contention = contention.observed(jobs, slowdown, step_ns)
        after = contention.slowdown(jobs, step_ns)
        assert min(before, slowdown) - 1e-9 <= after <= max(before, slowdown) + 1e-9
        assert contention.slowdown(1, step_ns) == 1.0


@pytest.mark.parametrize(
    ("short_points", "short_ns"), [(((1, 1.0),), 0), ((), 5), (((2, 1.0),), 5), (((1, 1.0), (2, -1.0)), 5)]
)
def test_contention_of_short_steps_without_meaning_is_refused(short_points: Points, short_ns: int) -> None:
    with pytest.raises(InvariantError):
        Contention(points=((1, 1.0),), short_points=short_points, short_ns=short_ns)


def test_an_observation_leaves_the_processors_of_a_job_as_they_are() -> None:
    assert of_cores(8, 4).observed(2, 1.5).processors == 4


def test_jobs_without_processors_are_refused() -> None:
    with pytest.raises(InvariantError, match="jobs of 0 processors, not of 1 or more"):
        Contention(points=((1, 1.0),), processors=0)


def test_alone_there_is_no_contention_to_observe() -> None:
    assert of_cores(2, 1).observed(1, 3.0) == of_cores(2, 1)


@pytest.mark.parametrize("points", [(), ((2, 1.0),), ((1, 1.0), (1, 2.0)), ((1, 0.0),), ((1, float("nan")),)])
def test_contention_without_meaning_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvariantError):
        Contention(points=points)


# --- jobs of several weights, and cores that other programs take ----------------------------------------------------


_LOADS = st.sampled_from([1.0, 0.8, 0.64, 0.4096]).map(lambda weight: ProcessorLoad(weight=weight))
_SEVERAL = st.lists(_LOADS, min_size=1, max_size=6)


@given(_contentions(), st.integers(1, 8), st.integers(0, 4), st.integers(0, 16), st.floats(1e3, 1e9))
def test_equal_jobs_on_cores_of_which_nothing_is_taken_have_the_measured_factors(
    contention: Contention, jobs: int, edges: int, cores: int, step_ns: float
) -> None:
    contention = replace(contention, cores=cores)
    loads, steps_ns = [ProcessorLoad()] * jobs, [step_ns] * jobs
    assert contention.slowdowns_of(loads, steps_ns, edges) == contention.slowdowns(jobs, steps_ns, edges)
    assert contention.edge_slowdown_beside(loads, edges) == contention.edge_slowdown(jobs, edges)


@given(_contentions(), _SEVERAL, st.integers(0, 4), st.floats(0, 4), st.floats(0, 4))
def test_the_more_cores_are_taken_the_longer_everybody_takes(
    contention: Contention, loads: list[ProcessorLoad], edges: int, taken: float, more: float
) -> None:
    less, most = (replace(contention, cores=4, taken_cores=cores) for cores in sorted((taken, more)))
    steps_ns = [1e9] * len(loads)
    pairs = zip(less.slowdowns_of(loads, steps_ns, edges), most.slowdowns_of(loads, steps_ns, edges), strict=True)
    assert all(1 <= factor <= larger * (1 + 1e-9) for factor, larger in pairs)
    assert 1 <= less.edge_slowdown_beside(loads, edges) <= most.edge_slowdown_beside(loads, edges) * (1 + 1e-9)


@given(_SEVERAL, st.integers(0, 4), st.integers(1, 4), st.integers(1, 4), st.floats(0, 2))
def test_different_jobs_and_edges_use_no_more_cores_than_there_are(
    loads: list[ProcessorLoad], edges: int, jobs: int, threads: int, taken: float
) -> None:
    """Where jobs slow each other down only because they share cores, which hold so many jobs."""
    cores = jobs * threads
    contention = replace(of_cores(cores, threads), cores=cores, taken_cores=taken)
    wants = [float(min(cores, threads))] * len(loads)
    steps = contention.slowdowns_of(loads, [1e9] * len(loads), edges)
    parts = [want / factor for want, factor in zip(wants, steps, strict=True)]
    parts += [1 / contention.edge_slowdown_beside(loads, edges)] * edges
    weights = [load.weight for load in loads] + [1.0] * edges
    others = [(taken, weight_of(0) * max(1.0, taken))] if taken else []
    fair = fair_parts(
        [*wants, *[1.0] * edges, *(want for want, _ in others)], [*weights, *(w for _, w in others)], cores
    )
    assert parts == pytest.approx(fair[: len(parts)])


def test_two_jobs_on_two_cores_lose_what_other_programs_take_and_one_loses_nothing() -> None:
    contention = replace(of_cores(2, 1), cores=2, taken_cores=0.1)
    assert contention.slowdowns_of([ProcessorLoad()] * 2, [1e9] * 2) == pytest.approx([2 / 1.9] * 2)
    assert contention.slowdowns_of([ProcessorLoad()], [1e9]) == [1.0]
    assert contention.slowdowns_of([ProcessorLoad()], [1e9], edges=1) == pytest.approx([2 / 1.9])
    assert contention.edge_slowdown_beside((), 1) == 1.0


def test_a_long_training_loses_most_where_others_start_up() -> None:
    contention, long = replace(of_cores(2, 1), cores=2), ProcessorLoad(weight=weight_of(5))
    assert contention.slowdowns_of([ProcessorLoad()], [1e9], edges=2) == [1.5]
    assert contention.slowdowns_of([long], [1e9], edges=2) == pytest.approx([1 / (2 * 0.4096 / 2.4096)])
    assert contention.slowdowns_of([long], [1e9], edges=1) == [1.0], "a core each"
    assert contention.edge_slowdown_beside([long], 2) == pytest.approx(2.4096 / 2)


def test_a_job_is_observed_relative_to_what_was_foretold_for_it() -> None:
    contention = Contention(points=((1, 1.0), (2, 1.2)))
    assert contention.observed(2, 1.5, foretold=1.5) == replace(contention, observations=((2, 1),))
    assert contention.observed(2, 1.8, foretold=1.5).slowdown(2) == pytest.approx(1.2 * 1.1)


@pytest.mark.parametrize(("cores", "taken"), [(-1, 0.0), (2, -0.5), (2, float("nan"))])
def test_cores_without_meaning_are_refused(cores: int, taken: float) -> None:
    with pytest.raises(InvariantError, match="taken by other programs"):
        Contention(points=((1, 1.0),), cores=cores, taken_cores=taken)
