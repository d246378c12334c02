"""Tables in memory, and a plain training loop on them. The tests of `learning` share both."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.batches.batch_order import batch_plan, batches
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.networks.hyperparams import learning_rate
from indb_tensile.learning.relation import datasets
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.storage.splits import row_hashes
from indb_tensile.learning.training.prepared_training import Prepared

torch.set_num_threads(1)  # as in trainers: with tensors this small, more threads only wait for one another

_KINDS = {
    "bigint": ColumnKind.INTEGER,
    "int": ColumnKind.INTEGER,
    "double precision": ColumnKind.FLOAT,
    "boolean": ColumnKind.BOOLEAN,
    "text": ColumnKind.TEXT,
    "real[]": ColumnKind.ARRAY,
    "text[]": ColumnKind.LABELS,
    "date": ColumnKind.DATE,
    "timestamp": ColumnKind.TIME,
    "bytea": ColumnKind.IMAGE,
}


def table(described: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> TableData:
    """Return a table as `read` returns it. A column `id` is its primary key."""
    listed = [list(row) for row in rows]
    columns: dict[str, ColumnData] = {}
    for position, (name, sql_type) in enumerate(described):
        columns[name] = column_of(name, _KINDS[sql_type], [row[position] for row in listed])
    meta = tuple(
        Column(name=name, type=kind, wire=CopyEncoding(kind=_KINDS[kind], item=""), primary_key=name == "id")
        for name, kind in described
    )
    identity = [columns["id"]] if "id" in columns else [columns[name] for name in sorted(columns)]
    hashes = row_hashes(identity, len(listed))
    return TableData(columns=columns, described=meta, rows=len(listed), row_hash=hashes, digest="")


def bundle(prepared: Prepared) -> ModelBundle:
    """Return the model with its present weights, as a job publishes it."""
    return ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=dict(prepared.module.state_dict()),
        ensemble=prepared.settings.ensemble,
    )


def sample(name: str) -> TableData:
    """Return a sample data set as a table."""
    return table(datasets.columns(name), datasets.rows(name))


def spec(target: str, task: Task = Task.CLASSIFICATION, **options: Any) -> JobSpec:
    """Return a job specification. Every option that a test leaves out has its default."""
    relation = Relation(oid=1, schema="public", name="t")
    return JobSpec(
        model="m", relation=relation, target=target, task=task, **{"architecture": {"type": "auto"}, **options}
    )


def train(prepared: Prepared) -> None:
    """Train the module in place with a plain eager loop."""
    settings = prepared.settings
    optimizer = torch.optim.AdamW(
        prepared.module.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    total = settings.epochs * batch_plan(prepared.train.rows, settings).steps
    step = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        prepared.module.train()
        for epoch in range(settings.epochs):
            for index in batches(prepared.train, epoch, settings):
                optimizer.param_groups[0]["lr"] = learning_rate(settings, step, total)
                loss = prepared.loss(prepared.module(prepared.train.chosen(index.numpy())), prepared.train.y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1


def score(prepared: Prepared, part: Part) -> dict[str, float]:
    """Return the metrics of the module on this part."""
    prepared.module.eval()
    with torch.inference_mode():
        outputs = prepared.module(part.first(part.rows)).numpy()
    return evaluate(prepared.task, np.asarray(outputs), part.targets.numpy(), prepared.preprocessor)
