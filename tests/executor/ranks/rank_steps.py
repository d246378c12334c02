"""The captured steps of one rank of a test's training, and what its exchanges need."""

from collections.abc import Sequence

import torch

from indb_tensile.executor.capture.exchange_operator import finish_sum_parts_, start_sum_parts_
from indb_tensile.executor.capture.exchange_room import ExchangeRoom, parts_elements
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.ranks.step_exchange import measuring
from tests.executor.conftest import GRANT_BYTES
from tests.executor.models import Job


def steps_of(job: Job, share: RankShare) -> tuple[CapturedStep, ...]:
    """Capture and calibrate the steps of a rank."""
    full, tail = job.batches[0], job.batches[-1]
    steps = (
        capture_training(job.module, job.loss, *full, job.settings, job.passes, share),
        capture_training(job.module, job.loss, *tail, job.settings, job.passes, share),
        capture_evaluation(job.module, job.loss, *job.held_out, job.settings, share),
    )
    with measuring(share.ranks):
        return calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES).steps


def room_of(total: torch.Tensor, own: int, parts: Sequence[range]) -> ExchangeRoom:
    """Return the room for the sum of one value over these parts of each rank, of which this one has `own`."""
    elements = parts_elements([total.numel()], [len(numbers) for numbers in parts], own)
    memory = torch.empty(elements * total.dtype.itemsize, dtype=torch.uint8, device=total.device)
    return ExchangeRoom(memory, total.dtype)


def sum_parts(value: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Exchange the value of this rank, which has one part, by the operators of a step, and return the sum."""
    total = value.clone()
    elements = parts_elements([total.numel()], counts, 1)
    room = torch.empty(elements * total.dtype.itemsize, dtype=torch.uint8, device=total.device)
    start_sum_parts_([total], [], room, counts=counts, own=1)
    finish_sum_parts_([total], [], room, counts=counts, own=1)
    return total
