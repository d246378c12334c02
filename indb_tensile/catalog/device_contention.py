"""Stores how much jobs side by side slow each other down on each kind of device."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.completion.contention import Contention


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredContention:
    """By how much steps take longer beside `jobs - 1` other steps than alone: steps that are all bound by
    arithmetic, all bound by memory bandwidth, and half of each.

    `training` is the factor of whole steps of a training, or None if it was not measured. `short` is the factor of
    short steps beside others of their kind, and `short_mixed` the one of short steps if half of the jobs are bound by
    arithmetic or by memory. Both are None in measurements from before they were made. For one job, `short_ns` is the
    time of a short step alone. `learned` and `learned_short` are the factors of jobs that have trained side by side,
    or None if there were none. For one job, `taken_cores` is the number of cores that other programs kept busy while
    jobs trained, or None where that is not known.
    """

    jobs: int
    arithmetic: float
    memory: float
    mixed: float
    learned: float | None = None
    short: float | None = None
    short_mixed: float | None = None
    short_ns: int | None = None
    learned_short: float | None = None
    training: float | None = None
    taken_cores: float | None = None

    @property
    def factor(self) -> float:
        """The factor for long steps: that of a training, or the mean of the three kinds if it was not measured.

        A learned factor counts half. If it counted whole, a factor that was learned while the machine had other work
        could keep jobs apart for ever, and would then never be corrected.
        """
        measured = self.training or (self.arithmetic + self.memory + self.mixed) / 3
        return measured if self.learned is None else (measured + self.learned) / 2

    @property
    def short_factor(self) -> float | None:
        """The factor for short steps beside others that are not known: the mean of both. None if not measured."""
        if self.short is None or self.short_mixed is None:
            return None
        measured = (self.short + self.short_mixed) / 2
        return measured if self.learned_short is None else (measured + self.learned_short) / 2


_JOBS = (1, 2, 4, 8)
_COLUMNS = (  # of the query load_contention, in its order
    *("jobs", "arithmetic", "memory", "mixed", "learned", "short", "short_mixed", "short_ns", "learned_short"),
    *("training", "taken_cores"),
)

ALONE = MeasuredContention(jobs=1, arithmetic=1.0, memory=1.0, mixed=1.0, short=1.0, short_mixed=1.0, training=1.0)


def numbers_to_measure(max_jobs: int) -> tuple[int, ...]:
    """Return the numbers of jobs side by side whose contention is measured, where so many may run at a time."""
    most = max(2, min(max(_JOBS), max_jobs))
    return tuple(jobs for jobs in _JOBS if jobs <= most)


def contention_of(rows: Sequence[MeasuredContention], processors: int = 1) -> Contention:
    """Return the contention of these measurements, for jobs that compute with so many processors each.

    Long steps stand for short ones that were not measured.
    """
    several = [row for row in rows if row.jobs > 1]
    points = ((1, 1.0), *((row.jobs, row.factor) for row in several))
    short = [(row.jobs, row.short_factor) for row in several if row.short_factor is not None]
    short_ns = next((row.short_ns for row in rows if row.jobs == 1 and row.short_ns), 0)
    taken_cores = next((row.taken_cores for row in rows if row.jobs == 1 and row.taken_cores), 0.0)
    long = Contention(points=points, processors=processors, taken_cores=taken_cores)
    return replace(long, short_points=((1, 1.0), *short), short_ns=short_ns) if short_ns and short else long


def load_contention(connection: Connection, device_kind: str) -> tuple[MeasuredContention, ...]:
    """Load the measurements of this kind of device by increasing number of jobs; none before they were made."""
    rows = connection.execute(query("load_contention"), {"device_kind": device_kind}).fetchall()
    return tuple(MeasuredContention(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)


def contention_measured_once(
    claim: Connection,
    store: Connection,
    device_kind: str,
    numbers: Collection[int],
    measure: Callable[[tuple[int, ...]], Iterable[Sequence[MeasuredContention]]],
    host: str | None = None,
) -> tuple[MeasuredContention, ...]:
    """Return the measurements of this kind of device. Measure those of `numbers` that are missing.

    `measure` gets the missing numbers of jobs by increasing number, and yields rows, which are stored over `store` as
    they come. So what was measured until a measurement ended early stays.

    Of the controllers of a kind of device that are idle together one measures, and the others wait for the end of its
    transaction on `claim`. Two measurements on the same cores at the same time would find each other's load, so
    controllers that give the same `host` wait for each other too, whatever their devices. Raises
    psycopg.errors.LockNotAvailable after the lock timeout of that session; a further call goes on waiting.
    """
    with claim.transaction(force_rollback=True):
        shared = [device_kind] if host is None else [device_kind, f"the cores of {host}"]
        claim.execute(query("claim_contention"), {"shared": shared})
        missing = set(numbers) - {row.jobs for row in load_contention(store, device_kind)}
        if missing:
            for rows in measure(tuple(sorted(missing))):
                save_contention(store, device_kind, rows)
        return load_contention(store, device_kind)


def has_jobs(connection: Connection, host: str) -> bool:
    """Return whether a job starts up or trains on this host, whichever controller has it."""
    row = connection.execute(query("host_has_jobs"), {"host": host}).fetchone()
    return row is not None and bool(row[0])


def save_contention(connection: Connection, device_kind: str, rows: Sequence[MeasuredContention]) -> None:
    """Store the measurements, unless the catalog has some already: another controller may have measured first."""
    values = {
        "device_kind": device_kind,
        "jobs": [row.jobs for row in rows],
        "arithmetic": [row.arithmetic for row in rows],
        "memory": [row.memory for row in rows],
        "mixed": [row.mixed for row in rows],
        "short": [row.short for row in rows],
        "short_mixed": [row.short_mixed for row in rows],
        "short_ns": [row.short_ns for row in rows],
        "training": [row.training for row in rows],
    }
    connection.execute(query("save_contention"), values)


def learn_contention(connection: Connection, device_kind: str, learned: Contention) -> None:
    """Store the factors of jobs that have trained side by side, by their number, where that number was measured."""
    jobs = sorted({number for number, _ in (*learned.points, *learned.short_points)})
    values = {
        "device_kind": device_kind,
        "jobs": jobs,
        "factors": [learned.slowdown(number) for number in jobs],
        "short_factors": [
            learned.slowdown(number, learned.short_ns) if learned.short_ns else None for number in jobs
        ],
    }
    connection.execute(query("learn_contention"), values)


def learn_taken_cores(connection: Connection, device_kind: str, taken_cores: float) -> None:
    """Store how many cores other programs keep busy while jobs train, if the kind of device was measured."""
    connection.execute(query("learn_taken_cores"), {"device_kind": device_kind, "taken_cores": taken_cores})
