"""Estimates the time of a data parallel training step on many ranks, from the graph of one rank's step.

Each rank computes the same batch as one device alone (weak scaling), and the gradients are exchanged between hosts
that each have several GPUs and one network interface:

- *All-reduce in a ring* (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
  2009): 2 (n - 1) messages one after another, each of 1/n of the bytes. A ring enters and leaves each host once, so a
  host's interface carries the traffic of one rank.
- *The exact sum* (executor/ranks/part_exchange.py), with one part a rank: two all-to-alls. A rank sends n - 1
  messages at once, in all as many bytes as in a ring, and all ranks of a host send over its one interface.

The model knows no contention, no slow rank and no cost of summing. It bounds what the network allows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import Role, Stage, StepGraph, TensorId

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCluster:
    """Hosts with GPUs, and the rates between them.

    `between_bytes_per_s` is that of a host's interface in each direction, `within_bytes_per_s` that of a rank to
    another one of its host. `latency_ns` is the time of an empty message, and `message_ns` what a further message
    costs its sender.
    """

    ranks_per_host: int
    between_bytes_per_s: int
    within_bytes_per_s: int
    latency_ns: int
    message_ns: int

    def __post_init__(self) -> None:
        if min(self.ranks_per_host, self.between_bytes_per_s, self.within_bytes_per_s) < 1:
            raise RequestError("a cluster needs at least a rank a host, and rates of at least a byte a second")

    def ring_ns(self, size_bytes: int, ranks: int) -> float:
        """Return the time of an all-reduce in a ring."""
        if ranks == 1:
            return 0.0
        rate = self.within_bytes_per_s if ranks <= self.ranks_per_host else self.between_bytes_per_s
        return 2 * (ranks - 1) * (self.latency_ns + size_bytes / ranks * 1e9 / rate)

    def exact_ns(self, size_bytes: int, ranks: int) -> float:
        """Return the time of the sum in the order of the parts, with one part a rank."""
        if ranks == 1:
            return 0.0
        on_host = min(ranks, self.ranks_per_host)
        stretch_bytes = size_bytes / ranks
        within = (on_host - 1) * stretch_bytes / self.within_bytes_per_s
        between = (ranks - on_host) * stretch_bytes * on_host / self.between_bytes_per_s
        return 2 * (self.latency_ns + (ranks - 1) * self.message_ns + max(within, between) * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGradient:
    """A gradient, and when the step has computed it."""

    size_bytes: int
    ready_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """The step of one rank without an exchange: forward and backward pass, then the update of the parameters."""

    passes_ns: int
    update_ns: int
    gradients: tuple[ReadyGradient, ...]  # in the order in which they are ready

    @classmethod
    def of(cls, graph: StepGraph, latency_ns: Sequence[int]) -> "RankStep":
        """Return the step of a graph whose operators have these latencies. Uploads are made ahead."""
        ready: dict[TensorId, int] = {}
        passes_ns = update_ns = 0
        updated: set[TensorId] = set()
        for operator, duration_ns in zip(graph.operators, latency_ns, strict=True):
            if operator.stage is Stage.OPTIMIZER:
                update_ns += duration_ns
                updated.update(operator.reads)
            elif operator.stage is not Stage.UPLOAD:
                passes_ns += duration_ns
                ready.update(dict.fromkeys(operator.writes, passes_ns))
        sizes = {tensor.id: tensor.size_bytes for tensor in graph.tensors if tensor.role is Role.ACTIVATION}
        gradients = [
            ReadyGradient(size_bytes=size_bytes, ready_ns=ready[tensor])
            for tensor, size_bytes in sizes.items()
            if tensor in updated and tensor in ready
        ]
        ordered = tuple(sorted(gradients, key=lambda gradient: (gradient.ready_ns, gradient.size_bytes)))
        return cls(passes_ns=passes_ns, update_ns=update_ns, gradients=ordered)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients."""
        return sum(gradient.size_bytes for gradient in self.gradients)

    def alone_ns(self) -> float:
        """Return the time on one rank."""
        return self.passes_ns + self.update_ns

    def ddp_ns(self, cluster: GpuCluster, ranks: int) -> float:
        """Return the time with DDP's exchange of buckets of 1 MiB and then 25 MiB."""
        return self._beside(_buckets(self.gradients, MIB, 25 * MIB), partial(cluster.ring_ns, ranks=ranks))

    def fast_ns(self, cluster: GpuCluster, ranks: int, bucket_bytes: int) -> float:
        """Return the time with our fast sum."""
        buckets = _buckets(self.gradients, bucket_bytes, bucket_bytes)
        return self._beside(buckets, partial(cluster.ring_ns, ranks=ranks))

    def exact_ns(self, cluster: GpuCluster, ranks: int, bucket_bytes: int, piece_bytes: int) -> float:
        """Return the time with our exact sum, which goes piece by piece."""

        def bucket_ns(size_bytes: int) -> float:
            pieces = -(-size_bytes // piece_bytes)
            return pieces * cluster.exact_ns(-(-size_bytes // pieces), ranks)

        return self._beside(_buckets(self.gradients, bucket_bytes, bucket_bytes), bucket_ns)

    def _beside(self, buckets: Iterable[tuple[int, int]], bucket_ns: Callable[[int], float]) -> float:
        """Return the time if each bucket's exchange begins when the bucket is ready and the one before has ended."""
        ended_ns = 0.0
        for size_bytes, ready_ns in buckets:
            ended_ns = max(ended_ns, ready_ns) + bucket_ns(size_bytes)
        return max(self.passes_ns, ended_ns) + self.update_ns


def _buckets(gradients: Sequence[ReadyGradient], first_bytes: int, later_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes of each bucket and when it is complete. A gradient larger than a bucket is alone."""
    limit_bytes, taken_bytes, ready_ns = first_bytes, 0, 0
    for gradient in gradients:
        if taken_bytes and taken_bytes + gradient.size_bytes > limit_bytes:
            yield taken_bytes, ready_ns
            limit_bytes, taken_bytes = later_bytes, 0
        taken_bytes += gradient.size_bytes
        ready_ns = gradient.ready_ns
    if taken_bytes:
        yield taken_bytes, ready_ns
