"""Particle swarm search over vectors of actions: HOME Algorithms 1 and 3.

He et al., "HOME: A Holistic GPU Memory Management Framework for Deep Learning", sections 3.3 and 3.5. A particle is
one action per tensor. In each round every particle goes through its tensors and takes for each, of the action that
the last round's best particle has and the one that the best particle it ever was has, the one that makes it cheaper.

The paper runs 500 particles for 500 rounds; most of that repeats itself, since a round can only bring what the
swarm began with and soon all particles agree. Here costs are remembered by particle, the search ends when the
swarm stands still or after a number of evaluations, and there are fewer particles where each is long. Beside
random particles, some of which act on few tensors and some on all, it begins with those that a caller names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Particle = tuple[int, ...]
Cost = tuple[int, int]  # bytes over the limit, then nanoseconds

_SEED = 20230601
_PATIENCE = 3  # rounds without a better particle after which the swarm stands still


def search(
    choices: Sequence[Sequence[int]],
    starts: Sequence[Particle],
    cost: Callable[[Particle], Cost],
    *,
    particles: int,
    rounds: int,
    evaluations: int,
    enough: Cost = (0, 0),
) -> tuple[Particle, ...]:
    """The best particles that each of the swarm has been, cheapest first and without repeats.

    `choices` are the actions that each tensor may have; the first one is what a tensor does where nothing calls
    for another. No more is looked for once a particle costs no more than `enough`.
    """
    swarm = _Swarm(cost, evaluations)
    swarm.begin(list(dict.fromkeys((*starts, *_random(choices, particles - len(starts))))))
    best, patience = min(swarm.costs), _PATIENCE
    for _ in range(rounds):
        if best <= enough:
            break
        swarm.move()
        patience = _PATIENCE if min(swarm.costs) < best else patience - 1
        best = min(swarm.costs)
        if patience == 0 or swarm.spent:
            break
    ranked = sorted(zip(swarm.costs, swarm.bests, strict=True))
    return tuple(dict.fromkeys(particle for _, particle in ranked))


def _random(choices: Sequence[Sequence[int]], count: int) -> list[Particle]:
    """Particles that leave a part of all tensors as they are, from none to nearly all, and draw for the others."""
    random = np.random.default_rng(_SEED)
    found = []
    for k in range(max(0, count)):
        acts = random.random(len(choices)) < (k + 1) / count
        drawn = random.random(len(choices))
        found.append(
            tuple(
                actions[int(pick * len(actions))] if act else actions[0]
                for actions, act, pick in zip(choices, acts.tolist(), drawn.tolist(), strict=True)
            )
        )
    return found


@dataclass(slots=True)
class _Swarm:
    """All particles: where each is, and the best that each has been."""

    cost: Callable[[Particle], Cost]
    evaluations: int
    known: dict[Particle, Cost] = field(default_factory=dict)
    bests: list[Particle] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    leader: Particle = ()  # the best particle of the last round

    @property
    def spent(self) -> bool:
        """Whether as many particles have been evaluated as may be."""
        return len(self.known) >= self.evaluations

    def begin(self, particles: Sequence[Particle]) -> None:
        self.bests = list(particles)
        self.costs = [self._evaluate(particle) for particle in particles]
        self.leader = min(zip(self.costs, self.bests, strict=True))[1]

    def move(self) -> None:
        """One round: Algorithm 3."""
        moved = []
        for number, best in enumerate(self.bests):
            particle = self._moved(best)
            cost = self._evaluate(particle)
            moved.append((cost, particle))
            if cost < self.costs[number]:
                self.costs[number], self.bests[number] = cost, particle
            if self.spent:
                break
        self.leader = min(moved)[1]

    def _moved(self, best: Particle) -> Particle:
        """The particle's best, with the leader's action wherever that makes it cheaper."""
        now, now_cost = best, self._evaluate(best)
        for place, action in enumerate(self.leader):
            if now[place] == action:
                continue
            other = (*now[:place], action, *now[place + 1 :])
            other_cost = self._evaluate(other)
            if other_cost < now_cost:
                now, now_cost = other, other_cost
        return now

    def _evaluate(self, particle: Particle) -> Cost:
        found = self.known.get(particle)
        if found is None:
            found = self.known[particle] = self.cost(particle)
        return found
