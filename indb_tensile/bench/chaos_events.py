"""The disturbances of `tensile bench chaos`, and their order: a seed and kinds draw the same ones each time.

Which process or row an event meets is a share (`choice`) of those that are there in that moment, so a storm that is
drawn again has the same events, and not always the same victims.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import RequestError


class Kind(StrEnum):
    """One way to disturb jobs."""

    KILL_TRAINER = "kill_trainer"
    STOP_TRAINER = "stop_trainer"
    KILL_CONTROLLER = "kill_controller"
    STOP_CONTROLLER = "stop_controller"
    END_CONTROLLER = "end_controller"
    KILL_SERVICE = "kill_service"
    STOP_SERVICE = "stop_service"
    KILL_BACKEND = "kill_backend"
    STOP_BACKEND = "stop_backend"
    TERMINATE_BACKENDS = "terminate_backends"
    KILL_POSTMASTER = "kill_postmaster"
    RESTART_SERVER = "restart_server"
    FILL_DISK = "fill_disk"
    CUT_CONNECTIONS = "cut_connections"
    STALL_CONNECTIONS = "stall_connections"
    REFUSE_CONNECTIONS = "refuse_connections"
    EXHAUST_CONNECTIONS = "exhaust_connections"
    STEP_CONTROLLER_CLOCK = "step_controller_clock"
    STEP_SERVER_CLOCK = "step_server_clock"
    LOCK_JOBS = "lock_jobs"
    LOCK_TABLE = "lock_table"
    LOCK_MODELS = "lock_models"
    FLOOD_NOTIFY = "flood_notify"
    UNCOMMITTED_MODEL = "uncommitted_model"
    INVALID_JOBS = "invalid_jobs"
    CANCEL_JOB = "cancel_job"
    DROP_TABLE = "drop_table"


# How long a disturbance may last, in leases: those that reach beyond one make another controller take jobs over.
LONGEST_LEASES = {
    Kind.STOP_TRAINER: 1.0,
    Kind.KILL_CONTROLLER: 1.5,
    Kind.STOP_CONTROLLER: 2.0,
    Kind.STOP_SERVICE: 1.0,
    Kind.STOP_BACKEND: 1.5,
    Kind.KILL_POSTMASTER: 1.5,
    Kind.RESTART_SERVER: 1.5,
    Kind.FILL_DISK: 1.5,
    Kind.STALL_CONNECTIONS: 2.0,
    Kind.REFUSE_CONNECTIONS: 1.5,
    Kind.EXHAUST_CONNECTIONS: 1.0,
    Kind.STEP_CONTROLLER_CLOCK: 0.5,
    Kind.STEP_SERVER_CLOCK: 0.5,
    Kind.LOCK_JOBS: 1.5,
    Kind.LOCK_TABLE: 1.5,
    Kind.LOCK_MODELS: 1.0,
    Kind.UNCOMMITTED_MODEL: 1.0,
}
# Over soon, and needing neither root nor a library: what the test command draws from.
CHEAP = (
    Kind.KILL_TRAINER,
    Kind.KILL_SERVICE,
    Kind.TERMINATE_BACKENDS,
    Kind.CUT_CONNECTIONS,
    Kind.LOCK_JOBS,
    Kind.LOCK_TABLE,
    Kind.FLOOD_NOTIFY,
    Kind.CANCEL_JOB,
    Kind.DROP_TABLE,
)
LONGEST_PAUSE_S = 2.0
AT_ONCE = 0.2  # of all events: those that do not wait until the one before is recovered from


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One disturbance. It lasts `hold_s`, begins `pause_s` after the one before, and `choice` picks its victim."""

    number: int  # from 1
    kind: Kind
    pause_s: float
    hold_s: float
    choice: float  # from 0 to 1
    at_once: bool  # it does not wait until the event before is recovered from

    def pick(self, count: int) -> int:
        """Which of `count` victims it meets."""
        return min(int(self.choice * count), count - 1)


def draw(seed: int, kinds: Sequence[Kind], lease_s: float) -> Iterator[Event]:
    """Events without end. Each kind comes once before any comes again, so that a short storm has many kinds."""
    chance = random.Random(seed)  # noqa: S311 - chance, not secrecy
    number = 0
    while kinds:
        for kind in chance.sample(kinds, len(kinds)):
            number += 1
            longest_s = LONGEST_LEASES.get(kind, 0.0) * lease_s
            yield Event(
                number=number,
                kind=kind,
                pause_s=round(chance.uniform(0, LONGEST_PAUSE_S), 3),
                hold_s=round(chance.uniform(0.1, 1.0) * longest_s, 3),
                choice=round(chance.random(), 6),
                at_once=chance.random() < AT_ONCE,
            )


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Kinds by name, between commas; `all` and `cheap` name several. Raises RequestError for an unknown one."""
    kinds: list[Kind] = []
    for name in text.split(","):
        match name.strip():
            case "all":
                kinds += Kind
            case "cheap":
                kinds += CHEAP
            case known if known in set(Kind):
                kinds.append(Kind(known))
            case unknown:
                hint = f"The kinds are {', '.join(Kind)}; all and cheap name several."
                raise RequestError(f"--kinds names {unknown!r}, which is no kind of event", hint=hint)
    return tuple(dict.fromkeys(kinds))
