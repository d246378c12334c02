"""The search for weights."""

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
