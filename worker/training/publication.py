"""Evaluates a finished training on the held-out rows beside the deployed version, and prepares its publication."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy.typing as npt
import torch

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import Publication
from indb_tensile.errors import MissingError, OvertakenError, TensileError
from indb_tensile.job import ClaimedJob, ModelVersionId, Task
from indb_tensile.learning.encoding.anomaly_scale import AnomalyScale
from indb_tensile.learning.encoding.baseline_input import baseline_input
from indb_tensile.learning.encoding.forecast_encoding import ErrorSums, interval_width
from indb_tensile.learning.encoding.pair_encoding import popularity_metrics
from indb_tensile.learning.evaluation.class_figures import stored_figures
from indb_tensile.learning.evaluation.model_metrics import HIGHER_IS_BETTER, evaluate
from indb_tensile.learning.evaluation.output_report import output_report
from indb_tensile.learning.forecasting.forecast_table import ForecastRows, step_rows
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.comparison import why_incomparable, why_other_forecast
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.reports.held_out_importance import stored_importance
from indb_tensile.learning.reports.pair_report import report_popularity
from indb_tensile.learning.reports.report_facts import Fact
from indb_tensile.learning.reports.result_report import report_result
from indb_tensile.learning.reports.series_report import best_baseline, report_baselines
from indb_tensile.learning.training.boosted_baseline import why_no_baseline
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.estimator_rules import is_estimator

from ..captured_steps import parameters_of, trained_parameters_of
from ..stored_predictors import predictor_of
from .divergence import require_finite
from .training_events import data_facts, training_facts

_MOST_REFERENCE = 100_000  # most rows whose errors make those of anomalies comparable: quantiles need no more

log = logging.getLogger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of a training: the weights after epoch `best_epoch` of `epochs`, counted from 1."""

    weights: dict[str, torch.Tensor]
    epochs: int
    best_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The new version, its metrics and figures on the held-out rows, and the deployed version's metric on them.

    `incumbent` is the deployed version. `incomparable` says why it has no metric to compare with; it is empty if it
    has one. `baselines` are the errors of simple forecasts on the same windows.
    """

    bundle: ModelBundle
    metrics: dict[str, float]
    figures: dict[str, dict[str, Any]]
    incumbent: ModelVersionId | None = None
    incumbent_metric: float | None = None
    incomparable: str = ""
    baselines: Mapping[str, ErrorSums] = field(default_factory=dict)


def judge(prepared: Prepared, weights: dict[str, torch.Tensor]) -> Judgement:
    """Evaluate the new weights, as they will be served, on the held-out rows."""
    bundle = ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=weights,
        ensemble=prepared.settings.ensemble,
        baseline=baseline_input(prepared.train.unpacked, prepared.preprocessor),
        forecast=None if prepared.forecast is None else prepared.forecast.recipe,
        network=prepared.network,
    )
    if prepared.forecast is not None:
        return _judge_forecast(prepared, bundle, prepared.forecast)
    if prepared.preprocessor.target.anomaly is not None:
        return _judge_anomalies(prepared, bundle, prepared.preprocessor.target.anomaly)
    if prepared.task is Task.PAIRS:
        return _judge_pairs(prepared, bundle)
    outputs, targets = ModelPredictor(bundle).score_columns(prepared.held_out)
    metrics = evaluate(prepared.task, outputs, targets, prepared.preprocessor, each=True)
    figures = _figures(prepared, outputs, targets)
    if reason := why_no_baseline(prepared):
        figures["baseline"] = {"reason": reason}
    figures["feature_importance"] = stored_importance(bundle, prepared.held_out, prepared.metric)
    return Judgement(bundle=bundle, metrics=metrics, figures=figures)


def _figures(prepared: Prepared, outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of the labels, or of several values, on the held-out rows."""
    task, preprocessor = prepared.task, prepared.preprocessor
    figures = {} if task is Task.REGRESSION else stored_figures(task, outputs, targets, preprocessor.target.names)
    report = output_report(task, outputs, targets, preprocessor)
    return figures | ({"label_metrics": {"rows": report}} if report else {})


