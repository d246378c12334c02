"""The captured steps of one job, and what is known about their operators on this kind of device."""

from collections.abc import Iterable

import torch

from indb_tensile.catalog import plans, predictors
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.plans import OpMeasurement
from indb_tensile.executor.backend import CPU, EMULATED, kind_of, speed_of
from indb_tensile.executor.calibrate import apply_known, calibrate, unknown_signatures
from indb_tensile.executor.capture import CapturedStep, capture_evaluation, capture_training, loaded_by_host
from indb_tensile.executor.optimizer import OptimizerSettings
from indb_tensile.executor.passes import Passes
from indb_tensile.executor.precision import keyed
from indb_tensile.executor.predictor import Predictor, foretell, usable
from indb_tensile.executor.state import HOST
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.training import Prepared, batch_plan
from indb_tensile.scheduler.features import write_description
from indb_tensile.scheduler.graph import StepGraph


class Steps:
    """The training step, the last smaller batch where there is one, and the validation pass, in this order."""

    def __init__(
        self, captured: tuple[CapturedStep, ...], evaluation_rows: int, device: str = EMULATED, threads: int = 1
    ) -> None:
        self.captured = captured
        self.kind = kind_of(device, threads)
        self._speed = speed_of(device)
        self.evaluation_rows = evaluation_rows
        self._known: dict[str, tuple[int, int]] = {}
        self._predictor: Predictor | None = None

    @classmethod
    def capture(
        cls,
        prepared: Prepared,
        device: str = EMULATED,
        threads: int = 1,
        place: torch.device = HOST,
    ) -> "Steps":
        """Every graph that the job's epochs run, on the device of that name (executor/backend.py).

        `place` is where torch computes them.
        """
        settings = optimizer_settings(prepared.settings)
        plan = batch_plan(prepared.train.rows, prepared.settings)
        module, loss, part = prepared.module, prepared.loss, prepared.train
        sizes = (plan.full_rows, plan.tail_rows) if plan.tail_rows else (plan.full_rows,)
        passes = Passes(micro_batch_size=prepared.settings.micro_batch_size, precision=prepared.settings.precision)
        trained = [capture_training(module, loss, part.x[:rows], part.y[:rows], settings, passes) for rows in sizes]
        rows = plan.full_rows
        evaluated = capture_evaluation(module, loss, part.x[:rows], part.y[:rows], settings)
        captured = tuple(keyed(step, passes.precision, place) for step in (*trained, evaluated))
        if device == CPU:
            captured = tuple(map(loaded_by_host, captured))
        return cls(captured, rows, device, threads)

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        """The step graphs, in order."""
        return tuple(step.graph for step in self.captured)

    @property
    def latency_ns(self) -> tuple[tuple[int, ...], ...]:
        """The best that is known for each operator: measured on this kind of device, else foretold."""
        return tuple(self._latency(step) for step in self.captured)

    @property
    def unknown(self) -> frozenset[str]:
        """What has never been measured on this kind of device."""
        return unknown_signatures(self.captured, self._known)

    def look_up(self, session: Session) -> None:
        """Ask the catalog what earlier jobs learned about these operators."""
        found = session.run(lambda c: plans.known_latencies(c, self.kind, self.unknown))
        self._learn(found)
        stored = session.run(lambda c: predictors.load_predictor(c, self.kind)) if self.unknown else None
        self._predictor = None if stored is None else usable(stored.model)

    def calibrate(self, session: Session, grant_bytes: int) -> int:
        """Run the unknown operators once and remember what they took; the bytes by which the grant was too small."""
        predicted = self._predictions()
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
        self._learn(outcome.measured)
        return 0

    def _learn(self, found: dict[str, tuple[int, int]]) -> None:
        self._known |= found
        self.captured = apply_known(self.captured, self._known)

    def _latency(self, step: CapturedStep) -> tuple[int, ...]:
        pairs = zip(step.graph.operators, self._foretold(step), strict=True)
        return tuple(self._known[o.signature][0] if o.signature in self._known else guess for o, guess in pairs)

    def _foretold(self, step: CapturedStep) -> tuple[int, ...]:
        return foretell(step.graph, step.descriptions, self._speed, self._predictor)

    def _predictions(self) -> dict[str, int]:
        return {
            o.signature: guess
            for step in self.captured
            for o, guess in zip(step.graph.operators, self._foretold(step), strict=True)
        }

    def _descriptions(self, measured: Iterable[str]) -> dict[str, str]:
        """What the measured operators are, for the predictor to learn from."""
        known = {key: one for step in self.captured for key, one in step.descriptions.items()}
        return {key: write_description(known[key]) for key in measured if key in known}


def optimizer_settings(settings: TrainingSettings) -> OptimizerSettings:
    """The part of the hyper-parameters that is captured into the step; the learning rate is not."""
    return OptimizerSettings(
        kind=settings.optimizer,
        momentum=settings.momentum,
        betas=settings.betas,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
        centered=settings.centered,
        clip_norm=settings.clip_norm,
        average_decay=settings.average_decay,
    )


def parameters_of(module: torch.nn.Module) -> int:
    """How many trained numbers the module has."""
    return sum(parameter.numel() for parameter in module.parameters())
