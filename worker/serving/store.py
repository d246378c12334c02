"""Versions out of the catalog, on a connection of its own that survives a restart of the database."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self, TypeVar

import psycopg

from indb_tensile.catalog import models, plans, predictors
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, LockedError, Session, UnreachableError
from indb_tensile.catalog.models import StoredVersion
from indb_tensile.errors import DatabaseError, UnavailableError
from indb_tensile.executor import backend, predictor
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.artifacts import Predictor

from .identity import DatabaseIdentity, read_identity

# Whoever asks is connected to the same database: an outage is over soon, or the asker is gone too.
_PATIENCE_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A version ready to predict, the bytes of its weights, and the role that owns its model."""

    predictor: Predictor
    size_bytes: int
    owner_oid: int


class Store:
    """Loads versions. Belongs to one thread at a time."""

    def __init__(self, dsn: str, purpose: str, device: str = backend.EMULATED, threads: int = 1) -> None:
        self._device = device
        self._threads = threads
        self.session = Session(
            dsn,
            application_name=f"tensile {purpose}",
            patience_s=_PATIENCE_S,
            lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
        )

    def load(self, version: ModelVersionId) -> Loaded:
        """Raises MissingError where there is no such version, DatabaseError where it cannot be read.

        Raises LockedError where another session holds a lock that forbids to read it, UnavailableError while the
        database cannot be reached.
        """
        stored = self._run(lambda connection: _load(connection, version), f"version {version}")
        return Loaded(
            predictor=Predictor.load(stored.bundle, stored.weights),
            size_bytes=len(stored.weights),
            owner_oid=stored.owner_oid,
        )

    def latencies(self, signatures: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Nanoseconds and workspace bytes of the operators that have run on this kind of device."""
        kind = backend.kind_of(self._device, self._threads)
        return self._run(lambda connection: plans.known_latencies(connection, kind, signatures), "latencies")

    def latency_predictor(self) -> predictor.Predictor | None:
        """Foretells operators that have not run on this kind of device; None where none is trained yet."""
        kind = backend.kind_of(self._device, self._threads)
        stored = self._run(lambda connection: predictors.load_predictor(connection, kind), "the latency predictor")
        return None if stored is None else predictor.usable(stored.model)

    def _run(self, action: Callable[[Connection], T], subject: str) -> T:
        try:
            return self.session.run(action, wait_for_locks=False)
        except UnreachableError as error:
            raise UnavailableError(
                f"{subject} cannot be read now: the service does not reach its database",
                detail=error.message,
                hint="Ask again in a few seconds; the service connects by itself.",
            ) from error
        except psycopg.errors.LockNotAvailable as error:
            raise LockedError(
                f"{subject} cannot be read: another session holds a lock on the catalog",
                hint="Ask again. View pg_locks shows who holds a lock on a table of schema tensile.",
            ) from error
        except psycopg.Error as error:
            raise DatabaseError(
                f"{subject} cannot be read from the catalog: {str(error).strip()}",
                hint="the service's role needs the grants of tensile_worker",
            ) from error

    def identity(self) -> DatabaseIdentity:
        """The database that it reads from."""
        return self._run(read_identity, "the database's identity")

    def close(self) -> None:
        """End the connection."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _load(connection: Connection, version: ModelVersionId) -> StoredVersion:
    with connection.transaction():
        models.bound_lock_wait(connection)
        return models.load_version(connection, version)
