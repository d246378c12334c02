"""Tables in memory, and the plain loop that trains on them: what the tests here share."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning import datasets
from indb_tensile.learning.artifacts import ModelBundle
from indb_tensile.learning.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.hyperparams import learning_rate
from indb_tensile.learning.jsonrows import column_of
from indb_tensile.learning.model_metrics import evaluate
from indb_tensile.learning.preparation import Part, Prepared, batch_plan, batches
from indb_tensile.learning.splits import row_hashes

torch.set_num_threads(1)  # as trainers do; more of them only wait for one another on tensors this small

_KINDS = {
    "bigint": ColumnKind.INTEGER,
    "int": ColumnKind.INTEGER,
    "double precision": ColumnKind.FLOAT,
    "boolean": ColumnKind.BOOLEAN,
    "text": ColumnKind.TEXT,
    "real[]": ColumnKind.ARRAY,
    "date": ColumnKind.DATE,
    "timestamp": ColumnKind.TIME,
}


def table(described: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> TableData:
    """A table as `read` gives it; a column `id` is its primary key."""
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
    """The model as its weights are now, as it would be published."""
    return ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=dict(prepared.module.state_dict()),
    )


def sample(name: str) -> TableData:
    """One of the data sets."""
    return table(datasets.columns(name), datasets.rows(name))


def spec(target: str, task: Task = Task.CLASSIFICATION, **given: Any) -> JobSpec:
    """A request with defaults for what a test does not care about."""
    relation = Relation(oid=1, schema="public", name="t")
    return JobSpec(
        model="m", relation=relation, target=target, task=task, **{"architecture": {"type": "auto"}, **given}
    )


def train(prepared: Prepared) -> None:
    """The plain eager loop, in place."""
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
                loss = prepared.loss(prepared.module(prepared.train.x[index]), prepared.train.y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1


def score(prepared: Prepared, part: Part) -> dict[str, float]:
    """The metrics of the module as it is."""
    prepared.module.eval()
    with torch.inference_mode():
        outputs = prepared.module(part.x).numpy()
    return evaluate(prepared.task, np.asarray(outputs), part.y.numpy(), prepared.preprocessor)
