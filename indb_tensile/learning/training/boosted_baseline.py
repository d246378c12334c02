"""The baseline of a training: gradient boosting on the same parts of the same rows, judged by the same metrics.

Boosted trees often predict a table better than a network does. Users who train a network should see that. The
baseline is what the architecture `boosting` trains with its defaults. Its time is bounded by the numbers of its rows:
at most 50,000 rows train, evenly spaced ones of the training part, and fewer if they are wide or have many classes.
Only its metrics are kept.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.anomaly_scale import label_metrics
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.models.artifacts import pack as packed_file
from indb_tensile.learning.models.artifacts import unpack
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.training.prepared_training import Prepared

MOST_ROWS = 50_000
MOST_NUMBERS = 5_000_000  # numbers of all training rows, times the trees of an iteration: about a minute of one core
MOST_TREES = 20  # most trees of an iteration: one for each class, value or label
_FEWEST_ROWS = 1_000  # rows of the smallest sample: fewer would say little about the table
_PARTS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaselineRows:
    """The rows of a baseline, sampled from the parts of a training, with what their targets mean."""

    train: Part
    valid: Part
    test: Part
    task: Task
    preprocessor: Preprocessor
    seed: int

    @classmethod
    def of(cls, prepared: Prepared) -> "BaselineRows":
        """Sample the rows of a training for which `why_no_baseline` names no reason."""
        trees, width = _trees(prepared.task, prepared.outputs), prepared.input_shape[0]
        most = min(MOST_ROWS, MOST_NUMBERS // (trees * width))
        return cls(
            train=_sample(prepared.train, most),
            valid=_sample(prepared.valid, most),
            test=_sample(prepared.test, MOST_ROWS),
            task=prepared.task,
            preprocessor=prepared.preprocessor,
            seed=prepared.settings.seed,
        )

    def to_bytes(self) -> bytes:
        """Return the rows as a safetensors file."""
        tensors = {
            f"{name}/{field}": tensor for name in _PARTS for field, tensor in _fields(getattr(self, name)).items()
        }
        facts = {"task": self.task.value, "seed": self.seed, "preprocessor": self.preprocessor.to_json()}
        return packed_file(tensors, {"facts": json.dumps(facts)})

    @classmethod
    def from_bytes(cls, stored: bytes) -> "BaselineRows":
        """Read rows that `to_bytes` wrote. Raises DatabaseError for anything else."""
        tensors, metadata = unpack(stored)
        facts = json.loads(metadata["facts"])
        train, valid, test = (
            Part(x=tensors[f"{part}/x"], y=tensors[f"{part}/y"], targets=tensors[f"{part}/targets"])
            for part in _PARTS
        )
        return cls(
            train=train,
            valid=valid,
            test=test,
            task=Task(facts["task"]),
            preprocessor=Preprocessor.from_json(facts["preprocessor"]),
            seed=int(facts["seed"]),
        )


_OTHER_BASELINES = {
    Task.FORECAST: "forecasts are compared with simple ones",
    Task.PAIRS: "items are compared with their popularity",
}


def why_no_baseline(prepared: Prepared) -> str:
    """Return why a training has no baseline, or an empty text if it has one."""
    if not prepared.settings.baseline:
        return "the hyper-parameter baseline is false"
    if prepared.architecture["type"] == "boosting":
        return "the model is one of boosting itself"
    if prepared.task is Task.ANOMALY and not _has_both(prepared.test):
        return "the rows that are held out have no labels of anomalies to compare by"
    if prepared.task in _OTHER_BASELINES:
        return _OTHER_BASELINES[prepared.task]
    if len(prepared.input_shape) != 1:
        return "rows are images or sequences, and not rows of a table"
    if prepared.train.form is not None:
        return "a feature is a column of images"
    if not prepared.test.rows:
        return "no row is held out"
    trees, width = _trees(prepared.task, prepared.outputs), prepared.input_shape[0]
    if trees > MOST_TREES:
        return f"boosting for {trees} classes, values or labels takes too long"
    if MOST_NUMBERS // (trees * width) < min(prepared.train.rows, _FEWEST_ROWS):
        return f"boosting for rows of {width} numbers takes too long"
    return ""


def rows_digest(rows: bytes) -> str:
    """Return a digest by which equal rows are recognised, since equal rows have equal baselines."""
    return hashlib.sha256(rows).hexdigest()


def baseline_figure(rows: BaselineRows) -> dict[str, Any]:
    """Fit the baseline on one thread and return its `metrics`, or the `reason` why there are none."""
    if rows.task is Task.ANOMALY:
        metrics = label_metrics(forest_scores(rows.train.x, rows.test.x, rows.seed), rows.test.targets.numpy())
        counts = {"train_rows": rows.train.rows, "test_rows": rows.test.rows}
        return {"metrics": metrics, "name": "isolation forest", **counts}
    try:
        outputs = _outputs(rows)
    except RequestError as error:
        return {"reason": error.message}
    metrics = evaluate(rows.task, outputs, rows.test.targets.numpy(), rows.preprocessor)
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"metrics": finite, "train_rows": rows.train.rows, "test_rows": rows.test.rows}


def _outputs(rows: BaselineRows) -> npt.NDArray[np.float32]:
    """Return what a network would return for the test rows: outputs of the same form and unit."""
    target = rows.preprocessor.target
    if rows.task is Task.CLASSIFICATION:
        return _fitted_outputs(rows, Task.CLASSIFICATION, target.outputs)
    places = range(target.outputs)
    if rows.task is Task.MULTILABEL:
        return np.stack([_label_odds(rows, place) for place in places], axis=1)
    values = np.hstack([_fitted_outputs(_of_value(rows, place), Task.REGRESSION, 1) for place in places])
    return target.constant_output(values).astype(np.float32)


def _label_odds(rows: BaselineRows, place: int) -> npt.NDArray[np.float32]:
    """Return the logarithm of the odds of one label for the test rows."""
    own = _of_value(rows, place)
    share = float(own.train.targets.float().mean())
    if share in (0.0, 1.0):
        return np.full(rows.test.rows, 20.0 if share else -20.0, np.float32)
    logarithms = _fitted_outputs(own, Task.CLASSIFICATION, 2)
    return logarithms[:, 1] - logarithms[:, 0]


def _of_value(rows: BaselineRows, place: int) -> BaselineRows:
    """Return the rows with one of several values or labels as their only target."""
    label = rows.task is Task.MULTILABEL

    def of_part(part: Part) -> Part:
        targets = part.targets[:, place].long() if label else part.targets[:, place : place + 1]
        if part.y.shape == part.targets.shape:
            return replace(part, targets=targets, y=targets)
        weights = part.y[:, part.targets.shape[1] :]
        own = weights[:, place if weights.shape[1] > 1 else 0]
        return replace(part, targets=targets, y=pack(targets, own))

    return replace(rows, train=of_part(rows.train), valid=of_part(rows.valid), test=of_part(rows.test))


def _fitted_outputs(rows: BaselineRows, task: Task, outputs: int) -> npt.NDArray[np.float32]:
    # Imported here because scikit-learn's estimators take a third of a second, and trainers need only the sample.
    from indb_tensile.learning.networks.estimators import Estimator

    shape = rows.preprocessor.input_shape
    architecture = architectures.with_layout({"type": "boosting"}, rows.preprocessor.layout)
    model = architectures.build(architecture, shape, outputs, task=task)
    assert isinstance(model, Estimator)
    model.fit(rows.train, rows.valid, task, seed=rows.seed, threads=1)
    predicted: npt.NDArray[np.float32] = model(rows.test.x).numpy()
    return predicted


def forest_scores(train: Tensor, test: Tensor, seed: int) -> npt.NDArray[np.float64]:
    """Return the scores of an isolation forest (Liu and others 2008) with the defaults of scikit-learn."""
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(random_state=seed, n_jobs=1).fit(train.flatten(1).numpy())
    scores: npt.NDArray[np.float64] = -forest.score_samples(test.flatten(1).numpy())
    return scores


def _has_both(part: Part) -> bool:
    """Return whether rows have labels of anomalies and of others."""
    return bool((part.targets == 1).any() and (part.targets == 0).any())


def _trees(task: Task, outputs: int) -> int:
    """Return how many trees an iteration of boosting grows."""
    return 1 if task is Task.ANOMALY or (task is Task.CLASSIFICATION and outputs == 2) else outputs


def _sample(part: Part, most: int) -> Part:
    """Return evenly spaced rows of a part, at most this many, as copies."""
    chosen = min(part.rows, most)
    places = np.arange(chosen, dtype=np.int64) * part.rows // max(chosen, 1)
    rows = torch.from_numpy(places)
    return Part(x=torch.as_tensor(part.unpacked[places]), y=part.y[rows], targets=part.targets[rows])


def _fields(part: Part) -> dict[str, Tensor]:
    return {"x": part.x, "y": part.y, "targets": part.targets}
