"""Check which running statistics several devices update together, and that other buffers are refused."""

import pytest
import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture import rank_statistics
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.running_statistics import MEAN, VARIANCE, find_running_statistics
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.capture.step_trace import TracedStep, fake_like, fake_mode, fakes_of, trace
from indb_tensile.executor.capture.storage_layout import layout
from tests.executor.models import Normalised

BATCH = torch.randn(8, 6), torch.randint(0, 5, (8,))
LOSS = nn.CrossEntropyLoss()


def captured(module: nn.Module, reduce: Reduce = Reduce.EXACT) -> CapturedStep:
    share = RankShare(rank=0, ranks=2, reduce=reduce)
    return capture_training(module, LOSS, *BATCH, OptimizerSettings(), Passes(micro_batch_size=4), share)


def traced(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> TracedStep:
    mode = fake_mode()
    state = {value.name: fake for stored in layout(module, None) for value, fake in fakes_of(mode, stored)}
    return trace(mode, module, LOSS, state, [fake_like(mode, x), fake_like(mode, y)], train=True)


def test_statistics_are_found_in_the_order_in_which_one_device_updates_them() -> None:
    joint = traced(Normalised(), torch.randn(6, 1, 8, 8), torch.randint(0, 5, (6,)))
    running = find_running_statistics(joint, {name: name for name in joint.state.values()})
    layers = ("norm", "norm", "slow", "last")
    both = [
        (layer, kind, f"{layer}.{name}") for layer in layers for kind, name in ((MEAN, "mean"), (VARIANCE, "var"))
    ]
    assert [(s.kind, s.buffer) for s in running.statistics] == [
        (kind, name.replace(".mean", ".running_mean").replace(".var", ".running_var")) for _, kind, name in both
    ]
    assert [s.momentum for s in running.statistics] == [0.1] * 4 + [0.01] * 2 + [0.1] * 2
    assert running.counts == {
        "norm.num_batches_tracked": 2,
        "slow.num_batches_tracked": 1,
        "last.num_batches_tracked": 1,
    }


class Counter(nn.Module):
    """Keeps the sum of what it has seen in a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.detach().sum(0))
        return x


class Shifted(nn.Module):
    """Normalises, and subtracts the running mean as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.norm.running_mean is not None
        normalised: torch.Tensor = self.norm(x)
        return normalised - self.norm.running_mean


class Turned(nn.Module):
    """Normalises values in the memory order of their transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = self.norm(x.t().contiguous().t())
        return normalised


@pytest.mark.parametrize(("layer", "buffer"), [(Counter(), "0.seen"), (Shifted(), "0.norm.running_mean")])
def test_buffer_that_results_depend_on_is_refused(layer: nn.Module, buffer: str) -> None:
    with pytest.raises(RequestError, match=f"the model updates its buffer {buffer} while it trains"):
        captured(nn.Sequential(layer, nn.Linear(6, 5)))


def test_unusual_memory_order_is_refused_where_bits_are_promised() -> None:
    module = nn.Sequential(Turned(), nn.Linear(6, 5))
    refused = r"cannot update 0\.norm\.running_mean with the bits of one device"
    with pytest.raises(RequestError, match=refused) as caught:
        captured(module)
    assert caught.value.hint == 'Call contiguous() on them, use "reduce": "fast", or train on one device.'
    captured(module, Reduce.FAST)


def test_unknown_rounding_is_refused_where_bits_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_statistics, "roundings", lambda *_: {MEAN: None, VARIANCE: None})
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5))
    with pytest.raises(RequestError, match=r"cannot update 0\.running_mean with the bits of one device") as caught:
        captured(module)
    assert caught.value.detail == "Batch normalisation rounds on this device in a way that is not known."
    captured(module, Reduce.FAST)


def test_batch_normalisation_without_running_statistics_exchanges_none() -> None:
    names = [
        {operator.name for operator in captured(nn.Sequential(norm, nn.Linear(6, 5))).graph.operators}
        for norm in (nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False))
    ]
    handed_out = "tensile.start_hand_out_.default"
    assert [handed_out in own for own in names] == [True, False]
