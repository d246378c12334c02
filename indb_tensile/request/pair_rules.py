"""What a training of pairs takes: a query, which the features describe, and an item, which the target columns do."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .network_rules import PAIR_ARCHITECTURES
from .parameter_rules import Json

MOST_BATCH_ROWS = 16_384  # the similarities of so many queries and items are 1 GB of single precision
_REFUSED = {
    "init_from": "Leave it out, or repeat the last training on new rows with tensile_retrain.",
    "transform": "Compute the columns in a view or in tensile_train_query, so that the rows of one side have them.",
}
_HYPERPARAMS = {
    "weight": "Leave it out: all pairs count the same.",
    "class_weight": "Leave it out: items are no classes, and frequent ones are corrected for.",
    "ensemble": "Leave it out.",
    "micro_batch_size": "Leave it out: each pair is compared with the others of its whole batch.",
}


def check_pairs(request: Mapping[str, Any], spec: Json) -> None:
    """Raise RequestError for what this task does not take, and for what only this task takes.

    `request` has the arguments that are not in the specification yet.
    """
    kind, task, hyperparams = spec["architecture"]["type"], spec["task"], spec["hyperparams"]
    if task != "pairs":
        if kind in PAIR_ARCHITECTURES:
            raise RequestError(
                f"architecture {kind} learns which rows go together, and the task is {task}",
                hint="Give task => 'pairs', or another architecture.",
            )
        return
    if kind not in ("auto", *PAIR_ARCHITECTURES):
        raise RequestError(
            f"architecture {kind} has no side for the item", hint=f"Give auto or {', '.join(PAIR_ARCHITECTURES)}."
        )
    if spec["architecture"].get("input_shape") is not None:
        raise RequestError(
            "architecture auto has an \"input_shape\", which means nothing with task => 'pairs'",
            hint='Leave "input_shape" out.',
        )
    for name, hint in _REFUSED.items():
        if request.get(name) not in (None, [], {}):
            raise RequestError(f"{name} cannot be combined with task => 'pairs'", hint=hint)
    for name, hint in _HYPERPARAMS.items():
        if hyperparams.get(name) not in (None, 1):
            raise RequestError(f"hyperparams: \"{name}\" cannot be combined with task => 'pairs'", hint=hint)
    _check_batches(hyperparams.get("batch_size"), spec.get("devices") or request.get("devices"))


def _check_batches(rows: int | None, devices: Any) -> None:
    """Raise RequestError for batches without other pairs, for too large ones, and for such of several devices."""
    if rows is not None and not 2 <= rows <= MOST_BATCH_ROWS:
        raise RequestError(
            f'hyperparams: "batch_size" is {rows}, and each pair is compared with the other pairs of its batch',
            hint=f"Give a batch_size from 2 to {MOST_BATCH_ROWS}.",
        )
    if devices not in (None, 1):
        raise RequestError(
            f"devices is {shown(devices)}, and each pair is compared with the others of its whole batch",
            hint="Leave devices out: pairs are trained on one device.",
        )


def check_pair_encodings(preprocess: Json) -> None:
    """Raise RequestError for texts that are encoded by means of a target, which pairs do not have."""
    encode = preprocess.get("encode")
    named = encode.items() if isinstance(encode, dict) else [("", encode)]
    for column, encoding in named:
        if encoding == "target":
            subject = f'column "{column}"' if column else "encode"
            raise RequestError(
                f"preprocess: {subject} is encoded as target, and task pairs has no target to take means of",
                hint="Leave it out, or give tokens, onehot, ordinal or hash.",
            )
