"""Rehearses the exchanges of a step between its ranks, before the job has memory for the step.

The ranks make the step's own exchanges in their order, by the lane that makes them in training, with the same
hand-overs and waits, and compute the step's operators between them (rehearsed_operators.py). So messages, threads and
computations meet as in a step. Transfers that are measured by themselves (network_measurement.py) miss that: in steps
of many short operators exchanges took 1.5 to 2.8 times as long.

Several iterations with exchanges take turns with as many without, on all ranks at once. What exchanges add to an
iteration is their difference, which depends little on how fast the machine happens to be. Iterations follow each
other as in a training, where a rank that is late in one of them is late for the next one, too. When the ranks met
before every iteration, and products of small matrices were in place of the operators, exchanges of six layers of 512
added 0.7 to 1.5 ms less than in steps of 14 ms.

All tensors of exchanges are in one block of memory. Those of one exchange do not overlap, and exchanges that together
need more than there is share it: the values do not matter. The block is larger than the caches, and each exchange has
another part of it than the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from time import perf_counter_ns
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import FINISHES, STARTS
from indb_tensile.executor.capture.owner_operators import hand_out_numbers
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call, Ref, StorageKey, refs, with_leaves
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.rehearsed_operators import OperatorRun, Products, RehearsedOperators
from indb_tensile.executor.ranks.exchange_traffic import exchanges_on_network
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.scheduler.graph import Operator, Stage
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.rehearsed_exchanges import Rehearsal, exchange_stretch
from indb_tensile.scheduler.timing.simulate_ranks import RankRun

# For the exchanges, and as much again for the operators. The measurement of transfers takes so much for five values
# of 8 MiB.
ROOM_BYTES = 40 << 20
LONGEST_NS = 200_000_000  # longer steps are not rehearsed: hand-overs are little of them
_TOTAL_NS = 1_500_000_000
_LEAST_PAIRS, _MOST_PAIRS = 5, 40  # of iterations with exchanges and iterations without
_BLOCK_NS, _MOST_ITERATIONS = 150_000_000, 5  # of a pair, and of each kind in it
_ALIGN_BYTES = 64
_FAST_LINK = Link(out_bytes_per_s=1 << 60, in_bytes_per_s=1 << 60)  # nothing is copied in a rehearsal


def rehearsed_network(
    group: RankGroup, step: CapturedStep, own_ns: Sequence[int], share: RankShare, network: GangNetwork
) -> GangNetwork:
    """Return the network with exchanges that take as long as in a rehearsal of this step. All ranks call it together.

    `own_ns` has the latencies of the operators without other ranks. The step's tensors are in host memory. If it
    cannot be rehearsed, the network is returned as it is. Raises RankLostError if another rank has gone.
    """
    with while_ranks_answer(group):
        rehearsal = rehearse(group, step, own_ns)
    if rehearsal is None:
        return network
    latency_ns, exchanges = exchanges_on_network(step, own_ns, share, replace(network, stretch=1.0), {})
    run = JobRun(graph=step.graph, plan=LIVENESS, latency_ns=latency_ns)
    ranks = [RankRun(run=run, exchanges=exchanges, link=_FAST_LINK, host=host) for host in network.hosts]
    return replace(network, stretch=exchange_stretch(ranks, rehearsal))


def rehearse(
    group: RankGroup, step: CapturedStep, own_ns: Sequence[int], *, room_bytes: int = ROOM_BYTES
) -> Rehearsal | None:
    """Rehearse the exchanges of this step, whose operators take `own_ns` each. All ranks call it together.

    Returns None on all ranks if an exchange does not fit into the room on one, or the step takes long. The state of
    the random generator is restored.
    """
    random_state = torch.get_rng_state()
    work = _work_between(step, own_ns, room_bytes)
    refused = work is None or sum(ns for part, _ in work for _, _, ns in part) > LONGEST_NS
    if _sums_of_ranks(group, [int(refused)]) != [0] or work is None:
        return None
    try:
        operators = RehearsedOperators(step, room_bytes)
        parts = [_Part(computation=operators.computation(part), exchange=exchange) for part, exchange in work]
        with exchanging(group):
            return _rehearsed(group, _Iteration(Products(), parts))
    finally:
        torch.set_rng_state(random_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the step: operators that compute, and then one that starts or ends an exchange, if any."""

    computation: OperatorRun
    exchange: Callable[[], Any] | None


_Work = list[tuple[Operator, Call, int]]  # operators, their calls, and the nanoseconds of each


