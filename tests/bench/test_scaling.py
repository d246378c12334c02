"""The estimate of many ranks follows its formulas, and takes the gradients from the graph of a step."""

import json
from dataclasses import replace

import pytest

from indb_tensile.bench.commands import scaling
from indb_tensile.bench.commands.scaling import estimate
from indb_tensile.bench.harness.comparisons.rank_scaling import GpuCluster, RankStep, ReadyGradient
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId

CLUSTER = GpuCluster(
    ranks_per_host=2, between_bytes_per_s=10**9, within_bytes_per_s=4 * 10**9, latency_ns=1000, message_ns=100
)
W, X, H, G, GRADIENT = map(TensorId, range(5))


def operator(name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name=name, signature=name, stage=stage, reads=reads, writes=writes)


def test_gradients_are_what_the_update_reads_and_the_passes_write() -> None:
    sizes = {W: ("w", 8, Role.PARAMETER), X: ("x", 4, Role.INPUT)}
    sizes |= {t: (n, s, Role.ACTIVATION) for t, n, s in ((H, "h", 2), (G, "g", 4), (GRADIENT, "gradient", 8))}
    graph = StepGraph(
        tensors=tuple(Tensor(id=t, name=n, size_bytes=s, role=r) for t, (n, s, r) in sizes.items()),
        operators=(
            operator("upload", Stage.UPLOAD, (), (X,)),
            operator("forward", Stage.FORWARD, (W, X), (H,)),
            operator("backward", Stage.BACKWARD, (H, X), (GRADIENT,)),
            operator("rest", Stage.BACKWARD, (H,), (G,)),
            operator("update", Stage.OPTIMIZER, (W, GRADIENT), (W,)),
        ),
    )
    step = RankStep.of(graph, (50, 10, 20, 30, 5))
    assert step == RankStep(passes_ns=60, update_ns=5, gradients=(ReadyGradient(size_bytes=8, ready_ns=30),))


def test_a_ring_sends_twice_the_bytes_in_turns_and_the_exact_sum_shares_the_interface_of_a_host() -> None:
    assert CLUSTER.ring_ns(4000, 1) == CLUSTER.exact_ns(4000, 1) == 0
    assert CLUSTER.ring_ns(4000, 2) == 2 * (1000 + 500)  # within a host
    assert CLUSTER.ring_ns(4000, 4) == 2 * 3 * (1000 + 1000)
    assert CLUSTER.exact_ns(4000, 2) == 2 * (1000 + 100 + 500)
    assert CLUSTER.exact_ns(4000, 4) == 2 * (1000 + 300 + 4000)  # two ranks send to two of the other host


def test_an_exchange_during_the_backward_pass_is_hidden_but_for_its_end() -> None:
    gradients = (ReadyGradient(size_bytes=1 << 20, ready_ns=10**6), ReadyGradient(size_bytes=4000, ready_ns=10**8))
    step = RankStep(passes_ns=10**8, update_ns=10**6, gradients=gradients)
    assert step.ddp_ns(CLUSTER, 2) == step.alone_ns() + CLUSTER.ring_ns(4000, 2)
    assert step.fast_ns(CLUSTER, 2, 1 << 20) == step.ddp_ns(CLUSTER, 2)
    assert step.exact_ns(CLUSTER, 2, 1 << 20, 1 << 19) == step.alone_ns() + CLUSTER.exact_ns(4000, 2)
    together_ns = CLUSTER.ring_ns((1 << 20) + 4000, 2)  # in one bucket, which is ready at the end
    assert step.fast_ns(CLUSTER, 2, 1 << 21) == step.alone_ns() + together_ns
    slow = replace(step, passes_ns=10**6, gradients=(gradients[0], replace(gradients[1], ready_ns=10**6)))
    halves_ns = 2 * CLUSTER.exact_ns(1 << 19, 2) + CLUSTER.exact_ns(4000, 2)
    assert slow.exact_ns(CLUSTER, 2, 1 << 20, 1 << 19) == slow.alone_ns() + halves_ns, "one after another"


def test_efficiency_counts_from_one_rank_within_a_host_and_from_one_host_beyond() -> None:
    step = RankStep(passes_ns=10**6, update_ns=0, gradients=(ReadyGradient(size_bytes=4000, ready_ns=10**6),))
    rows = {row["ranks"]: row for row in estimate(step, CLUSTER, (1, 2, 8))}
    assert [rows[ranks]["ddp_efficiency"] for ranks in (1, 2)] == [1.0, 1.0]
    assert rows[8]["ddp_efficiency"] == round(step.ddp_ns(CLUSTER, 2) / step.ddp_ns(CLUSTER, 8), 3)


def test_a_cluster_without_a_network_is_refused() -> None:
    with pytest.raises(RequestError, match="rates of at least a byte a second"):
        GpuCluster(ranks_per_host=8, between_bytes_per_s=0, within_bytes_per_s=1, latency_ns=0, message_ns=0)


@pytest.mark.nightly
def test_each_number_of_ranks_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.main(["--models", "lstm", "--batch", "2", "--ranks", "1", "16", "--json"])
    single, many = map(json.loads, capsys.readouterr().out.splitlines())
    assert (single["ranks"], many["ranks"], single["ddp_efficiency"]) == (1, 16, 1.0)
    assert many["published"] is None
    assert single["ddp_ms"] == single["fast_ms"] == single["exact_ms"] < many["ddp_ms"]
