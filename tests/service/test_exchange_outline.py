"""Check what is foretold of the exchanges of a step on several devices: against what a rank sends, and in words."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.exchange_operator import FINISHES, STARTS
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.owner_operators import hand_out_, hand_out_numbers
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.record import Ref
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.scheduler.timing.simulate import Forecast
from tests.service.test_explain import SPEC, FakeCatalog, explain
from worker.serving.exchange_outline import ExchangeOutline

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


class Ended(torch.distributed.Work):
    """An operation that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class CountingGroup:
    """Rank 0 of a group whose other ranks are not there: it counts what is sent to them. An all-reduce is a ring."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.sent_bytes = 0.0

    def size(self) -> int:
        return self._ranks

    def rank(self) -> int:
        return 0

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        received.zero_()
        self.sent_bytes += sum(sends[1:]) * sent.itemsize
        return Ended()

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> torch.distributed.Work:
        self.sent_bytes += (self._ranks - 1) * tensor.nbytes if root == 0 else 0
        return Ended()

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        self.sent_bytes += sum(2 * tensor.nbytes * (self._ranks - 1) / self._ranks for tensor in tensors)
        return Ended()

    def abort(self) -> None:
        """Do nothing: nothing is under way."""


def capture(share: RankShare, micro_batch_size: int = 4) -> CapturedStep:
    module = nn.Sequential(nn.Linear(48, 700), nn.ReLU(), nn.Linear(700, 480), nn.ReLU(), nn.Linear(480, 6))
    batch = torch.zeros(ROWS, 48), torch.zeros(ROWS, dtype=torch.int64)
    settings = OptimizerSettings(kind="adam", clip_norm=1.0)
    return capture_training(
        module, nn.CrossEntropyLoss(), *batch, settings, Passes(micro_batch_size=micro_batch_size), share
    )


def outline(step: CapturedStep, share: RankShare, *, measured: bool = True) -> ExchangeOutline:
    known = step.signatures if measured else ()
    return ExchangeOutline.of(step, (1_000_000,) * len(step.graph.operators), FORECAST, share, known)


def make_exchanges(step: CapturedStep, ranks: int) -> tuple[int, float]:
    """Make all exchanges of the step with a `CountingGroup`. Return their number, and how many bytes rank 0 sent."""
    made: dict[str, torch.Tensor] = {}

    def value(item: Any) -> Any:
        if isinstance(item, Ref):
            shape = step.values[item.name]
            return made.setdefault(item.name, torch.zeros(shape.shape, dtype=shape.dtype))
        return [value(part) for part in item] if isinstance(item, list | tuple) else item

    count, group = 0, CountingGroup(ranks)
    with exchanging(group):
        for own in step.steps:
            call = own.kernel
            if call.target in STARTS | FINISHES | {hand_out_, hand_out_numbers}:
                call.target(*map(value, call.args), **{name: value(item) for name, item in call.kwargs.items()})
                count += call.target not in FINISHES
    return count, group.sent_bytes


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
    count, sent_bytes = make_exchanges(step, ranks)
    foretold = outline(step, share)
    assert foretold.count == count > 0
    assert foretold.sent_bytes == pytest.approx(sent_bytes, rel=0.001), "stretches are rounded up"


def test_what_of_the_exchanges_is_hidden_follows_from_the_plan_and_is_said_only_if_it_was_measured() -> None:
    share = RankShare(rank=0, ranks=3)
    step = capture(share)
    foretold = outline(step, share)
    waits = sum(operator.awaits is not None for operator in step.graph.operators)
    assert waits == 2
    assert (foretold.total_ns, foretold.hidden_ns) == (2_000_000, 1_000_000)
    sends = 'each of 3 devices sends about 1.9 MB to the others in an iteration, in 2 exchanges ("reduce": "exact")'
    hidden = "1.00 of 2.00 ms of the gradients' exchange are foretold to run beside computation"
    assert foretold.text == f"{sends}; {hidden}"
    unmeasured = outline(step, share, measured=False)
    assert unmeasured.text == f"{sends}, whose time on the network is not known before such a job has trained"


@pytest.mark.nightly
def test_explanation_of_several_devices_is_of_one_rank_and_names_its_exchanges() -> None:
    catalog = FakeCatalog(latency_ns=7_000_000)
    several = replace(SPEC, devices=2, hyperparams=SPEC.hyperparams | {"reduce": "fast"})
    rows, alone = explain(several, catalog=catalog), explain(catalog=catalog)
    note = rows[-1]["note"]
    assert note.startswith("each of 2 devices sends about ")
    assert '("reduce": "fast")' in note
    assert "foretold to run beside computation" in note
    assert [row["starts_now"] for row in rows] == [None] * 3
    assert rows[0]["peak_bytes"] < alone[0]["peak_bytes"], "each has half of the activations"


def test_explanation_refuses_more_devices_than_a_batch_has_parts() -> None:
    parts = {"batch_size": 2048, "micro_batch_size": 1024}
    with pytest.raises(RequestError, match="2 parts of a batch cannot be divided among 3 devices"):
        explain(replace(SPEC, devices=3, hyperparams=parts))
