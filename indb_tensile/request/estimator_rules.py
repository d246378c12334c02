"""Decides which arguments a model of scikit-learn takes: its fit has no epochs and no steps, and uses no device."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .hyperparam_rules import HYPERPARAMS_OF_ESTIMATORS
from .network_rules import ENSEMBLE_ARCHITECTURES, ESTIMATORS
from .parameter_rules import Json


def is_estimator(architecture: Mapping[str, Any]) -> bool:
    """Return whether the architecture is a model of scikit-learn."""
    return architecture.get("type") in ESTIMATORS


def of_networks(hyperparams: Json) -> list[str]:
    """Return the names of the hyper-parameters that only networks have."""
    return [name for name in hyperparams if name not in HYPERPARAMS_OF_ESTIMATORS]


def check_estimator(spec: Json) -> None:
    """Raise RequestError for an argument that has no effect on the model of scikit-learn that is to be trained."""
    kind = spec["architecture"]["type"]
    if kind not in ESTIMATORS:
        return
    others = of_networks(spec["hyperparams"])
    if others:
        raise RequestError(
            f'hyperparams: "{others[0]}" means nothing with architecture {kind}',
            detail=f"These are taken: {', '.join(HYPERPARAMS_OF_ESTIMATORS)}.",
            hint=f'Leave it out, or set a parameter of the architecture: {{"type": "{kind}", "iterations": 200}}.',
        )
    hints = {
        "early_stop": 'Give "patience" in the architecture.' if kind == "boosting" else "Leave it out.",
        "memory_limit_bytes": "Leave it out: the model takes no device memory.",
        "init_from": "Leave it out: the model is always fitted anew.",
    }
    for name, hint in hints.items():
        if spec.get(name) is not None:
            argument = "memory_limit" if name == "memory_limit_bytes" else name
            raise RequestError(f"{argument} means nothing with architecture {kind}", hint=hint)


def check_ensemble(architecture: Mapping[str, Any], hyperparams: Json, *, starts: bool = False) -> None:
    """Raise RequestError for an ensemble of a model that has no members, or that `starts` from other weights."""
    kind = architecture["type"]
    if hyperparams.get("ensemble", 1) == 1:
        return
    if kind not in ENSEMBLE_ARCHITECTURES:
        remedy = (
            'Give the number of its members: {"type": "tabm", "members": 32}' if kind == "tabm" else "Leave it out"
        )
        raise RequestError(
            f'hyperparams: "ensemble" means nothing with architecture {kind}',
            detail=f"These may be trained as an ensemble: {', '.join(ENSEMBLE_ARCHITECTURES)}.",
            hint=f"{remedy}, or train another architecture.",
        )
    if starts:
        raise RequestError(
            'hyperparams: "ensemble" cannot be combined with init_from',
            detail="The members of an ensemble differ in their first weights, and would all start from the same.",
            hint="Leave one of the two out.",
        )


def check_targets_of_estimator(architecture: Mapping[str, Any], task: str, *, several: bool) -> None:
    """Raise RequestError for a model of scikit-learn that is to predict several values or a set of labels."""
    if is_estimator(architecture) and (task == "multilabel" or (several and task == "regression")):
        targets = "sets of labels" if task == "multilabel" else "several values"
        raise RequestError(
            f"architecture {architecture['type']} cannot predict {targets}",
            detail="A model of scikit-learn predicts one value or one class for each row.",
            hint="Train a network, such as architecture => 'mlp', or a model for each target.",
        )


def refuse_plan(architecture: Json) -> None:
    """Refuse to explain the plan of a model that has none."""
    if is_estimator(architecture):
        raise RequestError(
            f"architecture {shown(architecture['type'])} has no plan: it is fitted on the processor",
            detail="Only a network's tensors are planned. This model takes no device memory and waits for none.",
            hint="Train it with tensile_train, or explain a network: architecture => 'auto'.",
        )
