"""Trains a job's network on a table as a job does, by plain PyTorch and without a database.

A job computes the same bits with its captured steps (`bench exact`), so the quality is that of a job. The time is
that of plain PyTorch.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.job import JobSpec, Relation
from indb_tensile.learning.batches.batch_order import batch_plan, batches, ordered_batches
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.networks.estimators import Estimator
from indb_tensile.learning.networks.hyperparams import TrainingSettings, learning_rate
from indb_tensile.learning.training.plateau import Plateau
from indb_tensile.learning.training.prepared_training import Prepared

_EVALUATED_ROWS = 4096
_AUTO: Mapping[str, Any] = {"type": "auto"}


def specify(
    table: SampleTable, seed: int, hyperparams: Mapping[str, Any], architecture: Mapping[str, Any] = _AUTO
) -> JobSpec:
    """Return a job's specification for this table. The seed decides the split, the weights and the batches."""
    return JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name=table.name),
        target=table.target,
        task=table.task,
        architecture=dict(architecture),
        hyperparams={"seed": seed} | dict(hyperparams),
        split={"seed": seed},
    )


def train(prepared: Prepared) -> tuple[int, int]:
    """Train in place as a job's loop does, and load the best epoch's weights. Returns the epochs and steps taken.

    A model of scikit-learn is fitted, and its iterations are returned as both.
    """
    if isinstance(prepared.module, Estimator):
        seed, threads = prepared.settings.seed, torch.get_num_threads()
        fitted = prepared.module.fit(prepared.train, prepared.valid, prepared.task, seed=seed, threads=threads)
        return fitted.iterations, fitted.iterations
    module, settings, stop = prepared.module, prepared.settings, prepared.early_stop
    optimizer = _optimizer(module, settings)
    per_epoch = batch_plan(prepared.train.rows, settings).steps
    best: dict[str, torch.Tensor] = {}
    plateau = Plateau()
    epoch = 0
    while epoch < settings.epochs and not stop.stopped:
        module.train()
        for step, rows in enumerate(batches(prepared.train, epoch, settings, prepared.buckets)):
            at, total = epoch * per_epoch + step, settings.epochs * per_epoch
            rate = learning_rate(settings, at, total, plateau.reductions)
            optimizer.param_groups[0]["lr"] = rate
            loss = prepared.loss(module(_inputs(prepared, rows)), prepared.train.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if stop.patience is not None or settings.decay_patience is not None:
            loss_value = float(prepared.loss(outputs_of(prepared, prepared.valid), prepared.valid.y))
            if settings.decay_patience is not None:
                plateau = plateau.observe(loss_value, settings.decay_patience)
            stop = stop.observe(epoch, loss_value) if stop.patience is not None else stop
            if stop.patience is not None and stop.best_epoch == epoch:
                best = {name: value.clone() for name, value in module.state_dict().items()}
        epoch += 1
    if best:
        module.load_state_dict(best)
    return epoch, epoch * per_epoch


def _inputs(prepared: Prepared, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of a batch, of short texts without their padding."""
    x, buckets = prepared.train.x[rows], prepared.buckets
    return x if buckets is None else buckets.column.cut(x, buckets.lengths[buckets.bucket_of(rows)])


def _optimizer(module: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimizer, of the two that are defaults of jobs."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(learned, lr=rate, momentum=settings.momentum, weight_decay=decay)
    return torch.optim.AdamW(learned, lr=rate, betas=settings.betas, weight_decay=decay)


def outputs_of(prepared: Prepared, part: Part) -> torch.Tensor:
    """Return the network's outputs for these rows."""
    prepared.module.eval()
    with torch.inference_mode():
        return torch.cat([prepared.module(part.x[rows]) for rows in ordered_batches(part, _EVALUATED_ROWS)])


def metrics_of_test(prepared: Prepared) -> dict[str, float]:
    """Return every metric of the network on the test rows."""
    outputs = outputs_of(prepared, prepared.test).numpy()
    return evaluate(prepared.task, outputs, prepared.test.y.numpy(), prepared.preprocessor)


class Stopwatch:
    """Measures wall-clock and processor seconds of a block. Processor time counts all threads."""

    def __enter__(self) -> "Stopwatch":
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        began_s, began_processor_s = self._began
        self.seconds, self.processor_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
