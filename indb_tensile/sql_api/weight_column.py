"""Checks the column that weighs the rows of a training."""

from ..request.feature_rules import check_features
from ..request.hyperparam_rules import check_weight_kind, check_weights
from ..request.task_rules import target_columns
from .feature_columns import used_columns
from .spi import Json
from .training_table import Table


def check_weight_column(table: Table, spec: Json) -> None:
    """Refuse weights that the task does not have, and a weight that is no column of numbers."""
    check_weights(spec["hyperparams"], spec["task"], target_columns(spec), spec["features"])
    name = spec["hyperparams"].get("weight")
    if name is not None:
        column = table.column(name, "hyperparams")
        check_weight_kind(f'"{name}" of {table}', column.kind, f"has type {column.type}")
        features = [column.name for column in used_columns(table, spec)]
        check_features(target_columns(spec), features, str(table), table.column_names)
