"""What a viewer can do: each action is one call of a SQL function, with the viewer's own rights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from indb_tensile.catalog.connection import Connection
from indb_tensile.errors import RequestError
from indb_tensile.monitor.live_figures import plain, statement

_INTEGER_LIMITS = {"job": 2**63 - 1, "version": 2**31 - 1, "priority": 2**31 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerAction:
    """One action: its statement and the values that it needs, with their types."""

    statement: str
    values: Mapping[str, type]
    done: Callable[[Any], str]  # the sentence for the statement's result
    pins_search_path: bool = (
        True  # false where the statement resolves names that the role typed in an earlier request
    )


ACTIONS: Mapping[str, ViewerAction] = {
    "cancel": ViewerAction(
        statement="cancel",
        values={"job": int},
        done=lambda was_active: "The job is being cancelled." if was_active else "The job had ended already.",
    ),
    "pause": ViewerAction(
        statement="pause",
        values={"job": int},
        done=lambda _: "The job leaves the device at the end of its iteration.",
    ),
    "resume": ViewerAction(
        statement="resume",
        values={"job": int},
        done=lambda _: "The job continues as soon as it has device memory.",
    ),
    "retry": ViewerAction(
        statement="retry",
        values={"job": int},
        done=lambda number: f"Job {number} repeats this one.",
        pins_search_path=False,
    ),
    "priority": ViewerAction(
        statement="set_priority", values={"job": int, "priority": int}, done=lambda _: "The priority is changed."
    ),
    "trace": ViewerAction(
        statement="request_trace", values={"job": int}, done=lambda _: "The next iterations are being recorded."
    ),
    "deploy": ViewerAction(
        statement="deploy",
        values={"model": str, "version": int},
        done=lambda version: f"Version {version} predicts from now on.",
    ),
    "rollback": ViewerAction(
        statement="rollback", values={"model": str}, done=lambda version: f"Version {version} predicts again."
    ),
}


def checked_values(action: ViewerAction, values: object) -> dict[str, object]:
    """Return the values of a request for this action. Raises RequestError for a missing or wrong one."""
    if not isinstance(values, dict):
        raise RequestError("the request has no values", hint="Send a JSON object.")
    checked: dict[str, object] = {}
    for name, kind in action.values.items():
        value = values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = "a whole number" if kind is int else "a text"
            raise RequestError(f"{name} is {value!r}, and has to be {wanted}")
        if isinstance(value, int) and abs(value) > _INTEGER_LIMITS[name]:
            raise RequestError(f"{name} is {value}, which is beyond {_INTEGER_LIMITS[name]}")
        if isinstance(value, str) and "\0" in value:
            raise RequestError(f"{name} has a zero byte, which no name in PostgreSQL has")
        checked[name] = value
    return checked


def perform(connection: Connection, action: ViewerAction, values: Mapping[str, object], place: str) -> dict[str, Any]:
    """Carry out an action. Returns its result and a sentence for the viewer. Raises psycopg's errors.

    `place` is where the viewer acts, for the history of deployments.
    """
    row = connection.execute(statement(action.statement), {**values, "reason": place}).fetchone()
    result = plain(row[0]) if row else None
    return {"result": result, "message": action.done(result)}
