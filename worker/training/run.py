"""Runs one job from its claimed row to its published version."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from indb_tensile import config
from indb_tensile.catalog import searches
from indb_tensile.catalog.traces import save_job_graph
from indb_tensile.device.backend import kind_of
from indb_tensile.device.cuda import CudaDevice, CudaRegions
from indb_tensile.device.hardware import (
    trim_heap,
)
from indb_tensile.device.round_member import RoundMember, Seat, open_member
from indb_tensile.errors import LostClaimError, RankLostError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.storage_layout import divided_values
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.state_gathering import StateGathering
from indb_tensile.executor.run.cuda_graphs import Graphs
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on, open_device, torch_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.precision import settle_precision
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.job import Phase
from indb_tensile.learning.models.artifacts import Checkpoint
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.messages import Adopt, Assign, Calibrate, Calibrated, Captured, LeftDevice, LeftPhases, TrainerLink
from indb_tensile.scheduler.document import Document
from indb_tensile.scheduler.link import Link

from ..capture_files import CaptureFiles
from ..captured_steps import CapturedSteps, optimizer_settings
from . import niceness
from .baseline_rows import leave_rows
from .checkpointing import Checkpointing
from .controller_orders import answer_adopted
from .epochs import EpochLoop, work_of
from .gang_rank import GangRank
from .inbox import Inbox
from .memory_corrections import MemoryCorrections
from .progress_signs import ProgressSigns
from .progress_writer import ProgressWriter
from .publication import Trained, publish
from .remaining import Position
from .retrying_session import RetryingSession
from .row_reading import RowReading, trainer_name
from .silent_writer import SilentWriter
from .state_choice import StateChoice, choose_state, tell_state
from .trace_recording import TraceRecording
from .training_events import tell_columns, tell_settings
from .trial_rungs import TrialRungs

log = logging.getLogger("trainer")

SAMPLE_AFTER_NS = 50_000_000
SAMPLE_EVERY = 3  # an emulated device's operators take milliseconds, so timing every third iteration costs little
# If iterations run as one CUDA graph, an iteration that is timed does not, and takes as long as without graphs.
SAMPLE_GRAPHS_AFTER_NS = 500_000_000
SAMPLE_GRAPHS_EVERY = 100
_CAPTURES = "captures"  # the folder of captured steps in the state directory


class TrainingRun:
    """Reads, captures, waits for admission, trains and publishes. Every write carries the job's claim."""

    def __init__(
        self,
        settings: config.Settings,
        device_fd: int,
        link: TrainerLink,
        inbox: Inbox,
        assigned: Assign,
        regions: CudaRegions | None = None,
    ) -> None:
        self._settings = settings
        self._device_fd = device_fd
        self._link = link
        self._inbox = inbox
        self._assigned = assigned
        self._regions = regions
        self._job = assigned.job
        self._started_s = self._ended_s = time.monotonic()  # of the job, and of its training
        self._steps_left: float | None = None

    def run(self) -> float:
        """Run the job, and return the seconds since its training ended.

        Raises TensileError; the job's row then still belongs to the claim.
        """
        signs = ProgressSigns(self._link, self._job.job)
        with RetryingSession(self._settings.dsn, application_name=self._name, alive=signs.give) as session:
            writer = SilentWriter if self._job.follows else ProgressWriter
            progress_writer = writer(session, signs, self._job)
            gang = self._gang(session, signs)
            with (
                self._open() as opened,
                closing(RowReading(self._settings, self._assigned, gang).read(session, progress_writer)) as prepared,
            ):
                if gang is not None:
                    gang.check(prepared, opened.torch_device)
                progress_writer.describe(prepared.report)
                tell_columns(progress_writer, prepared)
                tell_settings(progress_writer, prepared)
                settle_precision(prepared.settings.precision, opened.torch_device)
                with capturing_on(opened.torch_device):
                    steps = self._capture(session, progress_writer, prepared, opened.torch_device, gang)
                if gang is not None:
                    gang.await_others()
                first = self._wait_for_admission(progress_writer, prepared, steps, opened)
                signs.admit()
                trained = self._train(session, progress_writer, prepared, steps, first, opened, gang)
                opened.device.trim()
                self._link.send(LeftDevice(job=self._job.job, steps_left=self._steps_left))
                prepared.finish_decoding(signs.give)
            if trained is None:
                return self._closing_s
            progress_writer.enter(Phase.PUBLISHING)
            progress_writer.settle()
            version = publish(session, self._job, prepared, trained)
            leave_rows(session, self._settings, prepared, version)
        return self._closing_s

    @property
    def _closing_s(self) -> float:
        return time.monotonic() - self._ended_s

    def _gang(self, session: RetryingSession, signs: ProgressSigns) -> GangRank | None:
        """Return the rank of this device, if several devices train the job."""
        own = self._job.gang
        return None if own is None else GangRank(session, self._job, own, signs, self._settings)

    def _open(self) -> AbstractContextManager[OpenDevice]:
        """Open the device. This comes first, because on a GPU nothing may have used CUDA before."""
        name, assigned = self._settings.device, self._assigned
        claim = (self._device_fd, assigned.slot, assigned.epoch)
        strict_for = f"job {self._job.job}" if self._settings.strict else None
        place = torch_device(name)
        return open_device(
            name,
            claim,
            self._settings.host_pool_bytes,
            self._regions,
            place,
            strict_for,
            self._settings.swap_directory,
        )

    def _trial_rungs(self, session: RetryingSession, prepared: Prepared) -> TrialRungs | None:
        """Return the rungs of the search that the job is a trial of, or None."""
        trial = session.run(lambda c: searches.find_trial(c, self._job.job))
        if trial is None:
            return None
        return TrialRungs(
            session,
            self._job,
            trial,
            prepared.metric,
            prepared.settings.epochs,
            patience=prepared.early_stop.patience,
            started_s=self._started_s,
        )

    def _join(self, seat: Seat, progress_writer: ProgressWriter, opened: OpenDevice) -> RoundMember:
        assigned = self._assigned
        gpu = opened.device if isinstance(opened.device, CudaDevice) else None
        return open_member(self._device_fd, assigned.slot, assigned.epoch, seat, progress_writer.signs.give, gpu)

    @property
    def _name(self) -> str:
        return trainer_name(self._job.job)

    def _capture(
        self,
        session: RetryingSession,
        progress_writer: ProgressWriter,
        prepared: Prepared,
        place: torch.device,
        gang: GangRank | None,
    ) -> CapturedSteps:
        progress_writer.enter(Phase.CAPTURING)
        files = CaptureFiles(Path(self._settings.state_dir) / _CAPTURES)
        threads = torch.get_num_threads()
        network = None if gang is None else gang.meet_network(kind_of(self._settings.device, threads))

        @cache
        def captured(share: RankShare | None) -> CapturedSteps:
            steps = CapturedSteps.capture(prepared, self._settings.device, threads, place, files, share, network)
            steps.look_up(session)
            return steps

        if gang is None:
            return captured(None)
        reason = ""

        def choose(budgets: Sequence[tuple[str, int]]) -> bool:
            nonlocal reason
            choice = self._choose_state(captured, gang.share, budgets)
            reason = choice.reason
            return choice.divides

        own_bytes = self._settings.budget_bytes - gang.connection_bytes
        limits_bytes = (own_bytes, self._job.spec.memory_limit_bytes, self._job.owner_limit_bytes)
        gang.settle_state(min(limit for limit in limits_bytes if limit is not None), choose)
        owners = replace(gang.share, divides_state=True)
        divided = divided_values(prepared.module, optimizer_settings(prepared.settings), owners)
        tell_state(progress_writer, divided, divides=gang.share.divides_state, reason=reason)
        steps = captured(gang.share)
        gang.rehearse(steps.rehearse, wanted=steps.foretells_exchanges)
        return steps

    def _choose_state(
        self,
        captured: Callable[[RankShare | None], CapturedSteps],
        share: RankShare,
        budgets: Sequence[tuple[str, int]],
    ) -> StateChoice:
        """Return whether the devices of the job divide the optimizer's state, for their hosts and budgets."""
        whole, divided = (replace(share, divides_state=divides) for divides in (False, True))
        settings = self._settings
        return choose_state(
            self._job.job,
            captured(whole),
            lambda: captured(divided),
            budgets=budgets,
            link=Link(out_bytes_per_s=settings.link_out_bytes_per_s, in_bytes_per_s=settings.link_in_bytes_per_s),
            policy=settings.policy,
        )

    def _wait_for_admission(
        self, progress_writer: ProgressWriter, prepared: Prepared, steps: CapturedSteps, opened: OpenDevice
    ) -> Adopt:
        """Send the job's graphs, measure unknown operators, and wait until a plan fits beside those of other jobs.

        Meanwhile the scripts of the operators' allocations are recorded, which needs no plan. On a GPU that takes
        memory of the device, so it comes after the admission.
        """
        job = self._job.job
        self._link.send(
            Captured(
                job=job,
                graphs=steps.graphs,
                latency_ns=steps.latency_ns,
                unknown=len(steps.unknown),
                steps=work_of(prepared, steps).steps_left(Position()),
                alternates=steps.shorter > 0,
                copy_loss=steps.copy_loss,
            )
        )
        on_host = opened.torch_device.type == "cpu"
        if on_host and not steps.unknown:
            steps.add_scripts()
            steps.store()
        while True:
            message = self._next_message(progress_writer)
            if isinstance(message, Adopt):
                steps.add_scripts()
                steps.store()
                return message
            if isinstance(message, Calibrate):
                progress_writer.enter(Phase.CALIBRATING)
                with prepared.decoding_paused():
                    overflow_bytes = steps.calibrate(progress_writer.session, message.grant_bytes)
                opened.device.trim()  # the grant was for the calibration only
                self._link.send(
                    Calibrated(
                        job=job,
                        graphs=steps.graphs,
                        latency_ns=steps.latency_ns,
                        overflow_bytes=overflow_bytes,
                        copy_loss=steps.copy_loss,
                    )
                )
                if on_host and not overflow_bytes:
                    steps.add_scripts()
                    steps.store()

    def _next_message(self, progress_writer: ProgressWriter) -> object:
        message = self._inbox.poll()
        if message is None:
            progress_writer.enter(Phase.WAITING)
            message = self._inbox.next()
        return message

    def _remember_graph(self, progress_writer: ProgressWriter, steps: CapturedSteps) -> Callable[[], Document]:
        """Have the step graph stored with the job. Returns what makes it with its latest latencies."""
        document = partial(_document, steps, self._job.spec.model)
        if not self._job.follows:
            progress_writer.remember(lambda c: save_job_graph(c, self._job.job, self._job.claim, document()))
        return document

    def _runner(
        self, state: State, steps: CapturedSteps, opened: OpenDevice, placer: Placer, graphs: Graphs | None
    ) -> Runner:
        return Runner(
            opened.device,
            state,
            steps.captured,
            sample_every=SAMPLE_EVERY if graphs is None else SAMPLE_GRAPHS_EVERY,
            sample_after_ns=SAMPLE_AFTER_NS if graphs is None else SAMPLE_GRAPHS_AFTER_NS,
            placer=placer,
            operator_clock=opened.clock,
            check=opened.check,
            graphs=graphs,
        )

    def _train(
        self,
        session: RetryingSession,
        progress_writer: ProgressWriter,
        prepared: Prepared,
        steps: CapturedSteps,
        first: Adopt,
        opened: OpenDevice,
        gang: GangRank | None = None,
    ) -> Trained | None:
        """Put the training on the device with its first plan, train it, and give the device's memory back.

        Return what is to be published; None if another device of the job does that.
        """
        state = _own_state(prepared, opened.torch_device, None if gang is None else gang.share)
        torch.manual_seed(prepared.settings.seed)
        placer = Placer(opened.serving, region_bytes=self._settings.region_bytes, prove=opened.prove)
        # The host makes the exchange between devices, so an iteration with one cannot be a graph.
        graphs = opened.graphs if self._settings.cuda_graphs and gang is None else None
        runner = self._runner(state, steps, opened, placer, graphs)
        ends_within_an_iteration = False
        try:
            runner.adopt(first.plans, first.generation, first.grant_bytes)
            trim_heap()  # memory used by the capture, and by the state before it was on the device
            answer_adopted(self._link, self._job.job, runner)
            return self._train_admitted(session, progress_writer, prepared, steps, state, runner, opened, gang)
        except (RankLostError, LostClaimError):
            ends_within_an_iteration = True
            raise
        finally:
            if graphs is not None:
                log.info("job %s: %d iterations ran as one CUDA graph each", self._job.job, runner.launched)
            # Within an iteration the device cannot be given back in order. The controller frees all of this process.
            if not ends_within_an_iteration:
                runner.close(keeps_state=False)
            if placer.served is not None:
                log.info("job %s: allocations on the device: %s", self._job.job, placer.served)

    def _train_admitted(
        self,
        session: RetryingSession,
        progress_writer: ProgressWriter,
        prepared: Prepared,
        steps: CapturedSteps,
        state: State,
        runner: Runner,
        opened: OpenDevice,
        gang: GangRank | None,
    ) -> Trained | None:
        """Train all epochs with a runner that has its first plan, with the job's other devices if it has any."""
        group = None if gang is None else gang.meet()
        progress_writer.start()
        niceness.train(_left_s(prepared, steps))
        corrections = MemoryCorrections(
            runner=runner, steps=steps, scripted=steps.captured, link=self._link, progress_writer=progress_writer
        )
        corrections.start()
        document = self._remember_graph(progress_writer, steps)
        loop = EpochLoop(
            prepared=prepared,
            state=state,
            runner=runner,
            link=self._link,
            inbox=self._inbox,
            progress_writer=progress_writer,
            steps=steps,
            checkpointing=Checkpointing(session.once, self._job, self._settings),
            corrections=corrections,
            traces=TraceRecording(runner, opened.device, progress_writer, document),
            trial=self._trial_rungs(session, prepared),
            follows=self._job.follows,
            hand_out=_own if gang is None or group is None else partial(gang.hand_out, group),
            gathering=_gathering(prepared, state, gang, group),
            best_directory=Path(self._settings.swap_directory) if opened.device.is_host else None,
            join=lambda seat: self._join(seat, progress_writer, opened),
        )
        joined = nullcontext() if gang is None or group is None else gang.training(group)
        with corrections.storing_refusals(), joined:
            loop.train()
        self._ended_s = time.monotonic()
        self._steps_left = loop.steps_left if loop.trial is None else None  # a search ends its trials early
        if (left := runner.leave_round()) is not None:
            self._link.send(LeftPhases(job=self._job.job, number=left))
        if gang is not None and self._job.follows:
            gang.finish()
            return None
        return loop.trained()


