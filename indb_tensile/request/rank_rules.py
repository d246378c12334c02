"""Which trainings several devices can do together: those of a network whose batches have a part for each device."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .batch_rules import ONE_ROW_DETAIL, has_batch_normalisation
from .estimator_rules import is_estimator

MOST_DEVICES = 64  # equal to tensile.spec_fault()
EXACT = "exact"  # the sum of gradients that several devices and one device make alike
# Parameters that have an effect on several devices only: the value that one device allows, and the meaning.
OF_RANKS = {
    "reduce": (EXACT, "It says how several devices add up their gradients."),
    "zero_stage": (0, "It says whether several devices divide the optimizer's state among them."),
}


def check_devices(devices: Any, spec: Mapping[str, Any]) -> int:
    """Return the number of devices that train the job together. Raises RequestError for a job that they cannot."""
    if devices is None or (devices == 1 and not isinstance(devices, bool)):
        check_alone(spec["hyperparams"])
        return 1
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= MOST_DEVICES:
        hint = f"Give a number from 1 to {MOST_DEVICES}: each device computes a part of every batch."
        raise RequestError(f"devices is {shown(devices)}", hint=hint)
    architecture, hyperparams = spec["architecture"], spec["hyperparams"]
    if is_estimator(architecture):
        hint = "Leave devices out, or train a network."
        name = architecture["type"]
        raise RequestError(f'devices is {devices}, and "{name}" trains on the processors of one machine', hint=hint)
    _check_parts(devices, hyperparams, normalises=has_batch_normalisation(architecture))
    return devices


def check_alone(hyperparams: Mapping[str, Any]) -> None:
    """Raise RequestError for a training on one device that has parameters of a training on several."""
    for name, (alone, meaning) in OF_RANKS.items():
        if hyperparams.get(name, alone) != alone:
            raise RequestError(
                f'hyperparams: "{name}" is {hyperparams[name]}, and one device trains',
                detail=meaning,
                hint=f'Leave "{name}" out, or give devices => 2 or more.',
            )


def _check_parts(devices: int, hyperparams: Mapping[str, Any], *, normalises: bool) -> None:
    """Refuse batches that have fewer parts than there are devices, or parts of one row that are to be normalised.

    A worker checks sizes that are chosen later.
    """
    batch_size, micro_batch_size = hyperparams.get("batch_size"), hyperparams.get("micro_batch_size")
    if batch_size is None:
        return
    rows = micro_batch_size or max(1, -(-batch_size // devices))
    parts = -(-batch_size // rows)
    if rows == 1 and normalises and micro_batch_size is None:
        raise RequestError(
            f"devices is {devices}, and each would normalise one row of a batch of {batch_size} rows",
            detail=ONE_ROW_DETAIL,
            hint=f"Give a batch_size of {2 * devices} or more, or use fewer devices.",
        )
    if rows > 1:  # no part has a single row: executor/capture/passes.py
        parts = min(parts, batch_size // 2)
    if max(1, parts) < devices:
        cause = "" if micro_batch_size is None else f" with micro_batch_size {micro_batch_size}"
        raise RequestError(
            f"devices is {devices}, and a batch of {batch_size} rows has fewer parts{cause}: {max(1, parts)}",
            hint="Use fewer devices, a larger batch_size or a smaller micro_batch_size: each device computes a part.",
        )
