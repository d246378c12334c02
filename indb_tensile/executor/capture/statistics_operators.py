"""Defines the operators by which several devices update running statistics of batch normalisation together.

`tensile::start_hand_out_parts_` and its finish give all devices what each has computed of its parts of a batch
(exchange_operator.py). `tensile::update_statistics_` updates running statistics with those of all parts, in the order
of the parts, as one device does.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import Exchange, RankNetwork, define_exchange
from indb_tensile.executor.capture.exchange_room import ExchangeRoom
from indb_tensile.executor.capture.owner_operators import spread_stretches, stretches_of
from indb_tensile.executor.capture.statistics_rounding import Rounding, updated

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_LIBRARY.define(
    "update_statistics_(Tensor(a!)[] running, Tensor[] parts, *,"
    " int[] places, float[] momenta, str[] roundings) -> ()"
)
_HAND_OUT_PARTS = "(Tensor(a!)[] values, Tensor(b!) room, *, int[] owners, int ranks, int rank) -> ()"


def _hand_out_parts(
    values: list[torch.Tensor], room: torch.Tensor, *, owners: Sequence[int], ranks: int, rank: int
) -> Exchange:
    """Return the exchange that writes the value of each part of a batch, which one rank has, into those of all ranks.

    `values` has one for each part (elements), and `owners` the rank of each part.
    """

    def exchange(network: RankNetwork) -> None:
        stretches = stretches_of(values, owners, ranks, ExchangeRoom(room, values[0].dtype))
        network.hand_out(stretches, rank)
        spread_stretches(stretches, values, owners, rank)

    return exchange


def _update_statistics(
    running: list[torch.Tensor],
    parts: list[torch.Tensor],
    *,
    places: Sequence[int],
    momenta: Sequence[float],
    roundings: Sequence[str],
) -> None:
    """Update the running statistics (channels each) in place, with those of one part after the other.

    A part has a statistic for each of `places`, which are positions in `running`; the statistics follow each other in
    one vector. Each has a momentum and a rounding (statistics_rounding.py).
    """
    sizes = [running[place].numel() for place in places]
    groups = [*_groups(places, momenta, roundings)]
    for part in parts:
        statistics = torch.split(part, sizes)
        for group in groups:
            own = [running[places[k]] for k in group]
            new = updated(
                torch.cat(own),
                torch.cat([statistics[k] for k in group]).to(own[0].dtype),
                momenta[group.start],
                Rounding(roundings[group.start]),
            )
            for value, made in zip(own, torch.split(new, [value.numel() for value in own]), strict=True):
                value.copy_(made)


def _groups(places: Sequence[int], momenta: Sequence[float], roundings: Sequence[str]) -> Iterator[range]:
    """Yield consecutive statistics that are updated alike, and each of which has a running one of its own."""
    starts = [0]
    for k in range(1, len(places)):
        alike = (momenta[k], roundings[k]) == (momenta[k - 1], roundings[k - 1])
        if not alike or places[k] in places[starts[-1] : k]:
            starts.append(k)
    for start, end in pairwise([*starts, len(places)]):
        yield range(start, end)


_LIBRARY.impl("update_statistics_", _update_statistics, "CompositeExplicitAutograd")

start_hand_out_parts_, finish_hand_out_parts_ = define_exchange("hand_out_parts_", _HAND_OUT_PARTS, _hand_out_parts)
update_statistics_ = torch.ops.tensile.update_statistics_.default
