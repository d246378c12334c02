"""What a finished training publishes, judged on the held-out rows beside the version that is deployed now."""

from dataclasses import dataclass, replace

import torch

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import Publication
from indb_tensile.errors import MissingError, TensileError
from indb_tensile.job import ClaimedJob, ModelVersionId
from indb_tensile.learning.artifacts import ModelBundle, Predictor
from indb_tensile.learning.comparison import why_incomparable
from indb_tensile.learning.datareport import report_result
from indb_tensile.learning.evaluation import HIGHER_IS_BETTER
from indb_tensile.learning.training import Prepared

from .steps import parameters_of
from .telling import training_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training ended with: `weights` are those after epoch `best_epoch` of `epochs`, counted from 1."""

    weights: dict[str, torch.Tensor]
    epochs: int
    best_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The new version and its metrics on the held-out rows, and the incumbent's on the same rows.

    `incomparable` says why the incumbent has no metric to compare with; it is empty where it has one.
    """

    bundle: ModelBundle
    metrics: dict[str, float]
    incumbent: ModelVersionId | None = None
    incumbent_metric: float | None = None
    incomparable: str = ""


def judge(prepared: Prepared, weights: dict[str, torch.Tensor]) -> Judgement:
    """Evaluate the new weights as they will be served."""
    bundle = ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=weights,
    )
    return Judgement(bundle=bundle, metrics=Predictor(bundle).evaluate_columns(prepared.held_out))


def compare(session: Session, job: ClaimedJob, prepared: Prepared, own: Judgement) -> Judgement:
    """The same beside the version that is deployed now, on the same rows."""
    incumbent = session.run(lambda c: models.deployed_version(c, job.spec.model))
    metric, why = (None, "") if incumbent is None else _score(session, incumbent, prepared)
    return replace(own, incumbent=incumbent, incumbent_metric=metric, incomparable=why)


def publication(job: ClaimedJob, prepared: Prepared, trained: Trained, found: Judgement) -> Publication:
    """Everything that `publish_version` stores. The bundle has the split too, for `tensile_split`."""
    result = report_result(
        prepared.metric, found.metrics, prepared.preprocessor, prepared.train.y.numpy(), prepared.test.y.numpy()
    )
    return Publication(
        task=prepared.task,
        target=job.spec.target,
        architecture=prepared.architecture,
        bundle=found.bundle.to_json() | {"split": prepared.membership},
        weights=found.bundle.to_bytes(),
        parameters=parameters_of(prepared.module),
        metric_name=prepared.metric,
        metric=found.metrics.get(prepared.metric),
        higher_is_better=HIGHER_IS_BETTER[prepared.metric],
        metrics=found.metrics,
        incumbent=found.incumbent,
        incumbent_metric=found.incumbent_metric,
        incomparable=found.incomparable,
        data_digest=prepared.data_digest,
        report=[fact.to_json() for fact in (*prepared.report, *result)],
        training=training_facts(prepared) | {"epochs_trained": trained.epochs, "best_epoch": trained.best_epoch},
    )


def _score(session: Session, version: ModelVersionId, prepared: Prepared) -> tuple[float | None, str]:
    """The incumbent's metric on the same rows, or why it cannot be compared."""
    rows = prepared.held_out
    try:
        stored = session.run(lambda c: models.load_version(c, version))
        predictor = Predictor.load(stored.bundle, stored.weights)
        why = why_incomparable(predictor.preprocessor, prepared.preprocessor, rows)
        return (None, why) if why else (predictor.evaluate_columns(rows).get(prepared.metric), "")
    except MissingError:
        return None, "that version was dropped while this one was judged"  # publishing finds another one, or none
    except TensileError as error:
        return None, f"that version cannot be evaluated on this one's test rows: {error.message}"
