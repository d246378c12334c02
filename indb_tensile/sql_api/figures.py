"""Returns figures of a version: confusion matrix, ROC curves, calibration, metrics by label, importance of columns.

With a relation, its rows are read as the caller and the service computes the figure. Without one, the figure of the
rows that were held out of the training is read, which the training has stored.
"""

import json
from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from ..request.abbreviation import shown
from ..request.figure_rules import (
    CLASS_FIGURES,
    FIGURES,
    REPORTED_METRICS,
    STORED_BINS,
    check_bins,
    check_permutations,
    figure_title,
)
from ..request.request_fields import read_choice, read_integer, read_model_name, read_text
from ..request.task_rules import METRICS
from .evaluations import evaluate_relation
from .predictions import storable
from .refusals import DENIED, NOT_READY, RefusalError
from .spi import Json, Plpy, Row, fetch, literal
from .version_lookup import find_version

_NAMED_LABELS = 20  # labels that an error message names
Rows = list[Sequence[Any]]


def figure(plpy: Plpy, request: Json) -> Json:
    """Return the rows of a figure of a version."""
    name, kind = read_model_name(request), read_choice(request, "figure", FIGURES, FIGURES[0])
    version = find_version(plpy, name, read_integer(request, "version"), forecasts=kind == "forecast")
    oid = read_integer(request, "relation")
    options = _options(request, kind, version, stored=oid is None)
    if kind == "forecast" and version["task"] != "forecast":
        raise RequestError(
            f'model "{name}" predicts "{version["target"]}" of single rows, and forecasts no series',
            hint=f"See its metrics: select * from tensile_evaluate({literal(name)}).",  # noqa: S608 - a hint
        )
    if version["task"] == "anomaly":
        raise RequestError(
            f'model "{name}" finds anomalies, and has no {figure_title(kind)}',
            hint=f"See its metrics: select * from tensile_evaluate({literal(name)}).",  # noqa: S608 - a hint
        )
    if version["task"] == "pairs":
        raise RequestError(
            f'model "{name}" learns pairs, and has no {figure_title(kind)}',
            hint=f"See its metrics: select * from tensile_evaluate({literal(name)}).",  # noqa: S608 - a hint
        )
    if version["task"] == "regression" and kind in CLASS_FIGURES:
        raise RequestError(
            f'model "{name}" predicts "{version["target"]}" as a number, and has no {figure_title(kind)}',
            hint=f"See its metrics: select * from tensile_evaluate({literal(name)}).",  # noqa: S608 - a hint
        )
    if oid is not None:
        fields: Json = {"figure": kind, "options": options}
        answer = evaluate_relation(plpy, name, version, oid, read_text(request, "search_path"), fields)
        return {"rows": storable(answer["rows"])}
    label = options.get("label")
    match kind:
        case "confusion_matrix":
            return {"rows": _confusions(_stored(plpy, name, version, kind), label, version["task"])}
        case "roc_curve":
            return {"rows": _of_label(_stored(plpy, name, version, kind), label)}
        case "calibration":
            bins = _stored(plpy, name, version, kind) if label is None else _stored_bins(plpy, name, version, label)
            return {"rows": _merged(bins, options["bins"])}
        case "label_metrics":
            return {"rows": _reported(_stored(plpy, name, version, kind), label)}
    return {"rows": _stored(plpy, name, version, kind)}


def _options(request: Json, kind: str, version: Row, *, stored: bool) -> Json:
    """Return the checked arguments of a figure as the service reads them."""
    label = read_text(request, "label")
    match kind:
        case "calibration":
            return {"bins": check_bins(read_integer(request, "bins"), stored=stored), "label": label}
        case "feature_importance":
            repeats, seed = read_integer(request, "repeats"), read_integer(request, "seed")
            repeats, seed = check_permutations(repeats, seed, label, stored=stored)
            metric = version["metric_name"] or METRICS[version["task"]][0]
            return {"repeats": repeats, "seed": seed, "metric": metric, "label": label}
    return {"label": label}