def _own_state(prepared: Prepared, place: torch.device, share: RankShare | None) -> State:
    """Return the state of a training. It has copies of the module's parameters, so their memory is released."""
    state = State.create(prepared.module, optimizer_settings(prepared.settings), place, share)
    for parameter in prepared.module.parameters():
        parameter.untyped_storage().resize_(0)
    return state


def _left_s(prepared: Prepared, steps: CapturedSteps) -> float:
    """Return the time that the whole training takes alone, if it does not stop early."""
    step_ns = steps.totals_ns[0]
    return work_of(prepared, steps).steps_left(Position()) * step_ns / 1e9


def _gathering(
    prepared: Prepared, state: State, gang: GangRank | None, group: RankGroup | None
) -> StateGathering | None:
    """Return how checkpoints get the state that other devices keep; None if this one keeps all of it."""
    if gang is None or group is None:
        return None
    divided = divided_values(prepared.module, optimizer_settings(prepared.settings), gang.share)
    return gang.gathering(group, divided, lambda name: state.export((name,))[name])


def _document(steps: CapturedSteps, model: str) -> Document:
    """Return the step graph with its latest latencies, as it is stored for the job's plans and traces."""
    latency_ns = steps.sampled_ns or steps.latency_ns[0]
    return Document(name=model, graph=steps.graphs[0], latency_ns=latency_ns)


def _own(load: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """Return the checkpoint of a job that one device trains."""
    return load()
