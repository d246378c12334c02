"""Chooses the column to predict, and decides whether its values are classes or quantities."""

from ..errors import RequestError
from ..request.request_fields import read_choice, read_text
from ..request.task_rules import TASKS, check_target
from .first_rows import count_values
from .refusals import MISSING_COLUMN, RefusalError
from .spi import Json, Plpy
from .training_table import Table, TableColumn, learnable_target

_CLASSES_OF_AN_INTEGER = 20  # an integer target with more distinct values is a quantity
_USUAL_NAMES = ("target", "label", "class", "y")


def choose_target(request: Json, before: Json, table: Table) -> TableColumn:
    """Return the column to predict: the requested one, that of the last run, or the only one with a usual name."""
    named = read_text(request, "target")
    if named is not None:
        return learnable_target(table, table.column(named, "target"))
    if (last := before.get("target")) is not None:
        return learnable_target(table, _inherited_target(table, last))
    usual = [column for column in table.columns if column.name in _USUAL_NAMES]
    if len(usual) != 1:
        names = " and ".join(column.name for column in usual)
        raise RequestError(
            f"no target is given for {table}",
            detail=f"It has {names}." if usual else f"It has no column named {', '.join(_USUAL_NAMES)}.",
            hint=f"Name the column to predict with target => '...'. Columns: {table.names}.",
        )
    return learnable_target(table, usual[0])


def choose_task(plpy: Plpy, request: Json, before: Json, table: Table, target: TableColumn) -> str:
    """Return the task: the requested one, that of the last run, or one that suits the target's type and values."""
    task: str | None = read_choice(request, "task", TASKS, before.get("task"))
    if task is None:
        task, reason = _task_by_type(plpy, table, target)
        plpy.notice(f'task is {task}, as target "{target.name}" {reason}')
    check_target(task, f'"{target.name}" of {table}', target.kind, f"has type {target.type}")
    return task


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


def _task_by_type(plpy: Plpy, table: Table, target: TableColumn) -> tuple[str, str]:
    if target.kind != "integer":
        return "regression" if target.kind == "float" else "classification", f"has type {target.type}"
    values = count_values(plpy, table, target)
    if values <= _CLASSES_OF_AN_INTEGER:
        return "classification", f"is an integer of {values} values"
    return "regression", f"is an integer of more than {_CLASSES_OF_AN_INTEGER} values"
