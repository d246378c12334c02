"""One rank of a training in a process of its own: python -m tests.executor.ranks.rank_process DIRECTORY RANK RANKS.

It trains a network with dropout, under a plan of its own. It prints a digest of all losses, outputs and values of the
state, or the sentence of an error. Further arguments are the number of epochs, the seconds after which a rank that
does not answer is lost, and the kind of network. When it begins to train, it makes a file `RANK.trains` in the
directory.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch._C._distributed_c10d import FileStore

from indb_tensile.errors import TensileError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import capture_evaluation, capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.ranks.rank_connection import join_ranks
from indb_tensile.executor.ranks.step_exchange import exchanging, measuring
from indb_tensile.executor.run.runner import Runner
from tests.device.memory_device import MemoryDevice
from tests.executor.driving import bits, drive, state_bits
from tests.executor.models import Job, make_job
from tests.executor.plans import random_plans

SETTINGS = OptimizerSettings(clip_norm=0.1)
GRANT_BYTES = 1 << 30


def training(kind: str) -> Job:
    """Return the job that all ranks train, with a network of this kind.

    Full batches have three parts, and the last one has one part.
    """
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    return make_job(kind, 0, SETTINGS, passes=Passes(micro_batch_size=3))


def digest(seen: list[bytes], state: dict[str, bytes]) -> str:
    """Return a digest of every bit that a training has made."""
    return hashlib.sha256(b"".join([*seen, *state.values()])).hexdigest()


def train(directory: Path, share: RankShare, epochs: int, timeout_s: float, kind: str) -> str:
    """Train as one rank and return the digest. Raises RankLostError."""
    job = training(kind)
    full, tail = job.batches[0], job.batches[-1]
    steps = (
        capture_training(job.module, job.loss, *full, job.settings, job.passes, share),
        capture_training(job.module, job.loss, *tail, job.settings, job.passes, share),
        capture_evaluation(job.module, job.loss, *job.held_out, job.settings),
    )
    with measuring(share.ranks):
        calibrated = calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES).steps
    state = job.state()
    runner = Runner(MemoryDevice(), state, calibrated)
    store = FileStore(str(directory / "store"), share.ranks)
    group = join_ranks(store, share, attempt="1", meeting_s=300.0, timeout_s=timeout_s)  # others may still capture
    with exchanging(group):
        runner.adopt(random_plans(calibrated, share.rank), 1)
        (directory / f"{share.rank}.trains").touch()
        return digest(bits(drive(runner, job, epochs)), state_bits(state.export()))


if __name__ == "__main__":
    place, own, ranks, epochs, timeout_s, network = sys.argv[1:]
    try:
        share = RankShare(rank=int(own), ranks=int(ranks))
        print(train(Path(place), share, int(epochs), float(timeout_s), network))  # noqa: T201
    except TensileError as error:
        print(error.message, flush=True)  # noqa: T201
        sys.exit(error.exit_code)
