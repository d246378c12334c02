"""One rank of a job that several devices train together: it waits for the others, and connects and trains with them.

All ranks read the rows under one snapshot, which rank 0 exports. None asks for memory before all have captured the
step, and none trains before all have memory. Then rank 0 hands its checkpoint to the others, so all train from the
same state on. They make the same updates and the same validations, so they need no word from each other on when to
stop.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from socket import gethostname
from typing import Any, NoReturn

import psycopg
import torch

from indb_tensile.catalog import rank_memory, rank_networks, ranks
from indb_tensile.catalog.ranks import RankState
from indb_tensile.config import Settings
from indb_tensile.device.backend import is_emulated
from indb_tensile.errors import InvariantError, RankLostError, TensileError
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce, divide_parts
from indb_tensile.executor.capture.storage_layout import Value
from indb_tensile.executor.ranks.nccl_connection import await_room, connect_by_nccl
from indb_tensile.executor.ranks.nccl_ranks import leaving
from indb_tensile.executor.ranks.network_measurement import measure_network
from indb_tensile.executor.ranks.rank_connection import broadcast_bytes, join_ranks, rank_lost
from indb_tensile.executor.ranks.rank_gpu import RankGpu
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.rank_proof import prove_ranks
from indb_tensile.executor.ranks.state_gathering import StateGathering
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.job import ClaimedJob, ClaimedRank
from indb_tensile.learning.batches.batch_order import batch_plan
from indb_tensile.learning.models.artifacts import Checkpoint
from indb_tensile.learning.relation.locked_relation import export_snapshot
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.scheduler.timing.network_times import GangNetwork

from .network_agreement import settle_network
from .progress_signs import SIGN_S, ProgressSigns
from .rank_store import CatalogStore
from .retrying_session import RetryingSession

log = logging.getLogger("trainer")

MEETING_S = 600.0  # for values that others compute before they ask for memory
CONNECTING_S = 60.0  # once all have memory
CAUSE_S = 10.0  # time in which the controller of a lost rank says why it is lost
_PAUSE_S = 0.1
_SNAPSHOT, _SECRET, _AGREEMENT, _DIVIDES = "snapshot", "secret", "agreement", "divides the state"
_MEASURES, _MEASURED = "measures the network", "the network is measured"
_REHEARSES = "rehearses the exchanges"


class GangRank:
    """One rank in one attempt. Every method raises LostClaimError once the attempt has ended."""

    def __init__(
        self, session: RetryingSession, job: ClaimedJob, gang: ClaimedRank, signs: ProgressSigns, settings: Settings
    ) -> None:
        self._session = session
        self._job = job
        self._signs = signs
        self._settings = settings
        self._attempt = str(gang.attempt_claim)
        self._waiting = _SignsOfWaiting(self._give_sign)
        self._store = CatalogStore(session, job.job, job.claim, alive=self._give_sign)
        reduce = job.spec.hyperparams.get("reduce") or HYPERPARAMS["reduce"]["default"]
        self.connection_bytes = gang.connection_bytes
        self._gpu: RankGpu | None = None  # if ranks exchange gradients by NCCL
        self._device_kind = ""
        self._asked: int | None = job.spec.hyperparams.get("zero_stage")
        self.share = RankShare(
            rank=gang.rank, ranks=gang.ranks, reduce=Reduce(reduce), divides_state=self._asked == 1
        )

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which saves checkpoints and publishes."""
        return self.share.rank == 0

    def snapshot(self) -> str | None:
        """Return the snapshot under which to read, once rank 0 has exported it; None for rank 0."""
        return None if self.leads else self._store.get(_SNAPSHOT).decode()

    @contextmanager
    def reading(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Share the snapshot of the transaction that reads the rows. Rank 0 waits until all others have taken it."""
        if not self.leads:
            self._store.set(_taken(self.share.rank), b"")
            yield
            return
        self._store.set(_SNAPSHOT, export_snapshot(connection).encode())
        yield
        self._store.wait([_taken(rank) for rank in range(1, self.share.ranks)])

    def check(self, prepared: Prepared, place: torch.device) -> None:
        """Refuse a training that cannot be divided. Check that all ranks have prepared the same training.

        They must also exchange by the same network, and by NCCL only between GPUs of their own. `place` is that of
        this rank's gradients.
        """
        self._gpu = settle_network(self._store, self.share, self._settings.rank_network, place, self._await_value)
        rows = batch_plan(prepared.train.rows, prepared.settings).full_rows
        parts = Passes(micro_batch_size=prepared.settings.micro_batch_size).parts(rows)
        divide_parts(len(parts), self.share.ranks)
        digest = _digest(prepared)
        if self.leads:
            self._store.set(_AGREEMENT, digest)
        elif self._store.get(_AGREEMENT) != digest:
            raise TensileError(
                f"rank {self.share.rank} of {self.share.ranks} has not prepared the same training as rank 0",
                detail="Their rows, networks, settings or first weights differ.",
                hint="Run the same release of indb-tensile and of PyTorch on all machines.",
            )

    def meet_network(self, device_kind: str) -> GangNetwork:
        """Return the times of transfers between the ranks' hosts, before anything is planned.

        The catalog has them if such ranks have met within a day. Otherwise all ranks connect and measure them, which
        takes about a second, and rank 0 stores them. They are those of host memory, also with NCCL.
        """
        self._device_kind = device_kind
        return replace(self._meet_network(device_kind), by_nccl=self._settings.uses_nccl)

    def _meet_network(self, device_kind: str) -> GangNetwork:
        self._store.set(_host_of(self.share.rank), gethostname().encode())
        hosts = sorted(self._await_value(_host_of(rank)).decode() for rank in range(self.share.ranks))
        if self.leads:
            stored = self._stored_network(device_kind, hosts, fresh=True)
            self._store.set(_MEASURES, str(int(stored is None)))
            if stored is not None:
                return stored
        if int(self._await_value(_MEASURES)):
            with self._waiting.ticking(), self._waiting.during():
                group = self._connect(f"{self._attempt}, network")
                device = self._settings.device
                times = measure_network(group, on_processor=not device.startswith("cuda"), copies=is_emulated(device))
            if self.leads:
                network = GangNetwork(hosts=tuple(hosts), times=times)
                self._session.run(lambda c: rank_networks.save_network(c, device_kind, network))
                self._store.set(_MEASURED, b"")
                return network
            self._await_value(_MEASURED)
        network_of_all = self._stored_network(device_kind, hosts, fresh=False)
        if network_of_all is None:
            raise InvariantError(f"the network between {', '.join(hosts)} was measured and is not in the catalog")
        return network_of_all

    def settle_state(self, budget_bytes: int, choose: Callable[[Sequence[tuple[str, int]]], bool]) -> None:
        """Settle whether the ranks divide the optimizer's state: as the request says, else as rank 0 chooses.

        `budget_bytes` is this rank's. Rank 0 chooses for the hosts and budgets of all ranks, and the others wait for
        it. They have met the network before.
        """
        if self._asked is not None:
            return
        self._store.set(_budget_of(self.share.rank), str(budget_bytes))
        if self.leads:
            names = [(_host_of(rank), _budget_of(rank)) for rank in range(self.share.ranks)]
            budgets = [(self._await_value(host).decode(), int(self._await_value(budget))) for host, budget in names]
            with self._waiting.ticking(), self._waiting.during():
                divides = choose(budgets)
            self._store.set(_DIVIDES, str(int(divides)))
        self.share = replace(self.share, divides_state=bool(int(self._await_value(_DIVIDES))))

    def rehearse(self, run: Callable[[RankGroup], None], *, wanted: bool) -> None:
        """Let all ranks rehearse the exchanges of their captured steps by `run`, if rank 0 wants it.

        That takes one to two seconds, and 80 MiB of host memory, twice as much as meeting the network does.
        """
        if self.leads:
            self._store.set(_REHEARSES, str(int(wanted)))
        if int(self._await_value(_REHEARSES)):
            with self._waiting.ticking(), self._waiting.during():
                run(self._connect(f"{self._attempt}, rehearsal"))

    def await_others(self) -> None:
        """Wait until all ranks have captured the step. Until then this rank asks for no memory."""
        self._enter(RankState.PREPARED, divides_state=self.share.divides_state)
        self._await_states(*(state for state in RankState if state not in (RankState.OFFERED, RankState.PREPARING)))

    def meet(self) -> RankGroup:
        """Connect to all other ranks as soon as they have memory, too.

        The catalog gives the attempt back if they do not get any soon (tensile.take_back_gangs).
        """
        self._enter(RankState.ADMITTED)
        self._await_states(RankState.ADMITTED, RankState.TRAINING)
        group = self._connect(self._attempt)
        if self._gpu is not None:
            with self._waiting.ticking(), self._waiting.during():
                group = self._connect_by_nccl(group, self._gpu)
        self._enter(RankState.TRAINING)
        return group

    @contextmanager
    def training(self, group: RankGroup) -> Iterator[None]:
        """Let the steps of this thread exchange with the other ranks. While they wait, signs of life go on.

        If another rank is lost, its own controller may know why, and ends the attempt. This rank ends it only if that
        has not happened after a while.
        """
        try:
            around = self._waiting.during
            with self._waiting.ticking(), leaving(group, around), exchanging(group, around):
                yield
        except RankLostError as error:
            self._await_cause(error)

    def hand_out(self, group: RankGroup, load: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """Return the checkpoint to go on from, which rank 0 loads for all; None if there is none."""
        if self.leads:
            checkpoint = load()
            stored = b"" if checkpoint is None else b"".join(bytes(part) for part in checkpoint.parts())
            with self._waiting.during():
                broadcast_bytes(group, stored)
            return checkpoint
        with self._waiting.during():
            stored = broadcast_bytes(group, b"")
        return Checkpoint.from_bytes(stored) if stored else None

    def gathering(
        self, group: RankGroup, divided: Sequence[tuple[Value, int]], export: Callable[[str], torch.Tensor]
    ) -> StateGathering | None:
        """Return how rank 0 gets the optimizer's state that other ranks keep; None if all keep the whole state."""
        return StateGathering(group, divided, export, self._waiting.during) if divided else None

    def finish(self) -> None:
        """Record that this rank has trained all epochs. From then on the job needs no more of it."""
        self._enter(RankState.FINISHED)

    def _connect(self, attempt: str) -> RankGroup:
        """Connect to all other ranks, which prove that they belong to this attempt."""
        group = join_ranks(
            self._store,
            self.share,
            attempt=attempt,
            meeting_s=CONNECTING_S,
            timeout_s=self._settings.rank_timeout_s,
            address=self._settings.rank_address,
        )
        prove_ranks(group, self._store.get(_SECRET), attempt=attempt)
        return group

    def _connect_by_nccl(self, group: RankGroup, gpu: RankGpu) -> RankGroup:
        """Connect by NCCL to the ranks of this group, too, and store what that takes of the device's memory."""
        await_room(self.share, gpu.free_bytes, self.connection_bytes, CONNECTING_S)
        connected, taken_bytes = connect_by_nccl(
            group,
            # without signs of life, which another thread gives meanwhile
            CatalogStore(self._session, self._job.job, self._job.claim),
            self.share,
            gpu,
            attempt=self._attempt,
            meeting_s=2 * CONNECTING_S,  # another rank may wait for room
            timeout_s=self._settings.rank_timeout_s,
            address=self._settings.rank_address,
        )
        log.info("job %s: NCCL has taken %d bytes of the device", self._job.job, taken_bytes)
        if taken_bytes > 0:  # or other programs have given back more meanwhile
            save = partial(rank_memory.save_memory, device_kind=self._device_kind, ranks=self.share.ranks)
            self._session.run(partial(save, memory_bytes=taken_bytes))
        return connected

    def _stored_network(self, device_kind: str, hosts: Sequence[str], *, fresh: bool) -> GangNetwork | None:
        return self._session.run(
            partial(rank_networks.load_network, device_kind=device_kind, hosts=hosts, fresh=fresh)
        )

    def _await_states(self, *expected: RankState) -> None:
        while not set(self._states()) <= set(expected):
            self._give_sign()
            time.sleep(_PAUSE_S)

    def _await_cause(self, error: RankLostError) -> NoReturn:
        until_s = time.monotonic() + CAUSE_S
        while time.monotonic() < until_s:
            self._states()
            self._give_sign()
            time.sleep(_PAUSE_S)
        raise error

    def _give_sign(self) -> None:
        """Show the controller that this rank waits. The time does not count as that of an iteration."""
        self._signs.begin()
        self._signs.give()

    def _await_value(self, key: str) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=MEETING_S))
        except RuntimeError as error:
            raise rank_lost(self.share.rank, self.share.ranks, error, "has not heard of all other ranks") from error
        return self._store.get(key)

    def _enter(self, state: RankState, *, divides_state: bool | None = None) -> None:
        enter = partial(ranks.enter_state, job=self._job.job, claim=self._job.claim, state=state)
        self._session.run(partial(enter, divides_state=divides_state))

    def _states(self) -> tuple[RankState, ...]:
        return self._session.run(partial(ranks.states, job=self._job.job, claim=self._job.claim))


