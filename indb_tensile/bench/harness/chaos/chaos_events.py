"""The events of `tensile bench chaos` and their order. A seed and a set of kinds always draw the same events.

An event's `choice`, a number from 0 to 1, selects its victim among the processes or rows that exist at that moment.
The same seed therefore gives the same events, but not always the same victims.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import RequestError


class ChaosEventKind(StrEnum):
    """A way to disturb jobs."""

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


# Longest duration of a disturbance, in leases. Beyond one lease another controller takes jobs over.
LONGEST_LEASES = {
    ChaosEventKind.STOP_TRAINER: 1.0,
    ChaosEventKind.KILL_CONTROLLER: 1.5,
    ChaosEventKind.STOP_CONTROLLER: 2.0,
    ChaosEventKind.STOP_SERVICE: 1.0,
    ChaosEventKind.STOP_BACKEND: 1.5,
    ChaosEventKind.KILL_POSTMASTER: 1.5,
    ChaosEventKind.RESTART_SERVER: 1.5,
    ChaosEventKind.FILL_DISK: 1.5,
    ChaosEventKind.STALL_CONNECTIONS: 2.0,
    ChaosEventKind.REFUSE_CONNECTIONS: 1.5,
    ChaosEventKind.EXHAUST_CONNECTIONS: 1.0,
    ChaosEventKind.STEP_CONTROLLER_CLOCK: 0.5,
    ChaosEventKind.STEP_SERVER_CLOCK: 0.5,
    ChaosEventKind.LOCK_JOBS: 1.5,
    ChaosEventKind.LOCK_TABLE: 1.5,
    ChaosEventKind.LOCK_MODELS: 1.0,
    ChaosEventKind.UNCOMMITTED_MODEL: 1.0,
}
# Short events that need neither root nor libfaketime. The test command draws from them.
CHEAP = (
    ChaosEventKind.KILL_TRAINER,
    ChaosEventKind.KILL_SERVICE,
    ChaosEventKind.TERMINATE_BACKENDS,
    ChaosEventKind.CUT_CONNECTIONS,
    ChaosEventKind.LOCK_JOBS,
    ChaosEventKind.LOCK_TABLE,
    ChaosEventKind.FLOOD_NOTIFY,
    ChaosEventKind.CANCEL_JOB,
    ChaosEventKind.DROP_TABLE,
)
# Eight of ten of these are kills, so 250 events are 200 kills and 50 stops. A kind comes as often as it is named.
SIGNALS = (
    *(ChaosEventKind.KILL_TRAINER, ChaosEventKind.KILL_TRAINER, ChaosEventKind.KILL_TRAINER),
    *(ChaosEventKind.KILL_TRAINER, ChaosEventKind.KILL_TRAINER, ChaosEventKind.STOP_TRAINER),
    *(ChaosEventKind.KILL_CONTROLLER, ChaosEventKind.KILL_CONTROLLER, ChaosEventKind.KILL_CONTROLLER),
    ChaosEventKind.STOP_CONTROLLER,
)
LONGEST_PAUSE_S = 2.0
AT_ONCE = 0.2  # share of events after which the next event comes without waiting for the recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosEvent:
    """One disturbance. It begins `pause_s` after the one before and lasts `hold_s`; `choice` selects its victim."""

    number: int  # from 1
    kind: ChaosEventKind
    pause_s: float
    hold_s: float
    choice: float  # from 0 to 1
    at_once: bool  # the next event does not wait for the recovery from this one

    def pick(self, count: int) -> int:
        """Return the index of the victim among `count` candidates."""
        return min(int(self.choice * count), count - 1)


def draw_events(seed: int, kinds: Sequence[ChaosEventKind], lease_s: float) -> Iterator[ChaosEvent]:
    """Yield events without end. Each kind comes once before any comes again, so a short test has many kinds."""
    chance = random.Random(seed)  # noqa: S311 - chance, not secrecy
    number = 0
    while kinds:
        for kind in chance.sample(kinds, len(kinds)):
            number += 1
            longest_s = LONGEST_LEASES.get(kind, 0.0) * lease_s
            yield ChaosEvent(
                number=number,
                kind=kind,
                pause_s=round(chance.uniform(0, LONGEST_PAUSE_S), 3),
                hold_s=round(chance.uniform(0.1, 1.0) * longest_s, 3),
                choice=round(chance.random(), 6),
                at_once=chance.random() < AT_ONCE,
            )


def parse_kinds(text: str) -> tuple[ChaosEventKind, ...]:
    """Parse names of kinds, separated by commas; `all` and `cheap` name several. `signals` alone are kills and stops.

    Raises RequestError for other names.
    """
    if text.strip() == "signals":
        return SIGNALS
    kinds: list[ChaosEventKind] = []
    for name in text.split(","):
        match name.strip():
            case "all":
                kinds += ChaosEventKind
            case "cheap":
                kinds += CHEAP
            case known if known in set(ChaosEventKind):
                kinds.append(ChaosEventKind(known))
            case unknown:
                hint = f"The kinds are {', '.join(ChaosEventKind)}; all and cheap name several; signals stands alone."
                raise RequestError(f"--kinds names {unknown!r}, which is no kind of event", hint=hint)
    return tuple(dict.fromkeys(kinds))
