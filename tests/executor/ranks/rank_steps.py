"""The captured steps of one rank of a test's training."""

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
