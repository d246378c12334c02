"""Reads model versions and latencies from the catalog, on a connection that survives restarts of the database."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from socket import gethostname
from typing import Any, Self, TypeVar

import psycopg

from indb_tensile.catalog import (
    drift,
    jobs,
    models,
    outlooks,
    plans,
    predictors,
    rank_memory,
    rank_networks,
    ranks,
    stored_networks,
)
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, LockedError, Session, UnreachableError
from indb_tensile.catalog.models import StoredVersion
from indb_tensile.device import backend
from indb_tensile.device.trainer_footprint import FIRST_NCCL_BYTES
from indb_tensile.errors import DatabaseError, UnavailableError
from indb_tensile.executor.latency import latency_predictor
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.timing.network_times import GangNetwork

from ..catalog_networks import registered
from ..stored_predictors import predictor_of
from .identity import DatabaseIdentity, read_identity

# The client is connected to the same database: an outage is short, or the client has lost its connection too.
_RETRY_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A version that is ready to predict, the bytes of its weights, and the oid of its owner."""

    predictor: ModelPredictor
    size_bytes: int
    owner_oid: int


class Store:
    """Reads versions from the catalog, for one thread at a time. Without `at_once` it connects when it reads."""

    def __init__(
        self,
        dsn: str,
        purpose: str,
        device: str = backend.EMULATED,
        threads: int = 1,
        *,
        at_once: bool = True,
        by_nccl: bool = False,
    ) -> None:
        """With `by_nccl`, the devices of a job exchange gradients by NCCL."""
        self._device = device
        self._by_nccl = by_nccl
        self._threads = threads
        self.session = Session(
            dsn,
            application_name=f"tensile {purpose}",
            retry_s=_RETRY_S,
            lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
            at_once=at_once,
        )

    def load(self, version: ModelVersionId) -> Loaded:
        """Load a version. Raises MissingError if it does not exist, DatabaseError if it cannot be read.

        Raises LockedError if another session's lock prevents reading it, UnavailableError if the database cannot be
        reached.
        """
        stored = self._run(lambda connection: _load(connection, version), f"version {version}")
        return Loaded(
            predictor=predictor_of(stored),
            size_bytes=len(stored.weights) + (0 if stored.network is None else len(stored.network.weights)),
            owner_oid=stored.owner_oid,
        )

    def input_bins(self, version: ModelVersionId) -> Mapping[str, Any] | None:
        """Return the stored bins of a version's inputs, or None if it was stored without bins."""
        return self._run(lambda connection: drift.load_bins(connection, version), f"the bins of version {version}")

    def latencies(self, signatures: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return latency in ns and workspace in bytes of the operators that have run on this kind of device."""
        kind = backend.kind_of(self._device, self._threads)
        return self._run(lambda connection: plans.known_latencies(connection, kind, signatures), "latencies")

    def latency_predictor(self) -> latency_predictor.Predictor | None:
        """Return the latency predictor of this kind of device, or None if none is trained yet."""
        kind = backend.kind_of(self._device, self._threads)
        stored = self._run(lambda connection: predictors.load_predictor(connection, kind), "the latency predictor")
        return None if stored is None else latency_predictor.read_predictor(stored.model)

    def gang_network(self, devices: int) -> GangNetwork | None:
        """Return the network between so many devices of this kind, or None if so many have not met."""
        kind = backend.kind_of(self._device, self._threads)
        network = self._run(
            lambda c: rank_networks.latest_network(c, kind, gethostname(), devices), "the network between devices"
        )
        return None if network is None else replace(network, by_nccl=self._by_nccl)

    def gang_budgets(self, devices: int) -> tuple[tuple[str, int], ...]:
        """Return host and budget in bytes of the largest devices of this kind, no more than so many."""
        kind = backend.kind_of(self._device, self._threads)
        return self._run(lambda c: ranks.gang_budgets(c, kind, devices), "the budgets of devices")

    def connection_bytes(self, devices: int) -> int:
        """Return what the connection between so many devices of this kind takes of each, outside every plan."""
        if not self._by_nccl:
            return 0
        kind = backend.kind_of(self._device, self._threads)
        measured_bytes = self._run(
            lambda c: rank_memory.load_memory(c, kind, devices), "the memory of connections between devices"
        )
        return measured_bytes or FIRST_NCCL_BYTES

    def outlook(self) -> Outlook | None:
        """Return what the jobs on this host's device still need, or None if no controller has recorded it."""
        return self._run(lambda connection: outlooks.load_outlook(connection, gethostname()), "the device's outlook")

    def network(self, architecture: Mapping[str, Any], owner_oid: int) -> RegisteredNetwork | None:
        """Return the registered network of an architecture without its weights, if this role may train from it.

        Raises MissingError if there is no such network, DatabaseError if it cannot be read.
        """
        described = self._run(
            lambda c: stored_networks.describe_network(c, architecture, owner_oid), "the registered network"
        )
        return registered(described)

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
                hint="The service's role needs the grants of tensile_worker.",
            ) from error

    def identity(self) -> DatabaseIdentity:
        """Read the identity of the connected database."""
        return self._run(read_identity, "the database's identity")

    def standby_facts(self) -> jobs.StandbyFacts:
        """Read whether the server is a hot standby, and where its sessions look for a service."""
        return self._run(jobs.standby_facts, "the server's state")

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