def _stored(plpy: Plpy, model: str, version: Row, kind: str) -> Rows:
    row = fetch(plpy, STORED_FIGURE, version["version_id"], kind)[0]
    subject, function = kind.replace("_", " "), "calibration" if kind == "label_calibration" else kind
    way_out = f"tensile_{function}({literal(model)}, relation => 'table')"
    hint = f"Name rows to compute it from: select * from {way_out}."  # noqa: S608 - a hint
    if not row["visible"]:
        raise RefusalError(
            DENIED,
            f'model "{model}" belongs to another role',
            detail=f"Only its owner may read the {subject} of the held-out rows, because it names classes.",
            hint=hint,
        )
    if row["figure"] is None:
        number = " and a model that predicts one number" if kind == "label_metrics" else ""
        raise RefusalError(
            NOT_READY,
            f'version {version["number"]} of model "{model}" has no stored {subject}',
            detail=f"Release 0.1 stored none, and a training that holds out no rows{number} has none.",
            hint=hint,
        )
    stored = json.loads(row["figure"])
    if "rows" not in stored:
        message = f'version {version["number"]} of model "{model}" has no stored {subject}'
        raise RefusalError(NOT_READY, message, detail=f"Not stored: {stored.get('reason')}.", hint=hint)
    return list(stored["rows"])


def _confusions(rows: Rows, label: str | None, task: str) -> Rows:
    """Return the pairs of actual and predicted labels; with a label, whether rows have it: true or false.

    The stored pairs of sets of labels begin with the label that they are of.
    """
    if task == "multilabel":
        known = list(dict.fromkeys(name for name, *_ in rows))
        if label is None:
            raise RequestError(
                "a model of sets of labels has a confusion matrix for each label, and label is left out",
                hint=f"Name one of {_listed(known)} with label => '...'.",
            )
        _check_known(label, known, "confusion matrix")
        return [pair for name, *pair in rows if name == label]
    if label is None:
        return rows
    _check_known(label, list(dict.fromkeys(name for pair in rows for name in pair[:2])), "row")
    counts: dict[tuple[bool, bool], int] = {}
    for actual, predicted, number in rows:
        pair = actual == label, predicted == label
        counts[pair] = counts.get(pair, 0) + number
    return [
        (str(actual).lower(), str(predicted).lower(), counts[actual, predicted])
        for actual, predicted in sorted(counts)
    ]


def _stored_bins(plpy: Plpy, model: str, version: Row, label: str) -> Rows:
    """Return the stored bins of a label's probability."""
    calibrations = {str(name): list(bins) for name, bins in _stored(plpy, model, version, "label_calibration")}
    _check_known(label, list(calibrations), "calibration")
    return list(calibrations[label])


def _reported(rows: Rows, label: str | None) -> Rows:
    """Return name, metric, value and rows of each label, or of one."""
    if label is not None:
        _check_known(label, [name for name, *_ in rows], "metrics")
    return [
        (name, metric, metrics[metric], count)
        for name, count, metrics in rows
        for metric in REPORTED_METRICS
        if metric in metrics and label in (None, name)
    ]


def _check_known(label: str, known: list[str], subject: str) -> None:
    if label not in known:
        raise RequestError(
            f"the held-out rows have no {subject} of the label {shown(label)}", hint=f"Name one of {_listed(known)}."
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_LABELS} more" if len(names) > _NAMED_LABELS else ""
    return f"{', '.join(names[:_NAMED_LABELS])}{more}"


def _of_label(rows: Rows, label: str | None) -> Rows:
    """Return the points of the curve of a label, or of all.

    A stored curve is a label and a list of thresholds, each with the counts of true and false positives. A null
    threshold is infinite. The last point has all rows, from which the rates follow.
    """
    known = [name for name, _ in rows]
    if label is not None and label not in known:
        raise RequestError(
            f"the held-out rows have no ROC curve of the label {shown(label)}",
            hint=f"They have curves of {_listed(known)}. Of two labels, the curve of the second "
            "one is stored; that of the first one is its reflection.",
        )
    return [
        (
            name,
            "Infinity" if threshold is None else threshold,
            right / points[-1][1],
            wrong / points[-1][2],
            right,
            wrong,
        )
        for name, points in rows
        for threshold, right, wrong in points
        if label is None or name == label
    ]


def _merged(rows: Rows, bins: int) -> Rows:
    """Merge the stored bins of a calibration into wider ones."""
    width = STORED_BINS // bins
    sums: dict[int, list[float]] = {}
    for number, mean, share, count in rows:
        total = sums.setdefault((number - 1) // width + 1, [0.0, 0.0, 0])
        total[0] += mean * count
        total[1] += round(share * count)
        total[2] += count
    return [(number, chances / count, right / count, count) for number, (chances, right, count) in sums.items()]


STORED_FIGURE = """
select f.figure::text as figure,
       f.version_id is not null or $2::text in ('calibration', 'feature_importance', 'forecast')
       or (m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation()) as visible
  from tensile.model_versions as v
  join tensile.models as m on m.model_id = v.model_id
  left join tensile.version_figures as f on f.version_id = v.version_id and f.name = $2::text
 where v.version_id = $1::int8"""
