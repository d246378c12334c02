"""Trainings of a chaos test: their owners, the results of undisturbed runs, and the endings of all jobs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile.bench.harness.chaos.chaos_rig import PURPOSE, SQL, ChaosRig, poll_until
from indb_tensile.bench.harness.chaos.chaos_verdict import JobEnding
from indb_tensile.catalog.connection import Connection, Session
from indb_tensile.errors import UnavailableError

OWNERS = ("chaos_a", "chaos_b", "chaos_c")
ROWS = 320
_PARTS = 4  # of a batch, if several devices may train the job
SPOILED = "chaos_dropped_"  # name prefix of models whose table is dropped
_TIMEOUT_S = 120.0
_LIMITS = "-c lock_timeout=3s -c statement_timeout=60s"  # the test itself must not wait for locks that it takes
_ROWS_TO_PREDICT = tuple({"a": 0.1 * i, "b": 1 - 0.2 * i, "c": 0.3 * i * i} for i in range(5))
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One distinct training. `name` is also the name of the model that it publishes versions of."""

    name: str
    owner: str
    seed: int
    epochs: int
    hidden: Sequence[int]
    optimizer: str = "adamw"
    in_parts: bool = False  # whether batches are computed in parts, as several devices compute them

    @property
    def table(self) -> str:
        """Return the name of the owner's table."""
        return f"{self.owner}.numbers"

    @property
    def hyperparams(self) -> str:
        """Return the hyperparameters as JSON."""
        values = {"epochs": self.epochs, "batch_size": 32, "seed": self.seed, "optimizer": self.optimizer}
        return json.dumps(values | ({"micro_batch_size": 32 // _PARTS} if self.in_parts else {}))

    @property
    def architecture(self) -> str:
        """Return the network as JSON."""
        return json.dumps({"type": "mlp", "hidden": list(self.hidden), "dropout": 0.1})


TRAININGS = (
    Training(name="chaos_a_first", owner="chaos_a", seed=1, epochs=40, hidden=(24, 24)),
    Training(name="chaos_a_second", owner="chaos_a", seed=2, epochs=80, hidden=(24, 24)),
    Training(name="chaos_b_first", owner="chaos_b", seed=1, epochs=60, hidden=(32,)),
    Training(name="chaos_b_second", owner="chaos_b", seed=1, epochs=20, hidden=(16, 16, 16), optimizer="sgd"),
    Training(name="chaos_c_first", owner="chaos_c", seed=3, epochs=120, hidden=(48, 24)),
    Training(name="chaos_c_second", owner="chaos_c", seed=4, epochs=240, hidden=(24,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Results of a training that nothing disturbed: the digest of its weights, and its predictions."""

    digest: str
    predictions: tuple[tuple[str, float], ...]  # a row as JSON, and the predicted value


@dataclass(slots=True, kw_only=True)
class Jobs:
    """Enqueues trainings and keeps track of their jobs. Only one thread may use an instance."""

    rig: ChaosRig
    trainings: Sequence[Training] = TRAININGS
    references: dict[str, Reference] = field(default_factory=dict)
    asked: dict[int, Training] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    _sessions: dict[tuple[str, float], Session] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _after: int = 0  # id of the last job of the undisturbed runs

    def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            session.close()

    def run(self, name: str, user: str = "postgres", **values: object) -> list[tuple[Any, ...]]:
        """Execute one statement as the role `user` and return its rows. Retries after an outage."""

        def act(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = connection.execute(SQL[name].encode(), values)
            return cursor.fetchall() if cursor.description else []

        return self._session(user).run(act)

    def look(self, name: str) -> list[tuple[Any, ...]]:
        """Execute one statement once, as a superuser, and return its rows. Fails while the server is away."""
        return self._session("postgres", retry_s=0.0).run(lambda c: c.execute(SQL[name].encode()).fetchall())

    def run_on(self, name: str, user: str, *names: str, **values: int) -> None:
        """Execute one statement about an owner's table or a role. `names` fill its placeholders in order."""
        places = [sql.Identifier(*name.split(".")) for name in names]
        text = sql.SQL(SQL[name]).format(*places, **{key: sql.Literal(value) for key, value in values.items()})
        self._session(user).run(lambda connection: connection.execute(text))

    def make_table(self, table: str, salt: int) -> None:
        """Create a table that belongs to its schema's owner and that controllers may read."""
        owner = table.partition(".")[0]
        self.run_on("create_table", owner, table, salt=salt, rows=ROWS)
        self.run_on("add_key", owner, table)
        for (role,) in self.run("worker_roles"):
            self.run_on("grant_table", owner, table, role)

    def enqueue(
        self, training: Training, *, table: str | None = None, model: str | None = None, devices: int = 1
    ) -> int:
        """Enqueue a training and return its job's id. `table` and `model` replace the training's own.

        The request carries an idempotency key, so a retry after an outage still gives one job.
        """
        ((job,),) = self.run(
            "train",
            training.owner,
            model=model or training.name,
            relation=table or training.table,
            architecture=training.architecture,
            hyperparams=training.hyperparams,
            devices=devices,
            key=f"{training.name} {next(self._numbers)}",
        )
        self.asked[int(job)] = training
        return int(job)

    def unended(self) -> list[int]:
        """Return the ids of the jobs that have not ended."""
        return [int(row[0]) for row in self.run("unended")]

    def prepare(self) -> None:
        """Create the owners' tables, and run each distinct training once undisturbed.

        Raises UnavailableError if a training does not succeed.
        """
        for salt, owner in enumerate(OWNERS, start=1):
            self.make_table(f"{owner}.numbers", salt)
        jobs = {training.name: self.enqueue(training) for training in self.trainings}
        if not poll_until(lambda: not self.unended(), _TIMEOUT_S):
            raise UnavailableError(
                f"{len(self.unended())} trainings did not end undisturbed within {_TIMEOUT_S:g} s",
                hint="Run the benchmark while this machine has less to do.",
            )
        ended = {ending.job: ending for ending in self.endings()}
        for training in self.trainings:
            ending = ended[jobs[training.name]]
            if ending.state != "succeeded":
                raise UnavailableError(f"job {ending.job} {ending.state} undisturbed: {ending.message}")
            answers = tuple((json.dumps(row), self.predict(training, json.dumps(row))) for row in _ROWS_TO_PREDICT)
            self.references[training.name] = Reference(digest=ending.digests[0], predictions=answers)
        self._after = max(self.asked)
        self.asked.clear()

    def predict(self, training: Training, row: str) -> float:
        """Return the prediction of the deployed version of the training's model for one row."""
        ((value,),) = self.run("predict", training.owner, model=training.name, row=row)
        return float(value)

    def endings(self) -> Iterator[JobEnding]:
        """Yield the endings of all jobs since `prepare`, including jobs whose id never reached the client."""
        rows = {row[0]: row for row in self.run("endings", after=self._after)}
        for job in sorted(rows.keys() | self.asked.keys()):
            _, key, model, state, sqlstate, message, ends, digests = rows.get(
                job, (job, "", "", None, None, None, 0, [])
            )
            yield JobEnding(
                job=job,
                training=key.partition(" ")[0],
                state=state,
                ends=ends,
                digests=tuple(digests),
                sqlstate=sqlstate,
                message=message,
                asked_to_cancel=job in self.cancelled,
                spoiled=model.startswith(SPOILED),
            )

    def history(self, job: int) -> list[str]:
        """Return the events of a job's history, a line each."""
        return [f"{at:%H:%M:%S} {kind} {json.dumps(detail)}" for at, kind, detail in self.run("history", job=job)]

    @property
    def digests(self) -> Mapping[str, str]:
        """Return the digest of each training's weights after its undisturbed run."""
        return {name: reference.digest for name, reference in self.references.items()}

    def _session(self, user: str, retry_s: float = _TIMEOUT_S) -> Session:
        if (user, retry_s) not in self._sessions:
            dsn = make_conninfo(self.rig.dsn(user), options=_LIMITS)
            self._sessions[user, retry_s] = Session(dsn, application_name=PURPOSE, retry_s=retry_s)
        return self._sessions[user, retry_s]
