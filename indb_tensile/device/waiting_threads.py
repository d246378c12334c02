"""How threads wait for each other in trainers, and in processes that measure what holds for trainers.

GOMP_SPINCOUNT is the number of iterations for which a thread of libgomp spins before it sleeps while it waits for its
team. With libgomp's default of 300,000, the spinning threads of a team keep its last thread off the processor when
there are more busy threads than processors. Two jobs of two threads each on two idle cores (2026-11-30) needed 7, 2.4
to 4.3, 1.2 and 0.8 times the processor time for short steps with 300,000, 10,000, 1,000 and no iterations. One job
alone made 535, 476, 540 and 487 such steps a second.
"""

from collections.abc import Mapping
from typing import Final

_SPINS: Final = {"GOMP_SPINCOUNT": "1000"}


def with_short_waits(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process whose threads wait as in trainers. A value that is given counts."""
    return {**_SPINS, **environment}
