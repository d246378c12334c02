"""Check what is foretold of the exchanges of a step on several devices: against what a rank sends, and in words."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from indb_tensile.config import GIB
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.ranks.exchange_traffic import awaiting_signatures
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.sizes import size
from tests.executor.ranks.counting_group import make_exchanges
from tests.scheduler.timing.networks import network_of
from tests.service.test_explain import SMALL, SPEC, FakeCatalog, explain
from worker.serving.exchange_outline import ExchangeOutline, TimeSource

ROWS = 12
FORECAST = Forecast(
    iteration_ns=9_000_000,
    compute_ns=8_000_000,
    stall_out_ns=0,
    stall_in_ns=0,
    upload_ns=0,
    peak_bytes=1,
    out_bytes=0,
    in_bytes=0,
    exchange_ns=1_000_000,
)


def capture(share: RankShare, micro_batch_size: int = 4) -> CapturedStep:
    module = nn.Sequential(nn.Linear(48, 700), nn.ReLU(), nn.Linear(700, 480), nn.ReLU(), nn.Linear(480, 6))
    batch = torch.zeros(ROWS, 48), torch.zeros(ROWS, dtype=torch.int64)
    settings = OptimizerSettings(kind="adam", clip_norm=1.0)
    return capture_training(
        module, nn.CrossEntropyLoss(), *batch, settings, Passes(micro_batch_size=micro_batch_size), share
    )


def outline(
    step: CapturedStep, share: RankShare, network: GangNetwork | None = None, *, trained: bool = False
) -> ExchangeOutline:
    known = set(step.signatures)
    if network is not None and trained:
        known |= {network.signature_of(signature) for signature in awaiting_signatures(step)}
    latency_ns = (1_000_000,) * len(step.graph.operators)
    return ExchangeOutline.of(step, latency_ns, FORECAST, share, network, known)


@pytest.mark.parametrize(
    ("ranks", "micro_batch_size"),
    [(3, 4), *(pytest.param(*sizes, marks=pytest.mark.nightly) for sizes in ((2, 4), (2, 2), (3, 2)))],
)
@pytest.mark.parametrize(
    ("reduce", "divides_state"),
    [(Reduce.EXACT, False), (Reduce.EXACT, True), (Reduce.FAST, False), (Reduce.FAST, True)],
)
def test_foretold_exchanges_are_those_that_a_rank_makes(
    ranks: int, micro_batch_size: int, reduce: Reduce, divides_state: bool
) -> None:
    share = RankShare(rank=0, ranks=ranks, reduce=reduce, divides_state=divides_state)
    step = capture(share, micro_batch_size)
    count, transfers = make_exchanges(step, 0, ranks)
    foretold = outline(step, share)
    assert foretold.count == count > 0
    assert foretold.sent_bytes == sum(transfer.sent_bytes for transfer in transfers) > 0


def test_what_of_the_exchanges_is_hidden_follows_from_the_plan_and_is_said_only_if_the_network_is_known() -> None:
    share, network = RankShare(rank=0, ranks=3), network_of(3)
    step = capture(share)
    foretold = outline(step, share, network, trained=True)
    waits = sum(operator.awaits is not None for operator in step.graph.operators)
    assert waits == 2
    assert (foretold.total_ns, foretold.hidden_ns) == (2_000_000, 1_000_000)
    sends = 'each of 3 devices sends about 1.9 MB to the others in an iteration, in 2 exchanges ("reduce": "exact")'
    hidden = "1.00 of 2.00 ms of the gradients' exchange are foretold to run beside computation"
    assert (foretold.source, foretold.text) == (TimeSource.TRAINING, f"{sends}; {hidden}")
    first = outline(step, share, network)
    assert (first.source, first.text) == (
        TimeSource.NETWORK,
        f"{sends}; {hidden}, by the measured speed of the network",
    )
    unknown = outline(step, share)
    assert (unknown.source, unknown.text) == (
        TimeSource.NOTHING,
        f"{sends}, whose time on the network is not known before 3 such devices have met",
    )


_TIMES = {"planning_ms": 0.0}  # differ from call to call


@pytest.mark.nightly
def test_explanation_of_several_devices_is_of_one_rank_and_names_its_exchanges() -> None:
    catalog = FakeCatalog(latency_ns=7_000_000)
    several = replace(SPEC, devices=2, hyperparams=SPEC.hyperparams | {"reduce": "fast"})
    rows, alone = explain(several, catalog=catalog, gang=network_of(2)), explain(catalog=catalog)
    note = rows[-1]["note"]
    assert note.startswith("each of 2 devices sends about ")
    assert '("reduce": "fast")' in note
    assert "foretold to run beside computation" in note
    assert [row["starts_now"] for row in rows] == [None] * 3
    assert rows[0]["peak_bytes"] < alone[0]["peak_bytes"], "each has half of the activations"


@pytest.mark.nightly
def test_explanation_before_such_a_training_has_the_time_of_the_network() -> None:
    several = replace(SPEC, devices=2, hyperparams=SPEC.hyperparams | {"reduce": "fast"})
    unknown, slow = explain(several), explain(several, gang=network_of(2, message_ns=10**9))
    assert "whose time on the network is not known before 2 such devices have met" in unknown[-1]["note"]
    assert "foretold to run beside computation, by the measured speed of the network" in slow[-1]["note"]
    assert all(row["iteration_ms"] < 1_000 < later["iteration_ms"] for row, later in zip(unknown, slow, strict=True))


def test_explanation_of_devices_of_different_sizes_plans_for_each_and_names_the_slowest() -> None:
    small = replace(SPEC, architecture={"type": "mlp", "hidden": [256, 256]}, hyperparams={}, devices=2)
    (*_, own), gang = explain(small), network_of(2)
    tight_bytes = own["floor_bytes"]
    equal = explain(small, gang=gang, budgets=[("a", GIB), ("b", GIB)])[-1]
    assert "slowest" not in equal["note"]
    uneven = explain(small, gang=gang, budgets=[("a", GIB), ("b", tight_bytes)])[-1]
    named = f", and the slowest device is that of b, with a budget of {size(tight_bytes)}"
    assert f"an iteration of 2 devices is foretold to take {uneven['iteration_ms']:.3g} ms{named}" in uneven["note"]
    assert uneven["iteration_ms"] > equal["iteration_ms"]
    short = explain(small, gang=gang, budgets=[("a", GIB), ("b", 4096)])[-1]
    assert "one of the 2 largest devices is too small: that of b has a budget of 4.0 kB" in short["note"]
    assert explain(small, gang=gang, budgets=[("a", GIB)])[-1] | _TIMES == equal | _TIMES, "too few are known"


def test_memory_of_the_connection_is_kept_free_beside_the_plan() -> None:
    small = replace(SPEC, architecture=SMALL, hyperparams={"batch_size": 64}, devices=2)
    enough, short = explain(small), explain(small, connection_bytes=GIB - 4096)
    kept = f"{size(GIB - 4096)} of each device are kept free for NCCL, beside the memory of the plan"
    assert (kept in enough[-1]["note"], kept in short[-1]["note"]) == (False, True)
    assert ([row["starts_now"] for row in enough], [row["starts_now"] for row in short]) == ([None] * 3, [False] * 3)
    assert f"more than the device's budget of {size(4096)}" in short[-1]["note"]
    assert "NCCL" not in explain(replace(small, devices=1), connection_bytes=GIB - 4096)[-1]["note"]


def test_explanation_refuses_more_devices_than_a_batch_has_parts() -> None:
    parts = {"batch_size": 2048, "micro_batch_size": 1024}
    with pytest.raises(RequestError, match="2 parts of a batch cannot be divided among 3 devices"):
        explain(replace(SPEC, devices=3, hyperparams=parts))
