"""Supplies arguments that a request leaves out, from the model's last successful run.

The last run is the one that started last among those that succeeded. Only arguments that fit the relation are
inherited. NOTICEs name the arguments that are inherited and those that are not.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..request.abbreviation import shown
from ..request.early_stop_rules import EARLY_STOP
from ..request.estimator_rules import is_estimator, of_networks
from ..request.loss_rules import fits_task
from ..request.network_rules import ENSEMBLE_ARCHITECTURES
from ..request.rank_rules import OF_RANKS
from ..request.task_rules import METRICS, predicts_target
from .spi import Json, Plpy
from .training_arguments import architecture
from .training_table import Table
from .training_target import TrainingTarget


class LastRun(NamedTuple):
    """The arguments of a model's last run.

    For a model that never ran, the arguments are those of its definition and `ran` is False. `target_kind` is the
    kind of the target's column at the time of the run, or None if it is unknown. `advice` is the warning that the
    baseline of the run was clearly better, with what to train instead, or None.
    """

    arguments: Json
    ran: bool = False
    job: int | None = None
    target_kind: str | None = None
    advice: str | None = None

    def without(self, *names: str) -> "LastRun":
        """Return the same run without these arguments."""
        return self._replace(arguments={name: value for name, value in self.arguments.items() if name not in names})

    def __str__(self) -> str:
        return "the model's last run" if self.job is None else f"job {self.job}"


def read_last_run(
    spec: str | None, job: int | None, target_kind: str | None, definition: str | None, advice: str | None
) -> LastRun:
    """Read the last run from the stored columns of a model.

    The model's owner may write any value into these columns, so values that are not arguments are ignored. The
    contents of the objects are checked later like those of a request.
    """
    if spec is None:
        return LastRun(arguments=_well_formed(definition))
    return LastRun(arguments=_well_formed(spec), ran=True, job=job, target_kind=target_kind, advice=advice)


def fitting_task(plpy: Plpy, request: Json, last: LastRun, target: TrainingTarget) -> LastRun:
    """Return the run without its task if the task does not fit the target.

    The task does not fit if it was the task of another target, or if the target's type was of another kind.
    """
    task, previous_target = last.arguments.get("task"), last.arguments.get("target")
    if task is None or request.get("task") is not None:
        return last
    if previous_target != target.name:
        return last.without("task")
    if task == "pairs":
        return last
    if task == "forecast":
        return last if len(target.columns) > 1 or target.kind in _KINDS_OF_TASK[task] else last.without("task")
    kinds = (last.target_kind,) if last.target_kind else _KINDS_OF_TASK[task]
    if target.kind in kinds or (last.target_kind in _SEVERAL and target.kind in _SEVERAL_OF_TASK.get(task, ())):
        return last
    previous_kind = f" and had values of kind {last.target_kind} then" if last.target_kind else ""
    _notice_misfit(plpy, last, "task", task, f'target "{target.name}" has type {target.type}{previous_kind}')
    return last.without("task")


def fitting(plpy: Plpy, request: Json, last: LastRun, table: Table, target: TrainingTarget, task: str) -> LastRun:
    """Return the run without the arguments that do not fit this relation, target and task.

    A NOTICE names each of them.
    """
    if (task == "forecast") != (last.arguments.get("task") == "forecast"):
        last = last.without(
            "features", "exclude", "preprocess", "split", "metric", "early_stop", "forecast", "architecture"
        )
    for name, misfit in _MISFITS.items():
        value = last.arguments.get(name)
        if value is None or request.get(name) is not None:
            continue
        if name == "features" and request.get("exclude") is not None:
            continue  # features and exclude are inherited together or not at all
        if reason := misfit(value, table, target, task):
            _notice_misfit(plpy, last, name, value, reason)
            last = last.without(name)
    for leave_out in (_without_freeze, _without_rank_options, _without_ensemble, _without_network_options):
        last = leave_out(plpy, request, last)
    return last


def _without_network_options(plpy: Plpy, request: Json, last: LastRun) -> LastRun:
    """Return the run without what only networks take, if the new training is one of a model of scikit-learn."""
    if not is_estimator(architecture(request, last.arguments)):
        return last
    why = "the new model is not a network"
    options = last.arguments.get("hyperparams") or {}
    others = of_networks(options)
    if others and request.get("hyperparams") is None:
        _notice_misfit(plpy, last, "hyperparams", {name: options[name] for name in others}, why)
        last = _without_hyperparams(last, others)
    if last.arguments.get("early_stop") is not None and request.get("early_stop") is None:
        _notice_misfit(plpy, last, "early_stop", last.arguments["early_stop"], why)
        last = last.without("early_stop")
    return last


def _without_freeze(plpy: Plpy, request: Json, last: LastRun) -> LastRun:
    """Return the run without frozen layers if the new training starts from no version, but from random weights."""
    options = last.arguments.get("hyperparams") or {}
    if "freeze" not in options or request.get("hyperparams") is not None or request.get("init_from") is not None:
        return last
    _notice_misfit(plpy, last, "freeze", options["freeze"], "init_from is not given")
    return _without_hyperparams(last, ["freeze"])


def _without_rank_options(plpy: Plpy, request: Json, last: LastRun) -> LastRun:
    """Return the run without the parameters that have an effect on several devices only, if one device trains now."""
    options = last.arguments.get("hyperparams") or {}
    if request.get("devices") not in (None, 1) or request.get("hyperparams") is not None:
        return last
    others = [name for name, (alone, _) in OF_RANKS.items() if options.get(name, alone) != alone]
    for name in others:
        _notice_misfit(plpy, last, name, options[name], "one device trains")
    return _without_hyperparams(last, others) if others else last


def _without_ensemble(plpy: Plpy, request: Json, last: LastRun) -> LastRun:
    """Return the run without an ensemble if the new training cannot be one."""
    options = last.arguments.get("hyperparams") or {}
    if options.get("ensemble", 1) == 1 or request.get("hyperparams") is not None:
        return last
    kind = architecture(request, last.arguments)["type"]
    if kind not in ENSEMBLE_ARCHITECTURES:
        why = f"architecture {kind} is not trained as an ensemble"
    elif request.get("init_from") is not None:
        why = "init_from is given"
    else:
        return last
    _notice_misfit(plpy, last, "ensemble", options["ensemble"], why)
    return _without_hyperparams(last, ["ensemble"])


def _without_hyperparams(last: LastRun, names: Sequence[str]) -> LastRun:
    kept = {name: value for name, value in last.arguments["hyperparams"].items() if name not in names}
    return last._replace(arguments={**last.arguments, "hyperparams": kept})


def fitting_transform(plpy: Plpy, request: Json, last: LastRun, table: Table) -> LastRun:
    """Return the run without its computed features if the table lacks a column that they are computed from."""
    transform = last.arguments.get("transform")
    if transform is None or request.get("transform") is not None:
        return last
    absent = [name for name in transform["inputs"] if name not in table.column_names]
    if not absent:
        return last
    _notice_misfit(plpy, last, "transform", transform["expressions"], f"{table} has no column {_listed(absent)}")
    return last.without("transform")


def tell_inherited(plpy: Plpy, request: Json, last: LastRun, spec: Json) -> None:
    """Name in one NOTICE every argument that the request left out and that is inherited.

    Another NOTICE repeats the advice of the last run, unless the request names an architecture.
    """
    if not last.ran:
        return
    if last.advice is not None and request.get("architecture") is None:
        plpy.notice(f"{last}: {last.advice}")
    inherited = [f"{name} {_short_json(value)}" for name, value in _inherited(request, last, spec)]
    if inherited:
        plpy.notice(f"arguments left out are those of {last}: {', '.join(inherited)}")


def _inherited(request: Json, last: LastRun, spec: Json) -> Iterator[tuple[str, Any]]:
    for name in _VALIDATORS:
        value = last.arguments.get(name)
        if request.get(name) is not None or value in _DEFAULTS:
            continue
        if name == "exclude":
            value = [column for column in value if column in spec["exclude"]]
        if name == "transform":
            if spec.get(name) is not None:
                yield name, spec[name]["expressions"]
        elif name == "features" and spec["task"] == "forecast":
            continue  # they follow from the forecast
        elif value and (name == "exclude" or spec.get(name) == value):
            yield name, value


def _notice_misfit(plpy: Plpy, last: LastRun, name: str, value: Any, why: str) -> None:
    plpy.notice(f"{name} {_short_json(value)} of {last} is not taken over, as {why}")


def _short_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if len(json.dumps(value)) <= _LONGEST_NOTICED else shown(value)


def _misfit_columns(names: Any, table: Table, target: TrainingTarget, task: str) -> str:
    """Return why the inherited columns do not fit, or an empty text if they do."""
    known = {column.name for column in table.columns}
    absent = [name for name in names if name not in known]
    if absent:
        return f"{table} has no column {_listed(absent)}"
    targets = [name for name in target.names if name in names and predicts_target(task)]
    return f"{_listed(targets)} is the target now" if targets else ""


def _misfit_preprocess(options: Any, table: Table, target: TrainingTarget, task: str) -> str:
    paths = options.get("paths")
    derived = {f"{column}.{path}" for column, own in paths.items() for path in own} if _is_paths(paths) else set()
    names = [name for part in options.values() if isinstance(part, dict) for name in part if name not in derived]
    return _misfit_columns(names, table, target, task)


def _misfit_hyperparams(options: Any, table: Table, target: TrainingTarget, task: str) -> str:
    if task == "regression" and options.get("class_weight") is not None:
        return f"{task} has no classes to weigh"
    if task != "classification" and options.get("mixup") is not None:
        return f"{task} has no classes to mix"
    if not fits_task(options, task):
        return f"{task} has no such loss"
    weight = options.get("weight")
    return _misfit_columns([weight], table, target, task) if isinstance(weight, str) else ""


def _misfit_metric(metric: Any, table: Table, target: TrainingTarget, task: str) -> str:
    return "" if metric in METRICS[task] else f"{task} has no such metric"


def _misfit_early_stop(options: Any, table: Table, target: TrainingTarget, task: str) -> str:
    metric = options.get("metric", EARLY_STOP["metric"]["default"])
    other_task = metric not in METRICS[task] and any(metric in names for names in METRICS.values())
    # A metric that no task has is refused later, like one of the request.
    return f"{task} has no such metric" if other_task else ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


def _well_formed(text: str | None) -> Json:
    try:
        stored = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {name: stored[name] for name, fits in _VALIDATORS.items() if name in stored and fits(stored[name])}


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_paths(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(own, dict) for own in value.values())


def _is_transform(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(part), dict) for part in ("expressions", "inputs"))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_VALIDATORS: dict[str, Callable[[Any], bool]] = {
    "target": _is_text,
    "task": lambda value: _is_text(value) and value in METRICS,
    "architecture": _is_object,
    "hyperparams": _is_object,
    "features": _is_names,
    "exclude": _is_names,
    "transform": _is_transform,
    "preprocess": _is_object,
    "split": _is_object,
    "metric": _is_text,
    "early_stop": _is_object,
    "forecast": _is_object,
}
_MISFITS: dict[str, Callable[[Any, Table, TrainingTarget, str], str]] = {
    "hyperparams": _misfit_hyperparams,
    "features": _misfit_columns,
    "preprocess": _misfit_preprocess,
    "metric": _misfit_metric,
    "early_stop": _misfit_early_stop,
}
_KINDS_OF_TASK = {
    "classification": ("integer", "boolean", "text"),
    "regression": ("integer", "float", "array"),
    "multilabel": ("labels", "flags"),
    "forecast": ("integer", "float"),
    "anomaly": ("boolean", "integer", "none"),
}
_SEVERAL = ("array", "labels")  # the kinds of a stored target of several values
_SEVERAL_OF_TASK = {"regression": ("array", "integers"), "multilabel": ("labels", "flags", "integers")}
_DEFAULTS = (None, {"type": "auto"})
_LONGEST_NOTICED = 300
