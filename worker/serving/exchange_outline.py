"""Foretells the exchanges of a step on several devices: their number, bytes, and how much of their time is hidden.

The figures are of rank 0. Its exchanges follow from the captured step. Their times are those of the operators that
wait for them: as measured while such a job trained, else as foretold from transfers that were measured between such
devices, else without the network's time.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.ranks.exchange_traffic import exchanges_of, transfers_of
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.sizes import size

_NS_PER_MS = 1_000_000


class TimeSource(Enum):
    """Where the times of the exchanges are from."""

    TRAINING = auto()  # such a job has trained on such devices
    NETWORK = auto()  # transfers between such devices were measured
    NOTHING = auto()  # no such devices have met yet, so the network's time is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOutline:
    """What one iteration of rank 0 exchanges.

    `sent_bytes` go to all other ranks together, without the headers of the network. `hidden_ns` of the exchanges'
    time `total_ns` run beside computation.
    """

    share: RankShare
    count: int
    sent_bytes: int
    total_ns: int
    hidden_ns: int
    source: TimeSource
    connection_bytes: int = 0

    @classmethod
    def of(
        cls,
        step: CapturedStep,
        latency_ns: Sequence[int],
        forecast: Forecast | None,
        share: RankShare,
        network: GangNetwork | None,
        known: Container[str],
        connection_bytes: int = 0,
    ) -> "ExchangeOutline":
        """Return the outline of a training step. `known` are the signatures of stored measurements.

        Without a `forecast`, as there is no plan, nothing is foretold to be hidden. `connection_bytes` of each device
        are kept free for the connection.
        """
        exchanges = exchanges_of(step)
        waits = [
            (operator.signature, ns)
            for operator, ns in zip(step.graph.operators, latency_ns, strict=True)
            if operator.awaits is not None
        ]
        total_ns = sum(ns for _, ns in waits)
        late_ns = total_ns if forecast is None else forecast.exchange_ns
        return cls(
            share=share,
            count=len(exchanges),
            sent_bytes=sum(part.sent_bytes for call in exchanges for part in transfers_of(step, call, share)),
            total_ns=total_ns,
            hidden_ns=max(0, total_ns - late_ns),
            source=_source([signature for signature, _ in waits], network, known),
            connection_bytes=connection_bytes,
        )

    @property
    def text(self) -> str:
        """The outline in words."""
        if not self.connection_bytes:
            return self._exchanges
        kept = f"{size(self.connection_bytes)} of each device are kept free for NCCL"
        return f"{self._exchanges}; {kept}, beside the memory of the plan"

    @property
    def _exchanges(self) -> str:
        reduce = f'"reduce": "{self.share.reduce}"'
        sends = (
            f"each of {self.share.ranks} devices sends about {size(self.sent_bytes)} to the others in an iteration, "
            f"in {self.count} exchange{'s' if self.count != 1 else ''} ({reduce})"
        )
        if self.source is TimeSource.NOTHING:
            return f"{sends}, whose time on the network is not known before {self.share.ranks} such devices have met"
        hidden = f"{self.hidden_ns / _NS_PER_MS:.2f} of {self.total_ns / _NS_PER_MS:.2f} ms"
        foretold = f"{sends}; {hidden} of the gradients' exchange are foretold to run beside computation"
        return foretold if self.source is TimeSource.TRAINING else f"{foretold}, by the measured speed of the network"


def _source(signatures: Sequence[str], network: GangNetwork | None, known: Container[str]) -> TimeSource:
    if network is None:
        return TimeSource.NOTHING
    trained = all(network.signature_of(signature) in known for signature in signatures)
    return TimeSource.TRAINING if trained else TimeSource.NETWORK
