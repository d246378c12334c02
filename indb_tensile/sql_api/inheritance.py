"""What arguments left out mean: those of the run of the model that started last among those that succeeded.

Only what fits the relation is taken over. A notice names what is taken over, and what is not.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import shown
from .options import EARLY_STOP, METRICS
from .relation import Column, Table
from .spi import Json, Plpy


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """What a model's last run was given; of a model that has none, its definition, which is no run.

    `target_kind` is the kind of the target's column at that time; None where it is not known.
    """

    arguments: Json = field(default_factory=dict)
    ran: bool = False
    job: int | None = None
    target_kind: str | None = None

    def without(self, *names: str) -> "LastRun":
        """The same run, as if it had not been given these arguments."""
        return replace(self, arguments={name: value for name, value in self.arguments.items() if name not in names})

    def __str__(self) -> str:
        return "the model's last run" if self.job is None else f"job {self.job}"


def read_last_run(spec: str | None, job: int | None, target_kind: str | None, definition: str | None) -> LastRun:
    """From what is stored of a model. Its owner may write anything there: what is no argument is no default.

    What the objects hold is checked as if it had been given now.
    """
    if spec is None:
        return LastRun(arguments=_well_formed(definition))
    return LastRun(arguments=_well_formed(spec), ran=True, job=job, target_kind=target_kind)


def fitting_task(plpy: Plpy, request: Json, last: LastRun, target: Column) -> LastRun:
    """The run without its task where that was another target's, or this one's when its type was of another kind."""
    task, before = last.arguments.get("task"), last.arguments.get("target")
    if task is None or request.get("task") is not None:
        return last
    if before != target.name:
        return last.without("task")
    kinds = (last.target_kind,) if last.target_kind else _KINDS_OF_TASK[task]
    if target.kind in kinds:
        return last
    then = f" and had values of kind {last.target_kind} then" if last.target_kind else ""
    _leave_out(plpy, last, "task", task, f'target "{target.name}" has type {target.type}{then}')
    return last.without("task")


def fitting(plpy: Plpy, request: Json, last: LastRun, table: Table, target: Column, task: str) -> LastRun:
    """The run without those arguments that do not fit this relation, target and task, each named in a notice."""
    for name, misfit in _MISFITS.items():
        value = last.arguments.get(name)
        if value is None or request.get(name) is not None:
            continue
        if name == "features" and request.get("exclude") is not None:
            continue  # both are inherited together, or neither
        if why := misfit(value, table, target, task):
            _leave_out(plpy, last, name, value, why)
            last = last.without(name)
    return last


def tell_inherited(plpy: Plpy, request: Json, last: LastRun, spec: Json) -> None:
    """Name, in one notice, each argument that was left out and is that of the last run."""
    if not last.ran:
        return
    told = [f"{name} {_text(value)}" for name, value in _inherited(request, last, spec)]
    if told:
        plpy.notice(f"arguments left out are those of {last}: {', '.join(told)}")


def _inherited(request: Json, last: LastRun, spec: Json) -> Iterator[tuple[str, Any]]:
    for name in _FORMS:
        value = last.arguments.get(name)
        if request.get(name) is not None or value in _DEFAULTS:
            continue
        if name == "exclude":
            value = [column for column in value if column in spec["exclude"]]
        if value and (name == "exclude" or spec[name] == value):
            yield name, value


def _leave_out(plpy: Plpy, last: LastRun, name: str, value: Any, why: str) -> None:
    plpy.notice(f"{name} {_text(value)} of {last} is not taken over, as {why}")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if len(json.dumps(value)) <= _LONGEST_TOLD else shown(value)


def _misfit_columns(names: Any, table: Table, target: Column, task: str) -> str:
    known = {column.name for column in table.columns}
    absent = [name for name in names if name not in known]
    if absent:
        return f"{table} has no column {_listed(absent)}"
    return f'"{target.name}" is the target now' if target.name in names else ""


def _misfit_preprocess(given: Any, table: Table, target: Column, task: str) -> str:
    named = [name for part in given.values() if isinstance(part, dict) for name in part]
    return _misfit_columns(named, table, target, task)


def _misfit_metric(metric: Any, table: Table, target: Column, task: str) -> str:
    return "" if metric in METRICS[task] else f"{task} has no such metric"


def _misfit_early_stop(given: Any, table: Table, target: Column, task: str) -> str:
    metric = given.get("metric", EARLY_STOP["metric"]["default"])
    another = next((name for name in METRICS if name != task and metric in METRICS[name]), None)
    return f"{task} has no such metric" if another else ""  # a metric of no task is refused as if given now


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


def _well_formed(text: str | None) -> Json:
    try:
        stored = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {name: stored[name] for name, fits in _FORMS.items() if name in stored and fits(stored[name])}


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FORMS: dict[str, Callable[[Any], bool]] = {
    "target": _is_text,
    "task": lambda value: _is_text(value) and value in METRICS,
    "architecture": _is_object,
    "hyperparams": _is_object,
    "features": _is_names,
    "exclude": _is_names,
    "preprocess": _is_object,
    "split": _is_object,
    "metric": _is_text,
    "early_stop": _is_object,
}
_MISFITS: dict[str, Callable[[Any, Table, Column, str], str]] = {
    "features": _misfit_columns,
    "preprocess": _misfit_preprocess,
    "metric": _misfit_metric,
    "early_stop": _misfit_early_stop,
}
_KINDS_OF_TASK = {"classification": ("integer", "boolean", "text"), "regression": ("integer", "float")}
_DEFAULTS = (None, {"type": "auto"})
_LONGEST_TOLD = 300
