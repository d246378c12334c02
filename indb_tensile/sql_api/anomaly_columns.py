"""Checks the columns of a training that finds anomalies."""

from ..errors import RequestError
from ..request.anomaly_rules import check_encodings, check_labels
from .feature_columns import used_columns
from .spi import Json
from .training_table import Table

_UNREAD = ("image",)


def check_columns(table: Table, spec: Json) -> None:
    """Refuse columns and encodings that an autoencoder does not reconstruct, and metrics that need labels."""
    images = [column.name for column in used_columns(table, spec) if column.kind in _UNREAD]
    if images:
        raise RequestError(
            f"task anomaly does not read images: {', '.join(images)}",
            hint="Leave them out with exclude, or store their pixels as an array of numbers.",
        )
    check_encodings(spec["preprocess"])
    check_labels(spec)
