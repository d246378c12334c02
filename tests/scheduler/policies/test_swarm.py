"""The particle swarm."""

from indb_tensile.scheduler.policies.swarm import Cost, Particle, search

WEIGHTS = ((5, 1, 3), (2, 7, 4), (6, 8, 0))  # by tensor, what each action costs


def test_a_particle_takes_the_leaders_action_wherever_that_makes_it_cheaper() -> None:
    """Costs are 15, 16 and 8: the third leads. The first takes its actions but the second one, the second all."""
    starts = ((0, 0, 1), (2, 1, 0), (1, 1, 2))
    found = search([(0, 1, 2)] * 3, starts, _cost, particles=3, rounds=1, evaluations=1000)
    assert found == ((1, 0, 2), (1, 1, 2))


def test_it_finds_the_best_of_all_particles() -> None:
    assert search([(0, 1, 2)] * 3, (), _cost, particles=12, rounds=50, evaluations=1000)[0] == (1, 0, 2)


def test_what_is_over_the_limit_is_worse_than_whatever_takes_longer() -> None:
    def cost(particle: Particle) -> Cost:
        return (10 * particle.count(1), _cost(particle)[1])

    assert search([(0, 1, 2)] * 3, (), cost, particles=12, rounds=50, evaluations=1000)[0] == (2, 0, 2)


def test_no_particle_is_evaluated_twice_and_the_search_ends_after_so_many() -> None:
    asked: list[Particle] = []

    def cost(particle: Particle) -> Cost:
        asked.append(particle)
        return (0, sum((k * 7919 + action * 104729) % 1009 for k, action in enumerate(particle)))

    search([(0, 1, 2)] * 12, (), cost, particles=20, rounds=500, evaluations=60)
    assert len(set(asked)) == len(asked)
    assert 60 <= len(asked) <= 60 + 12 + 1


def test_no_more_is_looked_for_than_is_enough() -> None:
    starts = ((0, 0, 1), (1, 1, 2))
    assert (
        search([(0, 1, 2)] * 3, starts, _cost, particles=2, rounds=9, evaluations=99, enough=(0, 8)) == starts[::-1]
    )
    assert search([(0, 1, 2)] * 3, starts, _cost, particles=2, rounds=9, evaluations=99, enough=(0, 7))[0] == (
        1,
        0,
        2,
    )


def test_tensors_have_only_the_actions_that_they_may_have() -> None:
    choices = ((0, 1), (0,), (0, 2))
    asked: set[Particle] = set()

    def cost(particle: Particle) -> Cost:
        asked.add(particle)
        return (0, -sum(particle))

    assert search(choices, (), cost, particles=30, rounds=5, evaluations=1000)[0] == (1, 0, 2)
    assert all(action in allowed for p in asked for action, allowed in zip(p, choices, strict=True))


def _cost(particle: Particle) -> Cost:
    return (0, sum(WEIGHTS[tensor][action] for tensor, action in enumerate(particle)))
