"""Networks at the sizes that benchmarks run them at: small on an emulated device, their own on a GPU."""

import argparse
from dataclasses import dataclass, replace
from typing import Protocol

from indb_tensile.bench import networks
from indb_tensile.bench.networks import Network
from indb_tensile.bench.options import whole
from indb_tensile.bench.trial import Subject

# Batches and sides at which a step of a network takes tenths of a second where the device is emulated.
SIZES = {
    "vgg16": (4, 64),
    "resnet50": (8, 64),
    "inception_v3": (4, 128),
    "densenet121": (8, 64),
    "mobilenet_v2": (8, 96),
    "squeezenet": (8, 96),
    "efficientnet_b0": (8, 96),
    "vit_s": (8, 96),
    "bert": (4, 32),
    "gpt2": (4, 32),
    "lstm": (16, 4),
}
_LEAST_ROWS = 2  # of networks without a size of their own
_TIMES = 4  # the batch that a network is planned at keeps no GPU of today busy


class Source(Protocol):
    """Where subjects come from, also in another process: it is sent there, and what it makes is not."""

    @property
    def network(self) -> Network | None:
        """The known network, whose blocks are known; None where it is none."""
        ...

    def subject(self, seed: int = 0) -> Subject:
        """With weights and rows of this seed, the same everywhere."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A known network, a batch, and the pixels or tokens a side of its rows."""

    name: str
    batch: int
    side: int

    @classmethod
    def of(cls, name: str, batch: int | None, side: int | None, *, emulated: bool) -> "Case":
        """At these sizes, or where they are left open at those that suit the device.

        Raises MissingError for a network that is not known.
        """
        network = networks.find(name)
        if emulated:
            own = SIZES.get(name, (_LEAST_ROWS, network.row[-1]))
        else:
            own = (_TIMES * network.batch, network.row[-1])
        rows = own[0] if batch is None else batch
        return cls(name=name, batch=rows, side=own[1] if side is None else side)

    @property
    def network(self) -> Network:
        """At this side."""
        network = networks.find(self.name)
        return network if self.side == network.row[-1] else network.resized(self.side)

    def sized(self, batch: int) -> "Case":
        """The same with so many rows."""
        return replace(self, batch=batch)

    def subject(self, seed: int = 0) -> Subject:
        """The network with random weights and rows."""
        return Subject.of(self.network, self.batch, seed)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The arguments for a case's sizes."""
    parser.add_argument("--batch", type=whole(), help="rows; without it one for each network, as for --side")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens")
