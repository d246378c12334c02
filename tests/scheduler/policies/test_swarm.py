"""Check the particle swarm search."""

from indb_tensile.scheduler.policies.swarm import Cost, Particle, search

WEIGHTS = ((5, 1, 3), (2, 7, 4), (6, 8, 0))  # by tensor: the cost of each action


def test_particle_takes_those_actions_of_the_leader_that_make_it_cheaper() -> None:
    """The costs are 15, 16 and 8, so the third particle leads. The first takes all its actions but the second one,
    the second takes all.
    """
    starts = ((0, 0, 1), (2, 1, 0), (1, 1, 2))
    best = search([(0, 1, 2)] * 3, starts, _cost, particles=3, rounds=1, evaluations=1000)
    assert best == ((1, 0, 2), (1, 1, 2))


def test_search_finds_the_best_of_all_particles() -> None:
    assert search([(0, 1, 2)] * 3, (), _cost, particles=12, rounds=50, evaluations=1000)[0] == (1, 0, 2)


def test_exceeding_the_limit_is_worse_than_any_time() -> None:
    def cost(particle: Particle) -> Cost:
        return (10 * particle.count(1), _cost(particle)[1])

    assert search([(0, 1, 2)] * 3, (), cost, particles=12, rounds=50, evaluations=1000)[0] == (2, 0, 2)


def test_no_particle_is_evaluated_twice_and_the_evaluations_are_limited() -> None:
    evaluated: list[Particle] = []

    def cost(particle: Particle) -> Cost:
        evaluated.append(particle)
        return (0, sum((k * 7919 + action * 104729) % 1009 for k, action in enumerate(particle)))

    search([(0, 1, 2)] * 12, (), cost, particles=20, rounds=500, evaluations=60)
    assert len(set(evaluated)) == len(evaluated)
    assert 60 <= len(evaluated) <= 60 + 12 + 1


def test_search_stops_at_a_cost_that_is_low_enough() -> None:
    starts = ((0, 0, 1), (1, 1, 2))
    assert (
        search([(0, 1, 2)] * 3, starts, _cost, particles=2, rounds=9, evaluations=99, enough=(0, 8)) == starts[::-1]
    )
    assert search([(0, 1, 2)] * 3, starts, _cost, particles=2, rounds=9, evaluations=99, enough=(0, 7))[0] == (
        1,
        0,
        2,
    )


def test_particles_have_only_allowed_actions() -> None:
    choices = ((0, 1), (0,), (0, 2))
    evaluated: set[Particle] = set()

    def cost(particle: Particle) -> Cost:
        evaluated.add(particle)
        return (0, -sum(particle))

    assert search(choices, (), cost, particles=30, rounds=5, evaluations=1000)[0] == (1, 0, 2)
    assert all(action in allowed for p in evaluated for action, allowed in zip(p, choices, strict=True))


def _cost(particle: Particle) -> Cost:
    return (0, sum(WEIGHTS[tensor][action] for tensor, action in enumerate(particle)))
