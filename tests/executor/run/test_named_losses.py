"""Each loss that a training may name has the bits of a plain PyTorch loop, whole, in parts and in half precision."""

import pytest
import torch
from torch import nn

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.job import Task
from indb_tensile.learning.encoding.anomaly_scale import ERRORS_OF_PART
from indb_tensile.learning.encoding.forecast_encoding import QUANTILES, ForecastValues
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.weighted_losses import loss_for
from indb_tensile.request.loss_rules import LOSSES
from tests.executor.conftest import GRANT_BYTES
from tests.executor.eager_bits import assert_every_plan_gives_eagers_bits
from tests.executor.models import BATCH, CLASSES, TAIL, Job
from tests.nightly import nightly_unless

NAMED = [(Task(task), name) for task, names in LOSSES.items() for name in names]
PASSES = {"whole": WHOLE, "parts": Passes(micro_batch_size=3), "half precision": Passes(precision="bfloat16")}
CASES = [
    (*named, weighted, passes)
    for named in NAMED
    for weighted in (False, True)
    for passes in PASSES
    if not (weighted and named[0] in (Task.ANOMALY, Task.FORECAST, Task.PAIRS))  # whose rows have no weights
    if not (named[0] is Task.PAIRS and passes == "parts")  # a part of a batch has other items to compare with
]
FORECAST = ForecastValues(horizon=3, targets=2, interval=0.8)
DAILY = {
    ("reconstruction", False, "parts"),
    ("focal", True, "parts"),
    ("poisson", False, "half precision"),
    ("quantile", True, "whole"),
    ("pinball", False, "parts"),
}


def _job(task: Task, name: str, *, weighted: bool, passes: Passes) -> Job:
    torch.manual_seed(4)
    classified, forecast = task is Task.CLASSIFICATION, FORECAST if task is Task.FORECAST else None
    settings = TrainingSettings.parse(
        {"loss": name} | ({"label_smoothing": 0.1} if name == "cross_entropy" else {}), 9
    )
    outputs = CLASSES if classified else QUANTILES * forecast.count if forecast else 1
    module: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))
    if task is Task.ANOMALY:
        declared = {"type": "autoencoder", "widths": [1, 2, 3], "divisors": [1, 1, 3]}
        module = build(declared, (6,), ERRORS_OF_PART * 3, task=task, seed=4)
    if task is Task.PAIRS:
        module = build({"type": "two_towers", "width": 4, "bins": 3}, (6,), 8, task=task, seed=4)

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(0, CLASSES, (rows,)) if classified else torch.rand(rows, 1)
        if forecast:  # the values, and which of them are known
            shape = (rows, forecast.count)
            y = torch.cat([torch.randn(shape), torch.randint(0, 2, shape).float()], dim=1)
        if task is Task.PAIRS:  # numbers of items, and logarithms of their frequencies
            y = torch.stack([torch.randint(0, 2, (rows,)).float(), -torch.rand(rows)], dim=1)
        return torch.randn(rows, 6), pack(y, torch.rand(rows)) if weighted else y

    return Job(
        module=module,
        settings=OptimizerSettings(kind="adamw", weight_decay=0.1),
        batches=(batch(BATCH), batch(BATCH), batch(TAIL)),
        held_out=batch(BATCH),
        loss=loss_for(module, task, settings, weighted=weighted, forecast=forecast),
        passes=passes,
    )


@pytest.mark.by_day("poisson")
@pytest.mark.parametrize(
    ("task", "name", "weighted", "passes"), nightly_unless(lambda case: case[1:] in DAILY, CASES), ids=str
)
def test_every_plan_gives_the_bits_of_the_eager_loop(task: Task, name: str, weighted: bool, passes: str) -> None:
    job = _job(task, name, weighted=weighted, passes=PASSES[passes])
    captured = job.steps
    steps = calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps
    assert_every_plan_gives_eagers_bits(job, steps)
