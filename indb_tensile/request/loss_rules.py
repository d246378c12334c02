"""The losses of each task, by name, and the options that only one of them has."""

from ..errors import RequestError
from .parameter_rules import Json

LOSSES: dict[str, tuple[str, ...]] = {
    "classification": ("cross_entropy", "focal"),
    "regression": ("mse", "mae", "huber", "poisson", "quantile"),
    "multilabel": ("binary_cross_entropy",),
    "forecast": ("pinball",),
    "anomaly": ("reconstruction",),
    "pairs": ("in_batch_softmax",),
}
DEFAULT_LOSSES = {task: names[0] for task, names in LOSSES.items()}
# For each of these hyper-parameters, the only loss that has it, and its value if the request leaves it out.
LOSS_OPTIONS: dict[str, tuple[str, float]] = {
    "label_smoothing": ("cross_entropy", 0.0),
    "gamma": ("focal", 2.0),
    "quantile": ("quantile", 0.5),
}


def check_loss(hyperparams: Json, task: str) -> None:
    """Raise RequestError for a loss that the task does not have, and for an option of another loss."""
    loss = hyperparams.get("loss", DEFAULT_LOSSES[task])
    if loss not in LOSSES[task]:
        hint = f"For {task}: {', '.join(LOSSES[task])}."
        raise RequestError(f'hyperparams: loss "{loss}" is not for {task}', hint=hint)
    for name, (owner, _) in LOSS_OPTIONS.items():
        if name in hyperparams and loss != owner:
            remedy = f', or set "loss" to {owner}' if owner in LOSSES[task] else ""
            message = f'hyperparams: "{name}" means nothing with loss {loss}'
            raise RequestError(message, hint=f"Leave it out{remedy}.")


def fits_task(hyperparams: Json, task: str) -> bool:
    """Return whether the task has the loss, and the losses of the options, that these hyper-parameters name.

    The hyper-parameters may be unchecked, and an option may belong to another loss than the named one.
    """
    owners = [owner for name, (owner, _) in LOSS_OPTIONS.items() if hyperparams.get(name) is not None]
    loss = hyperparams.get("loss")
    return all(name in LOSSES[task] for name in (*owners, *([] if loss is None else [loss])))
