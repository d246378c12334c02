"""Records how one of several devices updates the running statistics of batch normalisation with those of all parts.

One device normalises one part of a batch after the other, and each time updates the running statistics. Several
devices normalise their parts at once. So each keeps the statistics of its own parts, hands them to the others in one
exchange, beside those of the gradients, and then updates the running statistics with those of all parts in order. The
statistics of a part are what the kernel makes of running statistics of zero and a momentum of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import fx

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.early_exchanges import EarlyExchanges, PlannedExchange
from indb_tensile.executor.capture.exchange_room import handed_out_elements
from indb_tensile.executor.capture.owner_operators import finish_hand_out_, start_hand_out_
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.running_statistics import MOMENTUM, RunningStatistics, Statistic
from indb_tensile.executor.capture.statistics_operators import update_statistics_
from indb_tensile.executor.capture.statistics_rounding import Rounding, SeenValues, roundings
from indb_tensile.scheduler.graph import Stage

_aten = torch.ops.aten


class RankStatistics:
    """The statistics that this device's parts of a batch of `parts` have computed.

    `running` are those of one part. `state` has the fakes of all buffers, and `place` is the device whose kernels run
    the step. Raises RequestError if these kernels round in an unknown way, and the devices promise equal bits.
    """

    def __init__(
        self,
        recorder: Recorder,
        state: Mapping[str, torch.Tensor],
        running: RunningStatistics,
        share: RankShare,
        parts: int,
        place: torch.device,
    ) -> None:
        self._recorder = recorder
        self._state = state
        self._share = share
        self._added = {buffer: count * parts for buffer, count in running.counts.items()}
        self._updates = _alike_together(
            [
                _Update(position=k, buffer=s.buffer, momentum=s.momentum, rounding=_rounding(s, state, share, place))
                for k, s in enumerate(running.statistics)
            ]
        )
        self._owners = [rank for rank, count in enumerate(share.counts(parts)) for _ in range(count)]
        self._own: list[dict[int, torch.Tensor]] = []  # of each of this device's parts, by position in `running`
        self._zeros: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._handed_out: list[torch.Tensor] = []

    def begin_part(self, running: RunningStatistics) -> "PartStatistics":
        """Return what keeps the statistics of this device's next part, whose running ones are these."""
        self._own.append({})
        return PartStatistics(self, running)

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        """Return zeros in place of running statistics (channels), which have no effect on a part's results."""
        key = like.numel(), like.dtype
        if key not in self._zeros:
            kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
            self._zeros[key] = self._recorder.call(Stage.FORWARD, _aten.zeros.default, [like.numel()], **kind)
        return self._zeros[key]

    def keep(self, position: int, statistic: torch.Tensor) -> None:
        """Keep a statistic (channels) of this device's present part; `position` is that in `running`."""
        self._own[-1][position] = statistic

    def plan(self, exchanges: EarlyExchanges) -> None:
        """Plan an exchange that gives all devices the statistics of all parts. It comes before those of gradients."""
        if not self._updates:
            return
        example = self._state[self._updates[0].buffer]
        dtype = reduce(torch.promote_types, [self._state[update.buffer].dtype for update in self._updates])
        size = sum(self._state[update.buffer].numel() for update in self._updates)
        kind: dict[str, Any] = {"dtype": dtype, "device": example.device}
        own = iter(self._own)
        for owner in self._owners:
            if owner == self._share.rank:
                part = next(own)
                made = exchanges.call(_aten.cat.default, [part[update.position] for update in self._updates])
            else:
                made = exchanges.call(_aten.empty.memory_format, [size], **kind)
            self._handed_out.append(made)
        ranks = self._share.ranks
        exchanges.plan(
            PlannedExchange(
                start=start_hand_out_,
                finish=finish_hand_out_,
                values=self._handed_out,
                numbers={"owners": self._owners, "ranks": ranks, "rank": self._share.rank},
                room_bytes=handed_out_elements([size] * len(self._owners), self._owners, ranks) * dtype.itemsize,
            )
        )

    def update(self) -> None:
        """Record the update of all running statistics and counters, after the exchanges."""
        for buffer, added in self._added.items():
            self._recorder.call(Stage.OPTIMIZER, _aten.add_.Tensor, self._state[buffer], added)
        if not self._updates:
            return
        buffers = [*dict.fromkeys(update.buffer for update in self._updates)]
        self._recorder.call(
            Stage.OPTIMIZER,
            update_statistics_,
            [self._state[buffer] for buffer in buffers],
            self._handed_out,
            places=[buffers.index(update.buffer) for update in self._updates],
            momenta=[update.momentum for update in self._updates],
            roundings=[str(update.rounding) for update in self._updates],
        )


class PartStatistics:
    """The statistics of one part, as they are computed."""

    def __init__(self, rank: RankStatistics, running: RunningStatistics) -> None:
        self._rank = rank
        self._unread = running.unread
        self._norms = running.by_node()

    def replaces(self, node: fx.Node) -> bool:
        """Return whether the node is not computed, because its value is a running statistic or a counter."""
        return node in self._unread

    def replacement(self, node: fx.Node) -> torch.Tensor | None:
        """Return the value in place of the node's; None for a counter, which nothing reads."""
        value: torch.Tensor = node.meta["val"]
        return self._rank.zeros(value) if value.is_floating_point() else None

    def arguments(self, node: fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments for the node's call.

        A batch normalisation gets a momentum of 1, so that its new running statistics are the part's own.
        """
        return (*args[:MOMENTUM], 1.0, *args[MOMENTUM + 1 :]) if node in self._norms else args

    def keep(self, node: fx.Node, result: Any) -> None:
        """Keep the statistics that a batch normalisation has returned."""
        for position, statistic in self._norms.get(node, {}).items():
            self._rank.keep(position, result[statistic.kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """How one statistic of a part updates its running one; `position` is that of the statistic in the traced part."""

    position: int
    buffer: str
    momentum: float
    rounding: Rounding


def _alike_together(updates: list[_Update]) -> list[_Update]:
    """Return the updates with those next to each other that are made alike, so that they are made as one vector.

    Updates of one running statistic, which a network normalises with twice, keep their order.
    """

    def key(update: _Update) -> tuple[float, Rounding]:
        return update.momentum, update.rounding

    keys: dict[str, set[tuple[float, Rounding]]] = {}
    for update in updates:
        keys.setdefault(update.buffer, set()).add(key(update))
    return updates if any(len(own) > 1 for own in keys.values()) else sorted(updates, key=key)


def _rounding(
    statistic: Statistic, state: Mapping[str, torch.Tensor], share: RankShare, place: torch.device
) -> Rounding:
    """Return how the kernel rounds this running statistic. With the fast sum any rounding will do."""
    if share.reduce is Reduce.FAST:
        return Rounding.BOTH
    seen, buffer = SeenValues.of(statistic.seen), statistic.buffer
    if seen is None:
        raise RequestError(
            f"several devices cannot update {buffer} with the bits of one device",
            detail="This batch normalisation gets values in an unusual memory order, as after a transpose.",
            hint='Call contiguous() on them, use "reduce": "fast", or train on one device.',
        )
    rounding = roundings(place, seen, state[buffer].dtype, statistic.momentum)[statistic.kind]
    if rounding is None:
        raise RequestError(
            f"several devices cannot update {buffer} with the bits of one device",
            detail="Batch normalisation rounds on this device in a way that is not known.",
            hint='Use "reduce": "fast", or train on one device.',
        )
    return rounding
