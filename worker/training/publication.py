"""What a finished training publishes, judged on the held-out rows beside the version that is deployed now."""

from dataclasses import dataclass

import torch

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import Publication
from indb_tensile.errors import TensileError
from indb_tensile.job import ClaimedJob, ModelVersionId
from indb_tensile.learning.artifacts import ModelBundle, Predictor
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
    """The new version and its metrics on the held-out rows, and the incumbent's on the same rows."""

    bundle: ModelBundle
    metrics: dict[str, float]
    incumbent: ModelVersionId | None
    incumbent_metric: float | None


def judge(session: Session, job: ClaimedJob, prepared: Prepared, weights: dict[str, torch.Tensor]) -> Judgement:
    """Evaluate the new weights as they will be served, and what they would replace."""
    bundle = ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=weights,
    )
    incumbent = session.run(lambda c: models.deployed_version(c, job.spec.model))
    return Judgement(
        bundle=bundle,
        metrics=Predictor(bundle).evaluate_columns(prepared.held_out),
        incumbent=incumbent,
        incumbent_metric=None if incumbent is None else _score(session, incumbent, prepared),
    )


def publication(job: ClaimedJob, prepared: Prepared, trained: Trained, found: Judgement) -> Publication:
    """Everything that `publish_version` stores."""
    return Publication(
        task=prepared.task,
        target=job.spec.target,
        architecture=prepared.architecture,
        bundle=found.bundle.to_json(),
        weights=found.bundle.to_bytes(),
        parameters=parameters_of(prepared.module),
        metric_name=prepared.metric,
        metric=found.metrics.get(prepared.metric),
        higher_is_better=HIGHER_IS_BETTER[prepared.metric],
        metrics=found.metrics,
        incumbent=found.incumbent,
        incumbent_metric=found.incumbent_metric,
        data_digest=prepared.data_digest,
        training=training_facts(prepared) | {"epochs_trained": trained.epochs, "best_epoch": trained.best_epoch},
    )


def _score(session: Session, version: ModelVersionId, prepared: Prepared) -> float | None:
    """The incumbent's metric on the same rows; None where it cannot be judged on them."""
    try:
        stored = session.run(lambda c: models.load_version(c, version))
        predictor = Predictor.load(stored.bundle, stored.weights)
        if predictor.preprocessor.target.name not in prepared.held_out:
            return None
        if any(name not in prepared.held_out for name in predictor.features):
            return None
        return predictor.evaluate_columns(prepared.held_out).get(prepared.metric)
    except TensileError:
        return None  # dropped meanwhile, or of labels and columns that these rows do not have
