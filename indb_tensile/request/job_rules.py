"""The arguments of a training that concern its job: deployment, priority, runtime, and what does not work yet."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError, UnsupportedError
from .abbreviation import shown

DEPLOY = ("if_better", "always", "never")
LONGEST_RUNTIME_S = 2**31 - 1
MOST_PRIORITY = 1000
# Arguments of tensile_train that are reserved: every value except null is refused. Each has its way out.
UNSUPPORTED = {
    "depends_on": "Enqueue the second job when the first has ended.",
    "init_from": "Leave it out: training starts from fresh parameters.",
}


def refuse_unsupported(request: Mapping[str, Any]) -> None:
    """Raise UnsupportedError (SQLSTATE 0A000) for an argument that does not work yet."""
    for name, hint in UNSUPPORTED.items():
        if request.get(name) is not None:
            raise UnsupportedError(f"{name} is not supported yet", hint=hint)


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


def check_priority(value: int) -> int:
    """Return the job's priority in the queue. Raises RequestError for one out of range."""
    if not -MOST_PRIORITY <= value <= MOST_PRIORITY:
        bounds = f"from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        hint = f"Give a number {bounds}; of your own jobs, those of higher priority go first."
        raise RequestError(f"priority is {value}", hint=hint)
    return value
