"""Captures the steps of one job, and collects the latencies of their operators on this kind of device.

A step is the sequence of operators that one batch runs in training or validation, captured as a graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from indb_tensile.catalog import plans, predictors
from indb_tensile.catalog.connection import Connection, Session
from indb_tensile.catalog.plans import OpMeasurement
from indb_tensile.device.backend import CPU, EMULATED, kind_of, speed_of
from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.allocation_script import AllocationScript
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import (
    CapturedStep,
    StepKind,
    capture_evaluation,
    capture_training,
    with_host_uploads,
)
from indb_tensile.executor.capture.step_numbers import StepNumbers, with_numbers
from indb_tensile.executor.capture.stored_capture import capture_key
from indb_tensile.executor.latency.calibrate import add_scripts, apply_known, calibrate, unknown_signatures
from indb_tensile.executor.latency.exchange_rehearsal import rehearsed_network
from indb_tensile.executor.latency.latency_predictor import Predictor, predict_latencies, read_predictor
from indb_tensile.executor.ranks.exchange_traffic import copy_loss_of, latencies_on_network, stored_signatures
from indb_tensile.executor.ranks.foretold_rank import foretold_rank
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import measuring
from indb_tensile.executor.run.precision import with_precision
from indb_tensile.executor.run.state import HOST
from indb_tensile.learning.batches.batch_order import example_batches
from indb_tensile.learning.batches.length_buckets import LengthBuckets
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import CopyLoss, Link
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.operator_features import write_description
from indb_tensile.scheduler.timing.simulate_ranks import RankRun

from .capture_files import CaptureFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCapture:
    """A step that was captured now and is to be stored, as it was before anything was measured.

    `position` is its place among the job's steps.
    """

    key: str
    position: int
    step: CapturedStep
    numbers: StepNumbers

    def save(self, files: CaptureFiles, scripts: Mapping[str, AllocationScript]) -> None:
        """Store the step with these scripts, for trainings with any numbers."""
        neutral = with_numbers(self.step, self.numbers, self.numbers.neutral)
        files.save(self.key, (replace(neutral, scripts=dict(scripts)),))


class CapturedSteps:
    """The captured training step, the last, smaller batch, and those of shorter texts; then the validation passes.

    There may be no smaller batch and no shorter texts. The training step is of full batches of the longest texts. Of
    the validation passes, too, those of shorter texts are before the longest.
    """

    def __init__(
        self,
        captured: tuple[CapturedStep, ...],
        evaluation_rows: int,
        device: str = EMULATED,
        threads: int = 1,
        files: CaptureFiles | None = None,
        new: Sequence[NewCapture] = (),
        share: RankShare | None = None,
        shorter: int = 0,
        network: GangNetwork | None = None,
    ) -> None:
        """`shorter` is the number of training steps of shorter texts, and of such validation passes.

        `network` is that between the devices of which `share` names one.
        """
        self._share = share
        self._network = network
        self.shorter = shorter
        self.captured = captured
        self._files = files
        self._new = new
        self._on_processor = not device.startswith("cuda")
        self.kind = kind_of(device, threads)
        self._speed = speed_of(device)
        self.evaluation_rows = evaluation_rows
        self.sampled_ns: tuple[int, ...] | None = None  # the latencies of the training step that were measured last
        self._known: dict[str, tuple[int, int]] = {}  # latency in ns and workspace in bytes, by signature
        self._predictor: Predictor | None = None

    @classmethod
    def capture(
        cls,
        prepared: Prepared,
        device: str = EMULATED,
        threads: int = 1,
        place: torch.device = HOST,
        files: CaptureFiles | None = None,
        share: RankShare | None = None,
        network: GangNetwork | None = None,
    ) -> "CapturedSteps":
        """Capture every graph that the job's epochs run, for the device of this name (device/backend.py).

        `place` is the device on which torch computes them. An equal capture is taken from `files`, if it is there.
        With a `share` the training steps are those of one of several devices, which exchange by the `network`.
        """
        examples = example_batches(prepared.train, prepared.settings, prepared.buckets)
        shorter = 0 if prepared.buckets is None else prepared.buckets.last
        validated = (*examples[len(examples) - shorter :], examples[0])
        wanted = [(StepKind.TRAINING, batch) for batch in examples]
        wanted += [(StepKind.EVALUATION, batch) for batch in validated]
        passes = Passes(micro_batch_size=prepared.settings.micro_batch_size, precision=prepared.settings.precision)
        numbers = StepNumbers.of(prepared.module, optimizer_settings(prepared.settings))
        captured: list[CapturedStep] = []
        new: list[NewCapture] = []
        for position, (kind, batch) in enumerate(wanted):
            key = ""
            if files is not None:
                where = {"device": kind_of(device, threads), "place": str(place)}
                if share is not None and (kind is StepKind.TRAINING or share.divides_state):
                    state = "divided" if share.divides_state else "whole"
                    where["share"] = f"{share.rank} of {share.ranks}, {share.reduce}, {state} state"
                key = capture_key(
                    prepared.architecture, prepared.module, prepared.loss, kind, batch, numbers, passes, where
                )
                if (stored := files.load(key)) is not None:
                    captured.append(with_numbers(stored[0], numbers.neutral, numbers))
                    continue
            step = _capture(prepared, kind, batch, numbers.optimizer, passes, device, place, share)
            captured.append(step)
            new.append(NewCapture(key=key, position=position, step=step, numbers=numbers))
        return cls(tuple(captured), len(examples[0][1]), device, threads, files, new, share, shorter, network)

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        """The step graphs, in order."""
        return tuple(step.graph for step in self.captured)

    @property
    def latency_ns(self) -> tuple[tuple[int, ...], ...]:
        """The best known latency of each operator: measured on this kind of device, else predicted.

        An exchange with other devices has the time that a training on this network has measured, else a foretold one.
        """
        return tuple(self._latency(step) for step in self.captured)

    @property
    def copy_loss(self) -> CopyLoss:
        """What copies cost operators beside them, if it is not in the latencies."""
        return copy_loss_of(self.captured, self._network, self._known)

    def rank_run(self, plan: Plan, *, link: Link, host: str) -> RankRun:
        """Return a rank on this host that runs the training step under the plan, as this one would."""
        step = self.captured[0]
        if self._share is None or self._network is None:
            raise InvariantError("a training on one device has no other ranks to be foretold with")
        own_ns = self._own_latency(step)
        return foretold_rank(step, plan, own_ns, self._share, self._network, self._known, link=link, host=host)

    @property
    def totals_ns(self) -> list[int]:
        """The time of each step's operators, in captured order."""
        return [sum(blocking_ns(*step)) for step in zip(self.graphs, self.latency_ns, strict=True)]

    def mean_ns(self, buckets: LengthBuckets | None) -> tuple[float, float]:
        """Return the time of a full batch's training step and of its validation, each the mean over all lengths."""
        totals = self.totals_ns
        if buckets is None:
            return totals[0], totals[-1]
        validated = len(totals) - 1 - self.shorter
        trained = [*totals[validated - self.shorter : validated], totals[0]]
        return buckets.mean(trained), buckets.mean(totals[validated:])

    @property
    def unknown(self) -> frozenset[str]:
        """The signatures of operators that have never been measured on this kind of device."""
        return unknown_signatures(self.captured, self._known)

    @property
    def exchanged(self) -> dict[str, str]:
        """The signatures under which trainings store operators that wait for an exchange, by the operator's own.

        Under its own signature such an operator has the time that it takes without other devices.
        """
        return stored_signatures(self.captured, self._network)

    @property
    def foretells_exchanges(self) -> bool:
        """Whether an exchange of the steps has no measured time, and its values are in host memory."""
        return self._on_processor and not self._known.keys() >= set(self.exchanged.values())

    def rehearse(self, group: RankGroup) -> None:
        """Rehearse the exchanges of the training step with the other ranks, and foretell them accordingly.

        All ranks call it together. Raises RankLostError if another rank has gone.
        """
        if self._share is None or self._network is None:
            raise InvariantError("a training on one device has no exchanges to rehearse")
        step = self.captured[0]
        self._network = rehearsed_network(group, step, self._own_latency(step), self._share, self._network)

    def look_up(self, session: Session) -> None:
        """Load from the catalog what earlier jobs measured about these operators, and the latency predictor."""
        wanted = self.unknown.union(self.exchanged.values())
        latencies = session.run(lambda c: plans.known_latencies(c, self.kind, wanted))
        self._apply_measured(latencies)
        stored = session.run(lambda c: predictors.load_predictor(c, self.kind)) if self.unknown else None
        self._predictor = None if stored is None else read_predictor(stored.model)

    def calibrate(self, session: Session, grant_bytes: int) -> int:
        """Run each unknown operator once within `grant_bytes`, and record its latency and workspace in the catalog.

        Returns the bytes by which the grant was too small, or 0. If the grant was too small, nothing is recorded.
        """
        predicted = self._predictions()
        with self.alone():
            outcome = calibrate(self.captured, self.unknown, self._known, grant_bytes)
        if outcome.overflow_bytes:
            return outcome.overflow_bytes
        names = {key: f"size of {name}" for step in self.captured for name, key in step.size_signatures().items()}
        names |= {o.signature: o.name for graph in self.graphs for o in graph.operators}
        rows = [
            OpMeasurement(
                signature=signature,
                name=names[signature],
                latency_ns=latency_ns,
                workspace_bytes=workspace_bytes,
                predicted_ns=predicted.get(signature),
            )
            for signature, (latency_ns, workspace_bytes) in outcome.measured.items()
        ]
        descriptions = self._descriptions(outcome.measured)
        session.run(lambda c: predictors.describe(c, descriptions))
        session.run(lambda c: plans.record_latencies(c, self.kind, rows))
        self.captured = outcome.steps
        self._apply_measured(outcome.measured)
        return 0

    def add_scripts(self) -> None:
        """Record the allocations of every operator that has no script of them yet, by running it once."""
        with self.alone():
            self.captured = add_scripts(self.captured)

    def store(self) -> None:
        """Store new captures, with the scripts that are known by now and without measurements."""
        new, self._new = self._new, ()
        if self._files is not None:
            for capture in new:
                capture.save(self._files, self.captured[capture.position].scripts)

    def correct(self, outgrown: Iterable[OutgrownOperator]) -> None:
        """Take over workspaces that turned out larger while the job trained."""
        larger = {operator.signature: operator.measured_bytes for operator in outgrown}
        self._known |= {
            signature: (self._known[signature][0], size_bytes)
            for signature, size_bytes in larger.items()
            if signature in self._known
        }
        self.captured = tuple(step.with_measured(larger) for step in self.captured)

    def measurements(self, latency_ns: Sequence[int], samples: int) -> list[OpMeasurement]:
        """Return what the catalog keeps of the training step's latencies, as measured while the job trained."""
        exchanged = self.exchanged
        return [
            OpMeasurement(
                signature=exchanged.get(operator.signature, operator.signature),
                name=operator.name,
                latency_ns=ns,
                workspace_bytes=operator.workspace_bytes,
                samples=samples,
            )
            for operator, ns in zip(self.graphs[0].operators, latency_ns, strict=True)
        ]

    def raise_workspaces(self, connection: Connection, outgrown: Iterable[OutgrownOperator]) -> frozenset[str]:
        """Store larger workspaces for later jobs. Return the signatures of those that the catalog did not know."""
        rows = [
            OpMeasurement(
                signature=operator.signature,
                name=operator.name,
                latency_ns=self._known[operator.signature][0] if operator.signature in self._known else 0,
                workspace_bytes=operator.measured_bytes,
            )
            for operator in outgrown
        ]
        return plans.raise_workspaces(connection, self.kind, rows)

    def alone(self) -> AbstractContextManager[None]:
        """Run operators without the other devices of the job."""
        if self._share is None:
            return nullcontext()
        by_nccl = self._network is not None and self._network.by_nccl
        return measuring(self._share.ranks, self._share.rank, on_device=by_nccl)

    def _apply_measured(self, measured: dict[str, tuple[int, int]]) -> None:
        self._known |= measured
        self.captured = apply_known(self.captured, self._known)

    def _own_latency(self, step: CapturedStep) -> tuple[int, ...]:
        pairs = zip(step.graph.operators, self._predicted(step), strict=True)
        return tuple(
            self._known[o.signature][0] if o.signature in self._known else prediction for o, prediction in pairs
        )

    def _latency(self, step: CapturedStep) -> tuple[int, ...]:
        own_ns = self._own_latency(step)
        if self._share is None or self._network is None:
            return own_ns
        return latencies_on_network(step, own_ns, self._share, self._network, self._known)

    def _predicted(self, step: CapturedStep) -> tuple[int, ...]:
        return predict_latencies(step.graph, step.descriptions, self._speed, self._predictor)

    def _predictions(self) -> dict[str, int]:
        return {
            o.signature: prediction
            for step in self.captured
            for o, prediction in zip(step.graph.operators, self._predicted(step), strict=True)
        }

    def _descriptions(self, measured: Iterable[str]) -> dict[str, str]:
        """Return the descriptions of the measured operators, from which the predictor learns."""
        descriptions = {key: description for step in self.captured for key, description in step.descriptions.items()}
        return {key: write_description(descriptions[key]) for key in measured if key in descriptions}


