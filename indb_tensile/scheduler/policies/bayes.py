"""Bayesian optimisation of a few weights between -1 and 1 with a Gaussian process.

AutoSwap section IV-C after Snoek et al., "Practical Bayesian Optimization of Machine Learning Algorithms": a Gaussian
process with a Matern 5/2 kernel (scikit-learn's) is fitted to the costs seen so far, and the next point is the one
with the largest expected improvement. Candidate points are drawn anew in each step, half of them near the best point.
All random numbers come from a fixed seed, so equal costs give an equal search.

The length scale is the most likely of a few, and not scikit-learn's default, a gradient descent: with six costs the
likelihood is often flat, the descent ends at a bound with a warning, and it costs several times as much.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LENGTHS = (0.25, 0.5, 1.0, 2.0)  # length scales, in a cube whose edge is 2
_NOISE = 1e-6  # noise as a share of the costs' variance: keeps the matrix regular if two points nearly coincide
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
    gain = expected_improvement(seen, costs, points)
    return tuple(points[int(np.argmax(gain))].tolist())


def expected_improvement(seen: Floats, costs: Floats, points: Floats) -> Floats:
    """Return the expected improvement of each point over the cheapest point seen, in the unit of the costs."""
    from sklearn.gaussian_process import GaussianProcessRegressor  # takes a second, and only this policy needs it
    from sklearn.gaussian_process.kernels import Matern

    process = GaussianProcessRegressor(
        # At a bound, scikit-learn warns that a length beyond it may be better. `_LENGTHS` are what it may take.
        kernel=Matern(length_scale_bounds=(_LENGTHS[0] / 10, _LENGTHS[-1] * 10), nu=2.5),
        alpha=_NOISE,
        optimizer=_likeliest,
        normalize_y=True,
    )
    mean, deviation = process.fit(seen, costs).predict(points, return_std=True)
    deviation = np.maximum(deviation, np.finfo(np.float64).tiny)
    z = (costs.min() - mean) / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(deviation * (z * below + density), dtype=np.float64)


def _likeliest(unlikelihood: Callable[..., float], theta: Floats, bounds: Floats) -> tuple[Floats, float]:
    """Return the most likely of `_LENGTHS`, as the logarithm that kernels take, and its unlikelihood.

    This is an `optimizer` of scikit-learn, which also passes a first value and its bounds.
    """
    del theta, bounds
    logarithms = [np.log([length]) for length in _LENGTHS]
    return min(((each, unlikelihood(each, eval_gradient=False)) for each in logarithms), key=lambda pair: pair[1])
