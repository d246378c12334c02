"""Particle swarm search over vectors of actions: HOME Algorithms 1 and 3.

He et al., "HOME: A Holistic GPU Memory Management Framework for Deep Learning", sections 3.3 and 3.5. A particle is
one action for each tensor. In each round every particle goes through its tensors. For each tensor it compares the
action of the last round's best particle with the action of its own best position, and takes the one that makes it
cheaper.

The paper runs 500 particles for 500 rounds. Most of that is repetition, because a round can only combine the actions
of the initial swarm, and soon all particles agree. Here costs are cached by particle, the search ends when the swarm
stops improving or after a number of evaluations, and there are fewer particles if each is long. The swarm begins with
particles that the caller names and with random particles, some of which act on few tensors and some on all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Particle = tuple[int, ...]
Cost = tuple[int, int]  # bytes over the limit, then nanoseconds

_SEED = 20230601
_STAGNANT_ROUNDS = 3  # rounds without a better particle after which the swarm counts as converged


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
    """Return the best position of each particle, cheapest first and without repeats.

    `choices` are the actions of each tensor; the first is the default action. The search ends when a particle costs
    at most `enough`.
    """
    swarm = _Swarm(cost, evaluations)
    swarm.begin(list(dict.fromkeys((*starts, *_random(choices, particles - len(starts))))))
    best, rounds_left = min(swarm.costs), _STAGNANT_ROUNDS
    for _ in range(rounds):
        if best <= enough:
            break
        swarm.move()
        rounds_left = _STAGNANT_ROUNDS if min(swarm.costs) < best else rounds_left - 1
        best = min(swarm.costs)
        if rounds_left == 0 or swarm.spent:
            break
    ranked = sorted(zip(swarm.costs, swarm.bests, strict=True))
    return tuple(dict.fromkeys(particle for _, particle in ranked))


def _random(choices: Sequence[Sequence[int]], count: int) -> list[Particle]:
    """Draw particles that leave a fraction of all tensors at their default action, from nearly all to none, and draw
    the others.
    """
    random = np.random.default_rng(_SEED)
    particles = []
    for k in range(max(0, count)):
        acts = random.random(len(choices)) < (k + 1) / count
        drawn = random.random(len(choices))
        particles.append(
            tuple(
                actions[int(pick * len(actions))] if act else actions[0]
                for actions, act, pick in zip(choices, acts.tolist(), drawn.tolist(), strict=True)
            )
        )
    return particles


@dataclass(slots=True)
class _Swarm:
    """All particles: the best position of each, and its cost."""

    cost: Callable[[Particle], Cost]
    evaluations: int
    known: dict[Particle, Cost] = field(default_factory=dict)
    bests: list[Particle] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    leader: Particle = ()  # the best particle of the last round

    @property
    def spent(self) -> bool:
        """Return whether the allowed number of particles has been evaluated."""
        return len(self.known) >= self.evaluations

    def begin(self, particles: Sequence[Particle]) -> None:
        self.bests = list(particles)
        self.costs = [self._evaluate(particle) for particle in particles]
        self.leader = min(zip(self.costs, self.bests, strict=True))[1]

    def move(self) -> None:
        """Run one round: Algorithm 3."""
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
        """Return the particle's best position, with the leader's action wherever that makes it cheaper."""
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
        cost = self.known.get(particle)
        if cost is None:
            cost = self.known[particle] = self.cost(particle)
        return cost