def _work_between(
    step: CapturedStep, own_ns: Sequence[int], room_bytes: int
) -> list[tuple[_Work, Callable[[], Any] | None]] | None:
    """Return the operators before each one that starts or ends an exchange, with that one, in the captured order.

    Returns None if an exchange does not fit into the room.
    """
    room = _Room(step, room_bytes)
    parts: list[tuple[_Work, Callable[[], Any] | None]] = []
    work: _Work = []
    for own, operator, ns in zip(step.steps, step.graph.operators, own_ns, strict=True):
        call = own.kernel
        if call.target in STARTS or call.target in FINISHES or call.target is hand_out_numbers:
            if not room.holds(call):
                return None
            args, kwargs = room.arguments(call)
            parts.append((work, partial(call.target, *args, **kwargs)))
            work = []
        elif operator.stage is not Stage.UPLOAD:
            work.append((operator, call, ns))
    return [*parts, (work, None)]


class _Room:
    """The memory of the rehearsal, from whose beginning to its end the tensors of exchanges are taken in turn."""

    def __init__(self, step: CapturedStep, size_bytes: int) -> None:
        self._step = step
        self._memory = torch.zeros(size_bytes, dtype=torch.uint8)
        self._end = 0
        self._taken: dict[StorageKey, torch.Tensor] = {}  # of the call at hand

    def holds(self, call: Call) -> bool:
        """Return whether the room has place for all tensors of this call at once."""
        return self._needed_bytes(call) <= len(self._memory)

    def arguments(self, call: Call) -> tuple[Any, Any]:
        """Return the positional and keyword arguments of the call, whose tensors do not overlap."""
        self._taken = {}
        if self._end + self._needed_bytes(call) > len(self._memory):
            self._end = 0
        return with_leaves(call.args, self._make), with_leaves(call.kwargs, self._make)

    def _make(self, item: Any) -> Any:
        return self._value(item.name) if isinstance(item, Ref) else item

    def _value(self, name: str) -> torch.Tensor:
        shape = self._step.values[name]
        if shape.storage not in self._taken:
            self._taken[shape.storage] = self._take(self._size_bytes(shape.storage))
        memory = self._taken[shape.storage]
        whole = memory[: memory.numel() // shape.dtype.itemsize * shape.dtype.itemsize].view(shape.dtype)
        return whole.as_strided(shape.shape, shape.stride, whole.storage_offset() + shape.offset)

    def _take(self, size_bytes: int) -> torch.Tensor:
        begin, self._end = self._end, self._end + _aligned(size_bytes)
        return self._memory[begin : begin + size_bytes]

    def _needed_bytes(self, call: Call) -> int:
        storages = {self._step.values[ref.name].storage for ref in refs((call.args, call.kwargs))}
        return sum(_aligned(self._size_bytes(storage)) for storage in storages)

    def _size_bytes(self, storage: StorageKey) -> int:
        tensor = self._step.tensor_of.get(storage)
        return 0 if tensor is None else self._step.graph.tensors[tensor].size_bytes


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


@dataclass(frozen=True, slots=True)
class _Iteration:
    """An iteration of the step."""

    products: Products
    parts: Sequence[_Part]

    def time_ns(self, count: int, *, exchanges: bool) -> int:
        """Run so many iterations with or without their exchanges, and return the mean time of one."""
        began_ns = perf_counter_ns()
        for _ in range(count):
            for part in self.parts:
                part.computation.run(self.products)
                if exchanges and part.exchange is not None:
                    part.exchange()
        return (perf_counter_ns() - began_ns) // count


def _rehearsed(group: RankGroup, iteration: _Iteration) -> Rehearsal:
    def pair(count: int) -> list[int]:
        times_ns = []
        for exchanges in (True, False):
            _sums_of_ranks(group, [0])  # all begin together
            times_ns.append(iteration.time_ns(count, exchanges=exchanges))
        return times_ns

    pair(1)  # the first one touches the memory and the connections
    pair_ns = sum(pair(1))
    count = max(1, min(_BLOCK_NS // pair_ns, _MOST_ITERATIONS))
    agreed = torch.tensor([count, max(_LEAST_PAIRS, min(_TOTAL_NS // (count * pair_ns), _MOST_PAIRS))])
    group.broadcast(agreed, 0).wait()
    count, pairs = agreed.tolist()
    added_ns = []
    for _ in range(pairs):
        with_ns, without_ns = pair(count)
        added_ns.append(with_ns - without_ns)
    typical_ns = _without_extremes(added_ns)
    own = [round(fmean(typical_ns)), round(stdev(typical_ns) / sqrt(len(typical_ns)))]
    mean_ns, error_ns = (total // group.size() for total in _sums_of_ranks(group, own))
    return Rehearsal(added_ns=mean_ns, error_ns=error_ns)


def _without_extremes(times_ns: Sequence[int]) -> list[int]:
    """Return the times without a tenth at each end, which other programs may have caused."""
    left_out = max(1, len(times_ns) // 10)
    return sorted(times_ns)[left_out:-left_out]


def _sums_of_ranks(group: RankGroup, numbers: Sequence[int]) -> list[int]:
    """Return the sum of each number over all ranks, once all have come."""
    sums = torch.tensor(numbers)
    group.allreduce([sums]).wait()
    return [int(total) for total in sums]
