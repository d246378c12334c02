"""The arguments of a training that concern its job: deployment, priority, runtime, and the jobs that it awaits."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .estimator_rules import is_estimator

DEPLOY = ("if_better", "always", "never")
LONGEST_RUNTIME_S = 2**31 - 1
MOST_PRIORITY = 1000
MOST_DEVICES = 64  # equal to tensile.spec_fault()
MOST_AWAITED = 100  # most jobs that a job depends on: equal to tensile.check_dependencies()


def check_depends_on(value: Any) -> list[int] | None:
    """Return the numbers of the jobs that must succeed first, or None. The database checks that they exist."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(_is_job(number) for number in value) or len(value) > MOST_AWAITED:
        detail = f"It is a list of at most {MOST_AWAITED} numbers of jobs."
        hint = "Give the numbers that tensile_train has returned; a job may itself depend on others."
        raise RequestError(f"depends_on is {shown(value)}", detail=detail, hint=hint)
    return value or None


def check_max_runtime(seconds: Any) -> int | None:
    """Return the time limit in whole seconds, or None."""
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds <= LONGEST_RUNTIME_S:
        message = f"max_runtime is {shown(seconds)} seconds"
        hint = "Give an interval of a second or more."
        if isinstance(seconds, int | float) and seconds > LONGEST_RUNTIME_S:
            hint = f"Give an interval of {LONGEST_RUNTIME_S} seconds or less, or leave it out for no limit."
        raise RequestError(message, hint=hint)
    return int(seconds)


def check_devices(devices: Any, spec: Mapping[str, Any]) -> int:
    """Return the number of devices that train the job together. Raises RequestError for a job that they cannot."""
    if devices is None or (devices == 1 and not isinstance(devices, bool)):
        return 1
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= MOST_DEVICES:
        hint = f"Give a number from 1 to {MOST_DEVICES}: each device computes a part of every batch."
        raise RequestError(f"devices is {shown(devices)}", hint=hint)
    architecture, hyperparams = spec["architecture"], spec["hyperparams"]
    if is_estimator(architecture):
        hint = "Leave devices out, or train a network."
        name = architecture["type"]
        raise RequestError(f'devices is {devices}, and "{name}" trains on the processors of one machine', hint=hint)
    if has_batch_normalisation(architecture):
        raise RequestError(
            f"devices is {devices}, and the network has batch normalisation",
            detail="Its running statistics depend on the order in which the parts of a batch are computed, and "
            "several devices compute them at once.",
            hint="Use a network without it, such as batch_norm false or layer_norm, or train on one device.",
        )
    _check_parts(devices, hyperparams.get("batch_size"), hyperparams.get("micro_batch_size"))
    return devices


def _check_parts(devices: int, batch_size: int | None, micro_batch_size: int | None) -> None:
    """Refuse batches that have fewer parts than there are devices. A worker checks sizes that are chosen later."""
    if batch_size is None:
        return
    rows = micro_batch_size or max(1, -(-batch_size // devices))
    parts = -(-batch_size // rows)
    if rows > 1:  # no part has a single row: executor/capture/passes.py
        parts = min(parts, batch_size // 2)
    if max(1, parts) < devices:
        cause = "" if micro_batch_size is None else f" with micro_batch_size {micro_batch_size}"
        raise RequestError(
            f"devices is {devices}, and a batch of {batch_size} rows has fewer parts{cause}: {max(1, parts)}",
            hint="Use fewer devices, a larger batch_size or a smaller micro_batch_size: each device computes a part.",
        )


def has_batch_normalisation(architecture: Any) -> bool:
    """Return whether the network, as the request describes it, surely has batch normalisation."""
    if isinstance(architecture, list):
        return any(map(has_batch_normalisation, architecture))
    if not isinstance(architecture, Mapping):
        return False
    kind = architecture.get("type")
    if kind in ("resnet", "batch_norm1d", "batch_norm2d") or architecture.get("batch_norm", kind == "cnn") is True:
        return True
    return any(map(has_batch_normalisation, architecture.values()))


def check_priority(value: int) -> int:
    """Return the job's priority in the queue. Raises RequestError for one out of range."""
    if not -MOST_PRIORITY <= value <= MOST_PRIORITY:
        bounds = f"from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        hint = f"Give a number {bounds}; of your own jobs, those of higher priority go first."
        raise RequestError(f"priority is {value}", hint=hint)
    return value


def _is_job(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number < 2**63
