"""Puts operators that need no later exchange before the waits for such exchanges, so that both run at the same time.

The sums of the last layers' gradients are there first, so their parameters can be updated beside the exchange of the
other gradients. What touches the same values stays in the order of the recording, so the bits do not change.
What draws random numbers stays in its order, too, as do the starts of exchanges among each other, and the waits for
them: that order is the same on all ranks. A start may come before waits for earlier exchanges. So a rank that has
updated some parameters hands them out while it waits for the sums of others. If a step clips by the norm of all
gradients, its first update waits for all of them, and the norms are computed as the gradients come.
"""

from collections.abc import Sequence

from indb_tensile.executor.capture.exchange_operator import FINISHES, STARTS
from indb_tensile.executor.capture.record import Call, StorageKey


def with_late_waits(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, with every wait for an exchange as late as its order among the random calls allows."""
    first = next((k for k, call in enumerate(calls) if call.target in FINISHES), len(calls))
    ordered, rest = list(calls[:first]), list(calls[first:])
    while rest:
        wait, *others = rest
        ordered.append(wait)
        ready, rest = _ready(others)
        ordered += ready
    return ordered


def _ready(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Return the calls that can run before the first wait among them, and the others, both in their order."""
    ready: list[Call] = []
    later: list[Call] = []
    read: set[StorageKey] = set()  # by the calls in `later`
    written: set[StorageKey] = set()  # by the calls in `later`, as are the values in `made`
    made: set[str] = set()
    random = started = False
    for call in calls:
        starts = call.target in STARTS
        waits = call.target in FINISHES or (started if starts else random and call.random)
        waits |= not (written.isdisjoint(call.reads) and made.isdisjoint(call.arguments))
        waits |= not (written.isdisjoint(call.writes) and read.isdisjoint(call.writes))
        if not waits:
            ready.append(call)
            continue
        later.append(call)
        read.update(call.reads)
        written.update(() if call.view else call.writes)
        made.update(call.makes)
        random |= call.random
        started |= starts or (call.random and call.target not in FINISHES)
    return ready, later
