"""Translate the messages of trainers into facts for decide()."""

from indb_tensile.errors import InvariantError
from indb_tensile.messages import (
    Adopted,
    Calibrated,
    Captured,
    Corrected,
    Failed,
    Finished,
    LeftDevice,
    LeftPhases,
    Lent,
    Measured,
    Message,
    Misplaced,
    Parked,
    Progressed,
    Ready,
)
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BatchLoan,
    Calibration,
    Capture,
    Correction,
    Departure,
    Event,
    Failure,
    Finish,
    Measurement,
    Misplacement,
    Parking,
    RoundLeft,
    SpareReady,
    StepsLeft,
)
from indb_tensile.scheduler.admission.pool import Fault, TrainerId


def fact(trainer: TrainerId, message: Message) -> Event | None:  # noqa: C901 - a table: one line per message
    """Return the fact that the message states; None for progress before the first training step.

    Raises InvariantError for a message that only a controller sends.
    """
    match message:
        case Ready():
            return SpareReady(trainer=trainer)
        case Captured():
            return Capture(
                trainer=trainer,
                graphs=message.graphs,
                latency_ns=message.latency_ns,
                unknown=message.unknown,
                steps=message.steps,
                alternates=message.alternates,
                copy_loss=message.copy_loss,
            )
        case Calibrated():
            return Calibration(
                trainer=trainer,
                graphs=message.graphs,
                latency_ns=message.latency_ns,
                overflow_bytes=message.overflow_bytes,
                copy_loss=message.copy_loss,
            )
        case Corrected(number=number, graphs=graphs, outgrown=outgrown):
            return Correction(trainer=trainer, number=number, graphs=graphs, outgrown=outgrown)
        case Misplaced(generation=generation, block_bytes=block_bytes):
            return Misplacement(trainer=trainer, generation=generation, block_bytes=block_bytes)
        case Adopted(generation=generation):
            return Adoption(trainer=trainer, generation=generation)
        case Parked():
            return Parking(trainer=trainer, number=message.number, host_bytes=message.host_bytes)
        case Lent(number=number, size_bytes=size_bytes):
            return BatchLoan(trainer=trainer, number=number, size_bytes=size_bytes)
        case LeftPhases(number=number):
            return RoundLeft(trainer=trainer, number=number)
        case Measured():
            return Measurement(
                trainer=trainer,
                generation=message.generation,
                latency_ns=message.latency_ns,
                iteration_ns=message.iteration_ns,
                stall_ns=message.stall_ns,
                peak_bytes=message.peak_bytes,
                graph_share=message.graph_share,
                step_ns=max(0, message.step_ns),
                last=message.last,
            )
        case LeftDevice(steps_left=steps_left):
            return Departure(trainer=trainer, steps_left=steps_left)
        case Finished(closing_s=closing_s):
            return Finish(trainer=trainer, closing_ns=_duration_ns(closing_s))
        case Failed():
            return _failure(trainer, message)
        case Progressed(steps_left=steps_left, startup_s=startup_s):
            if steps_left is None:
                return None
            return StepsLeft(trainer=trainer, steps_left=steps_left, startup_ns=_duration_ns(startup_s))
        case _:
            raise InvariantError(f"trainer {trainer} sent a controller's message: {type(message).__name__}")


def _failure(trainer: TrainerId, message: Failed) -> Failure:
    return Failure(
        trainer=trainer,
        fault=Fault(sqlstate=message.sqlstate, message=message.message, detail=message.detail, hint=message.hint),
        retry=message.retry,
        lost=message.lost,
        blame=message.blame,
        needs_bytes=message.needs_bytes,
    )


def _duration_ns(duration_s: float | None) -> int | None:
    """Return the duration in nanoseconds; None if a trainer's message has none, or one without meaning."""
    return round(duration_s * 1e9) if duration_s is not None and 0 <= duration_s < float("inf") else None