def _judge_forecast(prepared: Prepared, bundle: ModelBundle, rows: ForecastRows) -> Judgement:
    """Evaluate the new weights on the windows that test, beside forecasts that need no training."""
    bundle, rows = _widened(prepared, bundle, rows)
    outputs, targets = ModelPredictor(bundle).score_columns(prepared.held_out)
    values, baselines = rows.recipe.values, rows.baseline_sums()
    outcomes = values.split(targets)
    ours = ErrorSums.of(values, outcomes, values.restored(outputs, outcomes.level, outcomes.spread))
    metrics = evaluate(prepared.task, outputs, targets, bundle.preprocessor)
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    judged = {name: sums.metrics() for name, sums in baselines.items()}
    figures = {
        "forecast": {"rows": step_rows(rows.recipe, ours, baselines), "names": list(baselines)},
        "baseline": best_baseline(prepared.metric, judged),
    }
    return Judgement(bundle=bundle, metrics=metrics, figures=figures, baselines=baselines)


def _judge_anomalies(prepared: Prepared, bundle: ModelBundle, scale: AnomalyScale) -> Judgement:
    """Make the errors of the new weights comparable, and evaluate them on the rows that test."""
    predictor = ModelPredictor(bundle)
    valid, train = (
        predictor.outputs(part.first(_MOST_REFERENCE).numpy()) for part in (prepared.valid, prepared.train)
    )
    target = replace(bundle.preprocessor.target, anomaly=scale.fitted(valid, train))
    bundle = replace(bundle, preprocessor=bundle.preprocessor.with_target(target))
    outputs, targets = ModelPredictor(bundle).score_columns(prepared.held_out)
    metrics = evaluate(prepared.task, outputs, targets, bundle.preprocessor)
    reason = why_no_baseline(prepared)
    figures: dict[str, dict[str, Any]] = {"baseline": {"reason": reason}} if reason else {}
    return Judgement(bundle=bundle, metrics=metrics, figures=figures)


def _judge_pairs(prepared: Prepared, bundle: ModelBundle) -> Judgement:
    """Evaluate the new weights on the pairs that test, beside a ranking of items by their popularity."""
    outputs, targets = ModelPredictor(bundle).score_columns(prepared.held_out)
    metrics = evaluate(prepared.task, outputs, targets, bundle.preprocessor)
    figure: dict[str, Any] = {"reason": "no row is held out"}
    if len(targets):
        popular = popularity_metrics(prepared.train.targets.numpy(), targets)
        figure = {"metrics": popular, "name": "popularity"}
    return Judgement(bundle=bundle, metrics=metrics, figures={"baseline": figure})


def _widened(prepared: Prepared, bundle: ModelBundle, rows: ForecastRows) -> tuple[ModelBundle, ForecastRows]:
    """Return the bundle and the series with intervals as wide as the windows that validate ask for."""
    if not prepared.valid.rows:
        return bundle, rows
    outputs = ModelPredictor(bundle).outputs(prepared.valid.x.numpy())
    width = interval_width(rows.recipe.values, outputs, prepared.valid.targets.numpy())
    rows = replace(rows, recipe=replace(rows.recipe, width=width))
    target = replace(bundle.preprocessor.target, forecast=rows.recipe.values)
    return replace(bundle, forecast=rows.recipe, preprocessor=bundle.preprocessor.with_target(target)), rows


def compare(session: Session, job: ClaimedJob, prepared: Prepared, judgement: Judgement) -> Judgement:
    """Return the judgement with the metric of the version that is deployed now, on the same rows."""
    incumbent = session.run(lambda c: models.deployed_version(c, job.spec.model))
    metric, reason = (None, "") if incumbent is None else _evaluate_incumbent(session, incumbent, prepared)
    return replace(judgement, incumbent=incumbent, incumbent_metric=metric, incomparable=reason)


