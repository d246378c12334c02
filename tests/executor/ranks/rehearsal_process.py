"""One rank that rehearses, in a process of its own.

    python -m tests.executor.ranks.rehearsal_process DIRECTORY RANK RANKS SECONDS

It rehearses the exchanges of a step again and again, until another rank is gone or has not answered for so long, and
prints the sentence of that error. After the first rehearsal it makes a file `RANK.rehearses` in the directory.
"""

import sys
from pathlib import Path

from torch._C._distributed_c10d import FileStore

from indb_tensile.errors import TensileError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.exchange_rehearsal import rehearsed_network
from indb_tensile.executor.ranks.rank_connection import join_ranks
from tests.executor.ranks.rank_process import training
from tests.scheduler.timing.networks import network_of

_OPERATOR_NS = 20_000


def rehearse_on(directory: Path, share: RankShare, timeout_s: float) -> None:
    """Rehearse as one rank. Raises RankLostError."""
    job = training("mlp")
    step = capture_training(job.module, job.loss, *job.batches[0], job.settings, job.passes, share)
    store = FileStore(str(directory / "store"), share.ranks)
    group = join_ranks(store, share, attempt="1", meeting_s=300.0, timeout_s=timeout_s)
    network = network_of(share.ranks)
    while True:
        network = rehearsed_network(group, step, (_OPERATOR_NS,) * len(step.graph.operators), share, network)
        (directory / f"{share.rank}.rehearses").touch()


if __name__ == "__main__":
    place, own, ranks, limit_s = sys.argv[1:]
    try:
        rehearse_on(Path(place), RankShare(rank=int(own), ranks=int(ranks)), float(limit_s))
    except TensileError as error:
        print(error.message, flush=True)  # noqa: T201
        sys.exit(error.exit_code)
