"""Reads the rows of a job's table into the parts and the network of its training."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog import models, snapshots, stored_networks
from indb_tensile.catalog.reader_connection import open_reader, reader_dsn
from indb_tensile.device.hardware import (
    disk_free_bytes,
    free_memory_bytes,
    memory_with_swap_bytes,
    read_limit_bytes,
    rows_directory,
)
from indb_tensile.job import JobId, Phase, SnapshotTable
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.requirements import AvailableMemory
from indb_tensile.learning.relation.locked_relation import ReadLimits
from indb_tensile.learning.relation.memory_estimate import MemoryEstimate, RowMemoryLimits
from indb_tensile.learning.storage.row_storage import FileStorage
from indb_tensile.learning.training.preparation import prepare
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.messages import Assign

from ..catalog_networks import registered
from ..stored_predictors import bundle_of
from .gang_rank import GangRank
from .progress_writer import ProgressWriter
from .retrying_session import RetryingSession

log = logging.getLogger("trainer")


def trainer_name(job: JobId) -> str:
    """Return the name that the trainer of a job has as a process, and its connections as application_name."""
    return f"tensile trainer {job}"


class RowReading:
    """Reads the rows of one job on a connection of its own. Rows that do not fit into memory go to a file."""

    def __init__(self, settings: config.Settings, assigned: Assign, gang: GangRank | None = None) -> None:
        self._settings = settings
        self._gang = gang
        self._assigned = assigned
        self._job = assigned.job
        self._name = trainer_name(assigned.job.job)

    def read(self, session: RetryingSession, progress_writer: ProgressWriter) -> Prepared:
        """Return the prepared rows and network. Raises TensileError."""
        progress_writer.enter(Phase.READING)
        job = self._job.job
        start = self._start(session)
        network = self._network(session, start)
        snapshot = session.run(lambda c: snapshots.find_snapshot(c, job))

        def tell(need: MemoryEstimate) -> None:
            limits = self._row_memory()
            figures = need.figures() | {"free_bytes": limits.free_bytes, "limit_bytes": limits.limit_bytes}
            figures |= {"in_file": not need.fits_memory(limits)}
            log.info("job %s: its rows need about %d bytes: %s", job, need.peak_bytes, figures)
            progress_writer.tell("reading", figures)

        # A locked table is not waited for: the job returns to the queue, and its trainer is free for another job.
        return session.waiting(lambda: self._read_once(snapshot, start, network, tell), wait_for_locks=False)

    def _row_memory(self) -> RowMemoryLimits:
        directory = rows_directory(self._settings)
        return RowMemoryLimits(
            limit_bytes=read_limit_bytes(self._settings),
            host_bytes=memory_with_swap_bytes(),
            free_bytes=free_memory_bytes(),
            disk_bytes=disk_free_bytes(directory),
            directory=directory,
        )

    def _start(self, session: RetryingSession) -> StartingWeights | None:
        """Load the version that the job starts from, if it names one."""
        wish = self._job.spec.init_from
        if wish is None:
            return None
        job = self._job
        if job.gang is not None:  # the version is chosen once for all ranks, under the claim of their attempt
            job = replace(job, claim=job.gang.attempt_claim)
        stored = session.run(lambda c: models.load_init_version(c, job, wish))
        bundle = bundle_of(stored).first_member()
        return StartingWeights(model=stored.model, version=stored.number, bundle=bundle)

    def _network(self, session: RetryingSession, start: StartingWeights | None) -> RegisteredNetwork | None:
        """Load the registered network of the job's architecture, which may be that of the version to start from."""
        architecture = self._job.spec.architecture
        if architecture["type"] == "auto" and start is not None:
            architecture = start.architecture
        stored = session.run(lambda c: stored_networks.load_network_of_job(c, self._job.job, architecture))
        return registered(stored)

    def _read_once(
        self,
        snapshot: SnapshotTable | None,
        start: StartingWeights | None,
        network: RegisteredNetwork | None,
        tell: Callable[[MemoryEstimate], None],
    ) -> Prepared:
        """Read the rows on a separate connection, which is closed after the read."""
        memory = self._row_memory()
        overflow = partial(FileStorage, Path(memory.directory))
        gang = self._gang
        limits = ReadLimits(
            size_bytes=min(memory.limit_bytes, memory.free_bytes * 3 // 4),
            overflow=overflow,
            snapshot=None if gang is None else gang.snapshot(),
            sharing=(lambda _: nullcontext()) if gang is None else gang.reading,
        )
        with open_reader(reader_dsn(self._settings), application_name=f"{self._name} (reading)") as connection:
            return prepare(
                connection,
                self._job.spec,
                owner_oid=self._job.owner_oid,
                snapshot=snapshot,
                room=self._room(),
                limits=limits,
                memory=memory,
                tell=tell,
                start=start,
                network=network,
            )

    def _room(self) -> AvailableMemory | None:
        """Return the memory that the job may use, or None if nothing limits it.

        A network that cannot run in it is then refused before its memory is allocated.
        """
        budget_bytes, limit_bytes = self._assigned.budget_bytes, self._job.spec.memory_limit_bytes
        if budget_bytes is None or not self._job.spec.takes_device:
            return None
        limited = limit_bytes is not None and limit_bytes < budget_bytes
        return AvailableMemory(
            device_bytes=limit_bytes if limited and limit_bytes is not None else budget_bytes,
            limited=limited,
            host_pool_bytes=self._settings.host_pool_bytes,
            host_bytes=memory_with_swap_bytes(),
            free_bytes=free_memory_bytes(),
        )
