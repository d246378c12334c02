"""Check the Bayesian search for weights."""

import subprocess
import sys

import numpy as np

from indb_tensile.scheduler.policies.bayes import expected_improvement, minimise

STARTS = ((1.0, 1.0), (-1.0, -1.0))


def test_search_comes_near_the_cheapest_point_within_few_evaluations() -> None:
    evaluated: list[tuple[float, ...]] = []

    def cost(point: tuple[float, ...]) -> float:
        evaluated.append(point)
        return (point[0] - 0.3) ** 2 + (point[1] + 0.6) ** 2

    best = minimise(cost, STARTS, evaluations=20, enough=0.0)
    assert len(evaluated) == 20
    assert tuple(evaluated[:2]) == STARTS
    assert all(-1.0 <= weight <= 1.0 for point in evaluated for weight in point)
    assert abs(best[0] - 0.3) < 0.05
    assert abs(best[1] + 0.6) < 0.05
    assert best == minimise(cost, STARTS, evaluations=20, enough=0.0)


def test_search_stops_at_a_cost_that_is_low_enough() -> None:
    assert minimise(lambda point: -point[0], STARTS, evaluations=20, enough=-1.0) == (1.0, 1.0)


def test_first_of_equally_cheap_points_is_returned() -> None:
    assert minimise(lambda _: 7.0, STARTS, evaluations=5, enough=0.0) == (1.0, 1.0)


def test_expected_improvement_is_zero_at_known_points_and_larger_where_costs_fall() -> None:
    """Costs fall from left to right."""
    known_points = np.array([[-0.5], [0.0], [0.5]])
    gain = expected_improvement(known_points, np.array([1.2, 0.0, -1.2]), np.array([[-0.5], [0.5], [-0.9], [0.9]]))
    assert gain[0] < 0.01
    assert gain[1] < 0.01
    assert gain[3] > gain[2] + 0.05


def test_costs_are_weighed_in_their_own_unit() -> None:
    seen, points = np.array([[-0.5], [0.0], [0.5]]), np.array([[-0.9], [0.2], [0.9]])
    costs = np.array([5.0, 3.0, 2.0])
    gain = expected_improvement(seen, costs, points)
    assert np.allclose(expected_improvement(seen, 1000 * costs + 7, points), 1000 * gain)


def test_policies_are_imported_without_the_library_of_this_one() -> None:
    program = "import sys, indb_tensile.scheduler.policies; raise SystemExit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
