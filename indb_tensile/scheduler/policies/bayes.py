"""Bayesian optimisation of a few weights between -1 and 1 with a Gaussian process.

AutoSwap section IV-C after Snoek et al., "Practical Bayesian Optimization of Machine Learning Algorithms": a Gaussian
process with a Matern 5/2 kernel is fitted to the costs seen so far, and the next point is the one with the largest
expected improvement. The length scale is the most likely of a few. Candidate points are drawn anew in each step, half
of them near the best point. All random numbers come from a fixed seed, so equal costs give an equal search.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LENGTHS = (0.25, 0.5, 1.0, 2.0)  # length scales, in a cube whose edge is 2
_NOISE = 1e-6  # as a share of the costs' variance: keeps the matrix regular if two points nearly coincide
_POINTS = 256
_NEAR = 0.15  # standard deviation of the points around the best one
_SEED = 20181018


def minimise(
    cost: Callable[[tuple[float, ...]], float],
    starts: Sequence[tuple[float, ...]],
    *,
    evaluations: int,
    enough: float,
) -> tuple[float, ...]:
    """Return the cheapest weights found. All starts are tried. The search stops when the cost is at most `enough`."""
    random = np.random.default_rng(_SEED)
    seen = list(dict.fromkeys(starts))
    costs: list[float] = []
    for point in seen:
        costs.append(cost(point))
        if costs[-1] <= enough:
            return point
    while len(seen) < evaluations:
        point = _next_point(np.array(seen), np.array(costs), random)
        seen.append(point)
        costs.append(cost(point))
        if costs[-1] <= enough:
            break
    return seen[int(np.argmin(costs))]


def _next_point(seen: Floats, costs: Floats, random: np.random.Generator) -> tuple[float, ...]:
    """Return the drawn point with the largest expected improvement."""
    best = seen[int(np.argmin(costs))]
    far = random.uniform(-1.0, 1.0, size=(_POINTS, seen.shape[1]))
    near = np.clip(best + random.normal(0.0, _NEAR, size=far.shape), -1.0, 1.0)
    points = np.concatenate((far, near))
    spread = float(costs.std()) or 1.0
    gain = expected_improvement(seen, (costs - costs.mean()) / spread, points)
    return tuple(points[int(np.argmax(gain))].tolist())


def expected_improvement(seen: Floats, costs: Floats, points: Floats) -> Floats:
    """Return the expected improvement of each point over the cheapest point seen. Costs have mean 0 and
    variance 1.
    """
    length = max(_LENGTHS, key=lambda length: _likelihood(seen, costs, length))
    inverse = np.linalg.inv(_kernel(seen, seen, length) + _NOISE * np.eye(len(seen)))
    across = _kernel(points, seen, length)
    mean = across @ inverse @ costs
    deviation = np.sqrt(np.maximum(1.0 - np.einsum("ij,jk,ik->i", across, inverse, across), 1e-12))
    z = (costs.min() - mean) / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(deviation * (z * below + density), dtype=np.float64)


def _likelihood(seen: Floats, costs: Floats, length: float) -> float:
    """Return the logarithm of the marginal likelihood, without its constant."""
    matrix = _kernel(seen, seen, length) + _NOISE * np.eye(len(seen))
    _, logarithm = np.linalg.slogdet(matrix)
    return float(-0.5 * (costs @ np.linalg.solve(matrix, costs) + logarithm))


def _kernel(a: Floats, b: Floats, length: float) -> Floats:
    distance = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)) * (math.sqrt(5.0) / length)
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance), dtype=np.float64)
