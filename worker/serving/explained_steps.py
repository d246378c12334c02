"""The steps of a training that is explained before it is queued: their graphs and the times of their operators."""

import torch

from indb_tensile.device import hardware
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce, divide_parts
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.latency.latency_predictor import Predictor, predict_latencies
from indb_tensile.executor.ranks.exchange_traffic import copy_loss_of, latencies_on_network
from indb_tensile.executor.run.precision import with_precision
from indb_tensile.executor.run.state import HOST
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.workload import Workload

from ..captured_steps import optimizer_settings
from .training_outline import TrainingOutline

UNQUEUED = JobId(0)  # the job has no id yet

# Latency in ns and workspace in bytes of known operators, by signature.
Known = dict[str, tuple[int, int]]


def rank_share(training: TrainingOutline, devices: int) -> RankShare | None:
    """Return the share of rank 0 if several devices train. Raises RequestError if a batch has too few parts for them.

    If the request leaves the division of the optimizer's state to rank 0, each device keeps the whole state here.
    """
    if devices == 1:
        return None
    settings = training.settings
    divide_parts(len(_passes(training).parts(training.batches[0])), devices)
    return RankShare(rank=0, ranks=devices, reduce=Reduce(settings.reduce), divides_state=settings.zero_stage == 1)


def _passes(training: TrainingOutline) -> Passes:
    return Passes(micro_batch_size=training.settings.micro_batch_size, precision=training.settings.precision)


def capture_steps(
    training: TrainingOutline, share: RankShare | None, place: torch.device
) -> tuple[CapturedStep, ...]:
    """Capture the graphs of the job in its order (worker/captured_steps.py), as a trainer does on this place.

    These are each size of training step, that of each shorter length, and the validation passes of all lengths.
    With a `share`, training steps are those of one of several devices.
    """
    module, loss, optimizer = training.module, training.loss, optimizer_settings(training.settings)
    passes = _passes(training)
    missing = () if training.texts is None else training.texts.missing
    shorter = [training.batch(training.batches[0], own) for own in missing]
    trained = [*map(training.batch, training.batches), *shorter]
    validated = [*shorter, training.batch(training.batches[0])]
    captured = (
        *(capture_training(module, loss, *batch, optimizer, passes, share, place) for batch in trained),
        *(capture_evaluation(module, loss, *batch, optimizer, share) for batch in validated),
    )
    if place.type == HOST.type:
        captured = (*map(with_split_normalisations, captured),)
    return tuple(with_precision(step, passes.precision, place) for step in captured)


def steps_by_length(training: TrainingOutline) -> list[int]:
    """Return the places of the steps of full batches among the graphs, from the shortest texts to the longest."""
    first = len(training.batches)
    missing = () if training.texts is None else training.texts.missing
    return [*range(first, first + len(missing)), 0]


def _graphs(steps: tuple[CapturedStep, ...], measured: Known) -> tuple[StepGraph, ...]:
    workspace = {signature: workspace_bytes for signature, (_, workspace_bytes) in measured.items()}
    return tuple(step.with_measured(workspace).graph for step in steps)


def own_latencies(
    steps: tuple[CapturedStep, ...], measured: Known, predictor: Predictor | None
) -> tuple[tuple[int, ...], ...]:
    """Return the best known latencies of all steps, without other devices."""
    return tuple(
        _latencies(graph, predict_latencies(graph, step.descriptions, hardware.PROCESSOR_SPEED, predictor), measured)
        for graph, step in zip(_graphs(steps, measured), steps, strict=True)
    )


def explained_workload(
    steps: tuple[CapturedStep, ...],
    latency_ns: tuple[tuple[int, ...], ...],
    measured: Known,
    share: RankShare | None,
    gang: GangNetwork | None,
) -> Workload:
    """Return the steps to plan for, with their latencies in ns: with a `share` those beside other devices, if the
    network `gang` between them is known.
    """
    if share is not None and gang is not None:
        latency_ns = tuple(
            latencies_on_network(step, own_ns, share, gang, measured)
            for step, own_ns in zip(steps, latency_ns, strict=True)
        )
    copy_loss = copy_loss_of(steps, gang, measured)
    return Workload(job=UNQUEUED, graphs=_graphs(steps, measured), latency_ns=latency_ns, copy_loss=copy_loss)


def _latencies(graph: StepGraph, estimates: tuple[int, ...], measured: Known) -> tuple[int, ...]:
    pairs = zip(graph.operators, estimates, strict=True)
    return tuple(measured.get(operator.signature, (estimate, 0))[0] for operator, estimate in pairs)


def coverage_text(steps: tuple[CapturedStep, ...], measured: Known, predictor: Predictor | None) -> str:
    """Return in words how many kinds of operator have been measured."""
    signatures = step_signatures(steps)
    known = len(signatures & measured.keys())
    if known == len(signatures):
        return "operator times as measured on this kind of device"
    others = "estimated" if predictor is None else "predicted"
    return f"{known} of {len(signatures)} kinds of operator measured on this kind of device, the others {others}"


def step_signatures(steps: tuple[CapturedStep, ...]) -> frozenset[str]:
    """Return the signatures of all operators of the steps."""
    return frozenset().union(*(step.signatures for step in steps))
