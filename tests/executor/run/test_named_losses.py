"""Each loss that a training may name has the bits of a plain PyTorch loop, whole, in parts and in half precision."""

import pytest
import torch
from torch import nn

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.job import Task
from indb_tensile.learning.architectures import build
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.weighted_losses import loss_for, pack
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
    if not (weighted and named[0] is Task.ANOMALY)  # whose rows have no weights
]
DAILY = {
    ("reconstruction", False, "parts"),
    ("focal", True, "parts"),
    ("poisson", False, "half precision"),
    ("quantile", True, "whole"),
}


def _job(task: Task, name: str, *, weighted: bool, passes: Passes) -> Job:
    torch.manual_seed(4)
    classified = task is Task.CLASSIFICATION
    settings = TrainingSettings.parse(
        {"loss": name} | ({"label_smoothing": 0.1} if name == "cross_entropy" else {}), 9
    )
    module: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES if classified else 1))
    if task is Task.ANOMALY:
        declared = {"type": "autoencoder", "widths": [1, 2, 3], "divisors": [1, 1, 3]}
        module = build(declared, (6,), 3, task=task, seed=4)

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(0, CLASSES, (rows,)) if classified else torch.rand(rows, 1)
        return torch.randn(rows, 6), pack(y, torch.rand(rows)) if weighted else y

    return Job(
        module=module,
        settings=OptimizerSettings(kind="adamw", weight_decay=0.1),
        batches=(batch(BATCH), batch(BATCH), batch(TAIL)),
        held_out=batch(BATCH),
        loss=loss_for(module, task, settings, weighted=weighted),
        passes=passes,
    )


@pytest.mark.parametrize(
    ("task", "name", "weighted", "passes"), nightly_unless(lambda case: case[1:] in DAILY, CASES), ids=str
)
def test_every_plan_gives_the_bits_of_the_eager_loop(task: Task, name: str, weighted: bool, passes: str) -> None:
    job = _job(task, name, weighted=weighted, passes=PASSES[passes])
    captured = job.steps
    steps = calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps
    assert_every_plan_gives_eagers_bits(job, steps)
