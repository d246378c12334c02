"""The search for weights."""

import subprocess
import sys

import numpy as np

from indb_tensile.scheduler.policies.bayes import expected_improvement, minimise

STARTS = ((1.0, 1.0), (-1.0, -1.0))


def test_it_comes_near_the_cheapest_point_within_a_few_evaluations() -> None:
    asked: list[tuple[float, ...]] = []

    def cost(point: tuple[float, ...]) -> float:
        asked.append(point)
        return (point[0] - 0.3) ** 2 + (point[1] + 0.6) ** 2

    found = minimise(cost, STARTS, evaluations=20, enough=0.0)
    assert len(asked) == 20
    assert tuple(asked[:2]) == STARTS
    assert all(-1.0 <= weight <= 1.0 for point in asked for weight in point)
    assert abs(found[0] - 0.3) < 0.05
    assert abs(found[1] + 0.6) < 0.05
    assert found == minimise(cost, STARTS, evaluations=20, enough=0.0)


def test_it_stops_where_nothing_better_can_be() -> None:
    assert minimise(lambda point: -point[0], STARTS, evaluations=20, enough=-1.0) == (1.0, 1.0)


def test_the_first_of_equally_cheap_points_is_taken() -> None:
    assert minimise(lambda _: 7.0, STARTS, evaluations=5, enough=0.0) == (1.0, 1.0)


def test_nothing_is_expected_where_the_cost_is_known_and_more_where_it_falls() -> None:
    """Costs fall from left to right; at the points themselves nothing is left to gain."""
    seen = np.array([[-0.5], [0.0], [0.5]])
    gain = expected_improvement(seen, np.array([1.2, 0.0, -1.2]), np.array([[-0.5], [0.5], [-0.9], [0.9]]))
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
