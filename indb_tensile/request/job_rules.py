"""The arguments of a training that concern its job: deployment, priority, runtime, and the jobs that it awaits."""

from typing import Any

from ..errors import RequestError
from .abbreviation import shown

DEPLOY = ("if_better", "always", "never")
LONGEST_RUNTIME_S = 2**31 - 1
MOST_PRIORITY = 1000
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


def check_not_before(moment: str | None) -> str | None:
    """Return the earliest time of the start, as text, or None. Raises RequestError for infinity."""
    if moment == "infinity":
        message = "not_before is infinity, so the job would never start"
        hint = "Give a time; or leave it out, and hold the job with tensile_pause(job) until tensile_resume(job)."
        raise RequestError(message, hint=hint)
    return moment


def check_priority(value: int) -> int:
    """Return the job's priority in the queue. Raises RequestError for one out of range."""
    if not -MOST_PRIORITY <= value <= MOST_PRIORITY:
        bounds = f"from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        hint = f"Give a number {bounds}; of your own jobs, those of higher priority go first."
        raise RequestError(f"priority is {value}", hint=hint)
    return value


def _is_job(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number < 2**63
