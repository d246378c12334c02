"""Which of several devices keeps the optimizer's state of which parameter, if they divide it among them.

This is the first stage of ZeRO (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020, section 5.1): each device updates the parameters whose state it keeps, and then all get
the new values of the others. The paper cuts the state into equal stretches of one long vector. Here parameters stay
whole, because a norm over a part of a gradient is no summand of the norm that one device computes. So a network with
one large parameter saves less: its owner keeps all of that parameter's state.

Moving averages of parameters are not divided: every device validates with all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDivision:
    """What all ranks keep: `owners` has the rank that keeps the state of each trained parameter, by its name."""

    rank: int
    owners: Mapping[str, int]

    def owns(self, name: str) -> bool:
        """Return whether this rank keeps the state of the parameter."""
        return self.owners[name] == self.rank

    def owners_of(self, names: Sequence[str]) -> list[int]:
        """Return the owners of these parameters."""
        return [self.owners[name] for name in names]


def divide_state(sizes_bytes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return the owner of each parameter of these sizes, so that all ranks get nearly as many bytes.

    The largest parameter is given away first, always to the rank that has least (Graham, "Bounds on Multiprocessing
    Timing Anomalies", 1969). Ties go to the parameter that comes first and to the lower rank. Rank 0 has most.
    """
    largest_first = sorted(sizes_bytes, key=lambda name: -sizes_bytes[name])  # stable: equal ones stay in order
    taken_bytes = [0] * ranks
    owners = {}
    for name in largest_first:
        owner = min(range(ranks), key=taken_bytes.__getitem__)
        owners[name] = owner
        taken_bytes[owner] += sizes_bytes[name]
    most_first = sorted(range(ranks), key=lambda rank: -taken_bytes[rank])
    return {name: most_first.index(owners[name]) for name in sizes_bytes}