class _SignsOfWaiting:
    """Gives signs of life from a thread of its own while the training waits for another rank."""

    def __init__(self, give: Callable[[], None]) -> None:
        self._give = give
        self._waits = False

    @contextmanager
    def during(self) -> Iterator[None]:
        """Wait for another rank in this context."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Give signs in this context whenever the training waits."""
        ended = threading.Event()
        thread = threading.Thread(target=self._tick, args=(ended,), name="waiting for ranks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _tick(self, ended: threading.Event) -> None:
        with suppress(OSError):  # the controller is gone, and this process ends, too
            while not ended.wait(SIGN_S):
                if self._waits:
                    self._give()


def _taken(rank: int) -> str:
    return f"{_SNAPSHOT} taken by {rank}"


def _host_of(rank: int) -> str:
    return f"host of {rank}"


def _budget_of(rank: int) -> str:
    return f"budget of {rank}"


def _digest(prepared: Prepared) -> bytes:
    """Return a digest of all that the steps of a training depend on."""
    digest = hashlib.sha256(prepared.data_digest.encode())
    digest.update(json.dumps(prepared.architecture, sort_keys=True).encode())
    digest.update(repr((prepared.settings, prepared.early_stop, torch.__version__)).encode())
    for name, value in sorted(prepared.module.state_dict().items()):
        digest.update(name.encode())
        # A copy, because numpy would keep the parameter's own memory.
        copy = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        digest.update(copy.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
