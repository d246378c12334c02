"""Chooses what to predict: one column, whose values are classes or quantities, or several values for each row."""

from collections.abc import Sequence

from ..errors import RequestError
from ..request.request_fields import read_choice, read_text
from ..request.task_rules import TASKS, check_target, check_target_columns, named_targets
from .first_rows import count_shapes, count_values
from .refusals import MISSING_COLUMN, RefusalError
from .spi import Json, Plpy
from .training_table import Table, TableColumn, learnable_target
from .training_target import TrainingTarget

_CLASSES_OF_AN_INTEGER = 20  # an integer target with more distinct values is a quantity
_USUAL_NAMES = ("target", "label", "class", "y")


def choose_target(request: Json, before: Json, table: Table) -> TrainingTarget:
    """Return what to predict: what the request names, what the last run did, or the only column of a usual name.

    Anomalies need no target: a column that is named has labels, by which scores are judged. The target of pairs is
    what describes an item.
    """
    named, task = read_text(request, "target"), read_choice(request, "task", TASKS, before.get("task"))
    if named is not None:
        targets = _named(named, table) or ([] if task == "anomaly" else [named])
        return _of_columns(table, [table.column(name, "target") for name in targets])
    if (last := before.get("target")) is not None:
        return _of_columns(table, [_inherited_target(table, name) for name in _named(last, table)])
    if task == "anomaly":
        return TrainingTarget(columns=())
    if task == "pairs":
        raise RequestError(
            f"no target is given for {table}, and task pairs needs the columns of the item",
            hint="Name them with target => '...', or several as a list: target => '[\"product\", \"brand\"]'. The "
            f"features describe the query. Columns: {table.names}.",
        )
    usual = [column for column in table.columns if column.name in _USUAL_NAMES]
    if len(usual) != 1:
        names = " and ".join(column.name for column in usual)
        raise RequestError(
            f"no target is given for {table}",
            detail=f"It has {names}." if usual else f"It has no column named {', '.join(_USUAL_NAMES)}.",
            hint=f"Name the column to predict with target => '...'. Columns: {table.names}.",
        )
    return _of_columns(table, usual)


def choose_task(plpy: Plpy, request: Json, before: Json, table: Table, target: TrainingTarget) -> str:
    """Return the task: the requested one, that of the last run, or one that suits the target's type and values."""
    task: str | None = read_choice(request, "task", TASKS, before.get("task"))
    if request.get("forecast") is not None and request.get("task") is None:
        task = "forecast"
    if task is None:
        task, reason = _task_by_type(plpy, table, target)
        plpy.notice(f"task is {task}, as target {_quoted(target)} {reason}")
    if task == "pairs":
        return task
    if len(target.columns) > 1:
        check_target_columns(task, {column.name: column.kind for column in target.columns})
        if task == "forecast":
            return task
    if not target.columns:
        return task
    check_target(task, f"{_quoted(target)} of {table}", target.kind, f"has type {target.type}")
    return task


def _named(target: str, table: Table) -> list[str]:
    return named_targets(target, table.column_names)


def _of_columns(table: Table, columns: Sequence[TableColumn]) -> TrainingTarget:
    return TrainingTarget(columns=tuple(learnable_target(table, column) for column in columns))


def _quoted(target: TrainingTarget) -> str:
    return f'"{target.name}"' if len(target.columns) == 1 else target.name or "none"


def _inherited_target(table: Table, name: str) -> TableColumn:
    for column in table.columns:
        if column.name == name:
            return column
    raise RefusalError(
        MISSING_COLUMN,
        f'column "{name}" of {table.title} does not exist',
        detail="It is the target of the model's last run, as no target is given.",
        hint=f"Name the column to predict with target => '...'. Columns: {table.names}.",
    )


def _task_by_type(plpy: Plpy, table: Table, target: TrainingTarget) -> tuple[str, str]:
    kind = target.kind
    if kind == "integer":
        values = count_values(plpy, table, target.columns[0])
        if values <= _CLASSES_OF_AN_INTEGER:
            return "classification", f"is an integer of {values} values"
        return "regression", f"is an integer of more than {_CLASSES_OF_AN_INTEGER} values"
    if kind == "integers":
        if count_shapes(plpy, table, target.columns[0]) > 1:
            return "multilabel", "has arrays of integers of different lengths"
        return "regression", "has arrays of integers of one length"
    reason = f"has type {target.type}" if len(target.columns) == 1 else f"names columns of type {target.type}"
    if kind in ("labels", "flags"):
        return "multilabel", reason
    return "regression" if kind in ("float", "array") else "classification", reason
