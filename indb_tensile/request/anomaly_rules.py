"""What a training that finds anomalies takes: columns without a target, and perhaps labels to judge scores by."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .network_rules import ANOMALY_ARCHITECTURES
from .parameter_rules import Json

LABEL_METRICS = ("roc_auc", "average_precision")  # which need a column of labels
_REFUSED = {"init_from": "Leave it out, or repeat the last training on new rows with tensile_retrain."}
_HYPERPARAMS = {
    "weight": "Leave it out: all rows count the same.",
    "class_weight": "Leave it out: labels take no part in the training.",
    "ensemble": "Leave it out.",
}


def check_anomaly(request: Mapping[str, Any], spec: Json) -> None:
    """Raise RequestError for what this task does not take, and for what only this task takes."""
    kind, task = spec["architecture"]["type"], spec["task"]
    if task != "anomaly":
        if kind in ANOMALY_ARCHITECTURES:
            raise RequestError(
                f"architecture {kind} finds anomalies, and the task is {task}",
                hint="Give task => 'anomaly', or another architecture.",
            )
        if "contamination" in spec["hyperparams"]:
            raise RequestError(f'hyperparams: "contamination" means nothing to task {task}', hint="Leave it out.")
        return
    if kind not in ("auto", *ANOMALY_ARCHITECTURES):
        raise RequestError(
            f"architecture {kind} cannot find anomalies", hint=f"Give auto or {', '.join(ANOMALY_ARCHITECTURES)}."
        )
    for name, hint in _REFUSED.items():
        if request.get(name) not in (None, [], {}):
            raise RequestError(f"{name} cannot be combined with task => 'anomaly'", hint=hint)
    for name, hint in _HYPERPARAMS.items():
        if spec["hyperparams"].get(name) not in (None, 1):
            raise RequestError(f"hyperparams: \"{name}\" cannot be combined with task => 'anomaly'", hint=hint)


def check_labels(spec: Json) -> None:
    """Raise RequestError for a metric that needs labels if the training has none."""
    early = (spec.get("early_stop") or {}).get("metric")
    for name, metric in (("metric", spec["metric"]), ("early_stop", early)):
        if metric in LABEL_METRICS and not spec["target"]:
            raise RequestError(
                f"{name} {metric} needs a column that says which rows are anomalies",
                hint="Name it with target => '...', or leave the metric out.",
            )


def check_encodings(preprocess: Json) -> None:
    """Raise RequestError for encodings of texts that an autoencoder cannot reconstruct."""
    encode = preprocess.get("encode")
    named = encode.items() if isinstance(encode, dict) else [("", encode)]
    for column, encoding in named:
        if encoding in ("target", "tokens"):
            subject = f'column "{column}"' if column else "encode"
            raise RequestError(
                f"preprocess: {subject} is encoded as {encoding}, which task anomaly does not take",
                hint="Give onehot, ordinal or hash.",
            )
