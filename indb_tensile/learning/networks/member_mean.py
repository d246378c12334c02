"""The prediction of several members as one: the mean of their values, or of their probabilities."""

import math
from enum import StrEnum

from torch import Tensor
from torch.nn import functional

from indb_tensile.job import Task


class OutputKind(StrEnum):
    """What the outputs of a network are, which decides about their mean."""

    VALUES = "values"
    CLASSES = "classes"  # logarithms of unscaled probabilities of classes, of which one occurs
    LABELS = "labels"  # logarithms of the odds of labels, each of which occurs or not


def output_kind_of(task: Task) -> OutputKind:
    """Return what the outputs of a network for this task are."""
    match task:
        case Task.REGRESSION | Task.FORECAST | Task.ANOMALY | Task.PAIRS:
            return OutputKind.VALUES
        case Task.MULTILABEL:
            return OutputKind.LABELS
        case _:
            return OutputKind.CLASSES


def member_mean(outputs: Tensor, kind: OutputKind) -> Tensor:
    """Return the mean prediction of members: outputs (batch, members, outputs) to (batch, outputs).

    The mean of probabilities is returned in the form of the outputs, so that a softmax, or a sigmoid, is the mean
    again.
    """
    match kind:
        case OutputKind.VALUES:
            return outputs.mean(dim=1)
        case OutputKind.CLASSES:
            return outputs.log_softmax(dim=-1).logsumexp(dim=1) - math.log(outputs.shape[1])
        case OutputKind.LABELS:
            return functional.logsigmoid(outputs).logsumexp(dim=1) - functional.logsigmoid(-outputs).logsumexp(dim=1)