def _capture(
    prepared: Prepared,
    kind: StepKind,
    batch: tuple[torch.Tensor, torch.Tensor],
    optimizer: OptimizerSettings,
    passes: Passes,
    device: str,
    place: torch.device,
    share: RankShare | None,
) -> CapturedStep:
    if kind is StepKind.TRAINING:
        step = capture_training(prepared.module, prepared.loss, *batch, optimizer, passes, share, place)
    else:
        step = capture_evaluation(prepared.module, prepared.loss, *batch, optimizer, share)
    if place.type == HOST.type:
        step = with_split_normalisations(step)
    step = with_precision(step, passes.precision, place)
    return with_host_uploads(step) if device == CPU else step


def optimizer_settings(settings: TrainingSettings) -> OptimizerSettings:
    """Return the hyper-parameters that are captured into the step. The learning rate is not one of them."""
    return OptimizerSettings(
        kind=settings.optimizer,
        momentum=settings.momentum,
        betas=settings.betas,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        decays_all=settings.weight_decay_of == "all",
        nesterov=settings.nesterov,
        centered=settings.centered,
        clip_norm=settings.clip_norm,
        average_decay=settings.average_decay,
    )


def trained_parameters_of(module: torch.nn.Module) -> int:
    """Return the number of parameters of the module that training changes."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def parameters_of(module: torch.nn.Module) -> int:
    """Return the number of trained parameters of the module."""
    return sum(parameter.numel() for parameter in module.parameters())
