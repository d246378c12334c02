"""Lists what the exchanges of a captured step send and receive, and adds the network's time to their latencies.

The transfers follow from the arguments of the operators, as the exchanges make them with values in host memory
(part_exchange.py, pair_exchange.py, owner_exchange.py and the library's all-reduce). So they are known before
anything is exchanged, and each rank knows those of all ranks. Ranks may have different numbers of parts, and own
different numbers of values. All have to take part in a transfer before the next one, so the rank with the busiest
link decides how long each of them takes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from indb_tensile.executor.capture.exchange_operator import (
    FINISHES,
    STARTS,
    finish_all_reduce_,
    finish_sum_parts_,
    start_all_reduce_,
    start_sum_parts_,
)
from indb_tensile.executor.capture.exchange_room import (
    is_chained,
    is_small_pair,
    owner_lengths,
    pair_width,
    piece_width,
)
from indb_tensile.executor.capture.owner_operators import (
    finish_hand_out_,
    finish_sum_at_owners_,
    hand_out_numbers,
    start_hand_out_,
    start_sum_at_owners_,
)
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call, refs
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.ranks.chain_exchange import chain_ticks
from indb_tensile.executor.ranks.owner_exchange import pieces
from indb_tensile.scheduler.exchange_times import ExchangeTime, beside_each_other
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.timing.network_times import Collective, GangNetwork, NetworkTimes, Transfer

_AT_ONCE = (hand_out_numbers,)  # operators that start an exchange and wait for its end


def exchanges_of(step: CapturedStep) -> list[Call]:
    """Return one call for each exchange of the step, in order."""
    return [own.kernel for own in step.steps if own.kernel.target in STARTS or own.kernel.target in _AT_ONCE]


def awaiting_signatures(step: CapturedStep) -> frozenset[str]:
    """Return the signatures of the operators whose latency is the time of an exchange."""
    return frozenset(own.kernel.signature for own in step.steps if _awaits(own.kernel))


def stored_signatures(steps: Iterable[CapturedStep], network: GangNetwork | None) -> dict[str, str]:
    """Return the signatures under which trainings on this network store the latencies of operators that wait for an
    exchange, by the operators' own signatures. Without a network nothing is exchanged.
    """
    if network is None:
        return {}
    waiting = frozenset[str]().union(*map(awaiting_signatures, steps))
    return {signature: network.signature_of(signature) for signature in waiting}


def copy_loss_of(
    steps: Iterable[CapturedStep], network: GangNetwork | None, known: Mapping[str, tuple[int, int]]
) -> CopyLoss:
    """Return what copies cost operators beside them, which run on this network's devices at once.

    Nothing, once such a job has trained there, because it is then in the `known` latencies.
    """
    if network is None or not known.keys().isdisjoint(stored_signatures(steps, network).values()):
        return FREE_COPIES
    return network.times.copy_loss


def latencies_on_network(
    step: CapturedStep,
    latency_ns: Sequence[int],
    share: RankShare,
    network: GangNetwork,
    known: Mapping[str, tuple[int, int]],
) -> tuple[int, ...]:
    """Return the latencies of the step's operators with the network's time in those that wait for an exchange.

    `latency_ns` has the operators' own time, without other devices. `known` has stored latencies, by signature. An
    exchange that a training has measured on this network has its time from there, and others are foretold. Operators
    that run beside a foretold exchange take longer by what it takes of their processor. With a measured exchange that
    is in their latencies.
    """
    own_ns, exchanges = exchanges_on_network(step, latency_ns, share, network, known)
    return beside_each_other(step.graph, own_ns, dict(enumerate(exchanges)))


def exchanges_on_network(
    step: CapturedStep,
    latency_ns: Sequence[int],
    share: RankShare,
    network: GangNetwork,
    known: Mapping[str, tuple[int, int]],
) -> tuple[tuple[int, ...], tuple[ExchangeTime, ...]]:
    """Return the latencies of the step's operators without exchanges beside them, and the time of each exchange.

    The arguments are those of `latencies_on_network`. An operator that exchanges at once has the network's time in
    its latency.
    """
    own_ns = []
    exchanges: dict[int, ExchangeTime] = {}
    for own, operator, ns in zip(step.steps, step.graph.operators, latency_ns, strict=True):
        call, time = own.kernel, ExchangeTime.free(ns)
        if _awaits(call):
            measured = known.get(network.signature_of(call.signature))
            time = (
                exchange_time(step, call, share, network.times).with_work(ns).stretched(network.stretch)
                if measured is None
                else ExchangeTime.free(measured[0])
            )
        own_ns.append(time.alone_ns)
        if operator.awaits is not None:
            exchanges[operator.awaits] = time
    return tuple(own_ns), tuple(time for _, time in sorted(exchanges.items(), key=lambda item: item[0]))


def exchange_time(step: CapturedStep, call: Call, share: RankShare, times: NetworkTimes) -> ExchangeTime:
    """Return the time of the transfers of this exchange. Each ends when it has ended on all ranks.

    What operators of this rank lose to them follows from this rank's own bytes.
    """
    shares = [replace(share, rank=rank) for rank in range(share.ranks)]
    at_once = zip(*(_transfers(step, call, own) for own in shares), strict=True)
    time = ExchangeTime.free(0)
    for transfers in at_once:
        of_ranks = [times.foretell([transfer] if transfer.size_bytes else []) for transfer in transfers]
        time = time.then(of_ranks[share.rank].ending_with(of_ranks))
    return time


def transfers_of(step: CapturedStep, call: Call, share: RankShare) -> list[Transfer]:
    """Return the transfers of this exchange, in order, as this rank sees them."""
    return [transfer for transfer in _transfers(step, call, share) if transfer.size_bytes]


def _awaits(call: Call) -> bool:
    return call.target in FINISHES or call.target in _AT_ONCE


def _transfers(step: CapturedStep, call: Call, share: RankShare) -> Iterator[Transfer]:
    if call.target in (start_all_reduce_, finish_all_reduce_):
        yield _all_reduce(*_elements(step, call.args[0]), share.ranks)
    elif call.target in (start_sum_parts_, finish_sum_parts_):
        elements, item_bytes = _elements(step, call.args[0])
        if share.ranks == 2:
            yield from _passed_on([elements, 0], item_bytes, call.kwargs["counts"], share.rank)
        elif is_chained(elements, call.kwargs["counts"]):
            yield from _chained(elements, item_bytes, call.kwargs["counts"], share.rank)
        else:
            yield from _sum_of_parts(elements, item_bytes, call.kwargs["counts"], share.rank)
    elif call.target in (start_sum_at_owners_, finish_sum_at_owners_):
        yield from _sum_at_owners(call, share)
    elif call.target in (start_hand_out_, finish_hand_out_):
        values, owners = call.args[0], call.kwargs["owners"]
        sizes = [_elements(step, value)[0] for value in values]
        yield from _handed_out(owner_lengths(sizes, owners, share.ranks), _elements(step, values)[1], share)
    elif call.target is hand_out_numbers:
        owned = [call.kwargs["owners"].count(owner) for owner in range(share.ranks)]
        yield from _handed_out(owned, call.kwargs["dtype"].itemsize, share)


def _all_reduce(elements: int, item_bytes: int, ranks: int) -> Transfer:
    if is_small_pair(elements, ranks):
        return _all_to_all(elements * item_bytes, elements * item_bytes)
    size_bytes = 2 * -(-elements * item_bytes * (ranks - 1) // ranks)  # of a ring
    return Transfer(collective=Collective.ALL_REDUCE, sent_bytes=size_bytes, received_bytes=size_bytes)


def _sum_of_parts(elements: int, item_bytes: int, counts: Sequence[int], rank: int) -> Iterator[Transfer]:
    """Yield two transfers for each piece: of the parts' values, and of their sums."""
    ranks, own = len(counts), counts[rank]
    step = piece_width(elements, ranks) * ranks
    for start in range(0, elements, step):
        stretch_bytes = -(-min(step, elements - start) // ranks) * item_bytes
        yield _all_to_all(own * (ranks - 1) * stretch_bytes, (sum(counts) - own) * stretch_bytes)
        yield _all_to_all((ranks - 1) * stretch_bytes, (ranks - 1) * stretch_bytes)


def _chained(elements: int, item_bytes: int, counts: Sequence[int], rank: int) -> Iterator[Transfer]:
    for tick in chain_ticks(elements, counts, rank):
        yield _all_to_all(*(sum(map(len, pieces)) * item_bytes for pieces in (tick.sent, tick.received)))


def _sum_at_owners(call: Call, share: RankShare) -> Iterator[Transfer]:
    counts, item_bytes = call.kwargs["counts"], call.kwargs["dtype"].itemsize
    own, lengths = counts[share.rank], owner_lengths(call.kwargs["sizes"], call.kwargs["owners"], share.ranks)
    if share.ranks == 2:
        yield from _passed_on(lengths, item_bytes, counts, share.rank)
        return
    for _, spans in pieces(lengths):
        others = sum(spans) - spans[share.rank]
        yield _all_to_all(own * others * item_bytes, (sum(counts) - own) * spans[share.rank] * item_bytes)


def _passed_on(lengths: Sequence[int], item_bytes: int, counts: Sequence[int], rank: int) -> Iterator[Transfer]:
    """Yield the swaps of two ranks: of sums of pieces, and of the totals of those that rank 0 owns."""
    width = pair_width(max(lengths))
    kept, given = (
        [min(width, length - start) * item_bytes for start in range(0, length, width)] for length in lengths
    )
    there = [*kept, *given] if counts[0] else [0] * (len(kept) + len(given))
    back = [0, *kept, *[0] * len(given)]
    for directions in zip([*there, 0], back, strict=True):
        yield _all_to_all(*directions if rank == 0 else directions[::-1])


def _handed_out(owned: Sequence[int], item_bytes: int, share: RankShare) -> Iterator[Transfer]:
    if share.ranks == 2:
        yield _all_to_all(owned[share.rank] * item_bytes, owned[1 - share.rank] * item_bytes)
        return
    for _, spans in pieces(owned):
        mine = spans[share.rank]
        yield _all_to_all((share.ranks - 1) * mine * item_bytes, (sum(spans) - mine) * item_bytes)


def _all_to_all(sent_bytes: int, received_bytes: int) -> Transfer:
    return Transfer(collective=Collective.ALL_TO_ALL, sent_bytes=sent_bytes, received_bytes=received_bytes)


def _elements(step: CapturedStep, values: object) -> tuple[int, int]:
    """Return the number of elements of these values, which are of one type, and the bytes of one."""
    shapes = [step.values[ref.name] for ref in refs(values)]
    return sum(math.prod(shape.shape) for shape in shapes), shapes[0].dtype.itemsize