def publication(job: ClaimedJob, prepared: Prepared, trained: Trained, judgement: Judgement) -> Publication:
    """Return the values that `publish_version` stores. The bundle includes the split, for `tensile_split`."""
    result = _result_facts(prepared, judgement)
    return Publication(
        task=prepared.task,
        target=job.spec.target,
        architecture=prepared.architecture,
        bundle=judgement.bundle.to_json() | {"split": prepared.membership},
        weights=judgement.bundle.to_bytes(),
        parameters=_numbers(prepared),
        metric_name=prepared.metric,
        metric=judgement.metrics.get(prepared.metric),
        higher_is_better=HIGHER_IS_BETTER[prepared.metric],
        metrics=judgement.metrics,
        incumbent=judgement.incumbent,
        incumbent_metric=judgement.incumbent_metric,
        incomparable=judgement.incomparable,
        data_digest=prepared.data_digest,
        figures={**judgement.figures, **prepared.inputs},
        report=[fact.to_json() for fact in (*prepared.report, *result)],
        training=training_facts(prepared)
        | data_facts(prepared, job.spec)
        | {"epochs_trained": trained.epochs, "best_epoch": trained.best_epoch}
        | _compared(judgement),
    )


def _result_facts(prepared: Prepared, judgement: Judgement) -> tuple[Fact, ...]:
    """Return the lines of the report about the metric."""
    if prepared.forecast is not None:
        return report_baselines(prepared.metric, judgement.metrics, judgement.baselines)
    if prepared.task is Task.PAIRS:
        return report_popularity(
            prepared.metric, judgement.metrics, judgement.figures["baseline"], prepared.test.targets.numpy()
        )
    return report_result(
        prepared.metric,
        judgement.metrics,
        prepared.preprocessor,
        prepared.train.targets.numpy(),
        prepared.test.targets.numpy(),
    )


def _compared(judgement: Judgement) -> dict[str, Any]:
    """Return the outcome of the comparison with the deployed version, from which the end of a search decides."""
    if judgement.incumbent is None:
        return {}
    compared = {"version_id": judgement.incumbent, "metric": judgement.incumbent_metric}
    return {"compared": compared | ({"incomparable": judgement.incomparable} if judgement.incomparable else {})}


def _numbers(prepared: Prepared) -> int:
    """Return how many numbers the model has learned."""
    if is_estimator(prepared.architecture):
        return int(cast(Any, prepared.module).numbers)
    if prepared.network is not None:
        return trained_parameters_of(prepared.module)
    return parameters_of(prepared.module)


def publish(session: Session, job: ClaimedJob, prepared: Prepared, trained: Trained) -> ModelVersionId:
    """Publish the version, and return its id. Raises RequestError for a network that diverged.

    If another version was deployed since the comparison, compare with that and try again.
    """
    if not is_estimator(prepared.architecture):
        rate = prepared.settings.learning_rate
        require_finite(prepared.module, trained.weights, epoch=trained.best_epoch, learning_rate=rate)
    judgement = judge(prepared, trained.weights)
    while True:
        version = publication(job, prepared, trained, compare(session, job, prepared, judgement))
        try:
            return session.run(partial(models.publish_version, claimed=job, publication=version))
        except OvertakenError as overtaken:
            log.info("job %s: %s", job.job, overtaken)


def _evaluate_incumbent(session: Session, version: ModelVersionId, prepared: Prepared) -> tuple[float | None, str]:
    """Return the incumbent's metric on the same rows, or None and the reason why it cannot be compared."""
    rows = prepared.held_out
    try:
        stored = session.run(lambda c: models.load_version(c, version))
        predictor = predictor_of(stored)
        if prepared.forecast is not None:
            return _evaluate_forecast(predictor, prepared.forecast, prepared.metric)
        reason = why_incomparable(predictor.preprocessor, prepared.preprocessor, rows)
        return (None, reason) if reason else (predictor.evaluate_columns(rows).get(prepared.metric), "")
    except MissingError:
        # The publication then compares with the version that is deployed by then, if any.
        return None, "that version was dropped while this one was judged"
    except TensileError as error:
        return None, f"that version cannot be evaluated on this one's test rows: {error.message}"


def _evaluate_forecast(predictor: ModelPredictor, rows: ForecastRows, metric: str) -> tuple[float | None, str]:
    """Return an older version's metric at the same origins. The windows are those of its own recipe."""
    old = predictor.bundle.forecast
    if reason := why_other_forecast(old, rows.recipe):
        return None, reason
    assert old is not None
    return predictor.evaluate_columns(rows.columns_for(old)).get(metric), ""
