"""Networks at the sizes at which benchmarks run them: small on an emulated device, their own on a GPU."""

import argparse
from dataclasses import dataclass, replace
from typing import Protocol

from indb_tensile.bench.harness.execution.trial import TrainingSubject
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import Network
from indb_tensile.bench.harness.processes.argument_types import whole

# Batches and sides at which a network's step takes tenths of a second on an emulated device.
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
_LEAST_ROWS = 2  # batch of networks without an entry in SIZES
_TIMES = 4  # factor of the batch on a GPU, since the batch for planning keeps no GPU busy


class Source(Protocol):
    """Makes subjects, possibly in another process. A source is sent there, but a subject is not."""

    @property
    def network(self) -> Network | None:
        """Return the known network, whose blocks are known; None if the source is another one."""
        ...

    def subject(self, seed: int = 0) -> TrainingSubject:
        """Return a subject with weights and rows of this seed, the same in every process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkCase:
    """A known network, a batch, and the pixels or tokens a side of its rows."""

    name: str
    batch: int
    side: int

    @classmethod
    def of(cls, name: str, batch: int | None, side: int | None, *, emulated: bool) -> "BenchmarkCase":
        """Return a case of these sizes; None means the size that suits the device.

        Raises MissingError for an unknown network.
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
        """Return the network at this side."""
        network = networks.find(self.name)
        return network if self.side == network.row[-1] else network.resized(self.side)

    def sized(self, batch: int) -> "BenchmarkCase":
        """Return the same case with `batch` rows."""
        return replace(self, batch=batch)

    def subject(self, seed: int = 0) -> TrainingSubject:
        """Return the network with random weights and rows."""
        return TrainingSubject.of(self.network, self.batch, seed)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a case's sizes."""
    parser.add_argument("--batch", type=whole(), help="rows; default: a size for each network, as for --side")
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens")
