"""The roles of a rank of the GPU suite: `python -m tests.gpu.rank_process ROLE SETTINGS`.

Each rank has a GPU of its own, in a process of its own. On the driver's double torch computes on the host, and Gloo
takes the place of NCCL.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import FileStore

from indb_tensile.device.cuda import CudaRegions
from indb_tensile.errors import RankLostError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.ranks.nccl_connection import connect_by_nccl
from indb_tensile.executor.ranks.nccl_ranks import leaving
from indb_tensile.executor.ranks.rank_connection import LOOPBACK, join_ranks
from indb_tensile.executor.ranks.rank_gpu import TorchGpu
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging, measuring
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on, open_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.executor.ranks.group_kinds import over_gloo
from tests.gpu.place import ON_DOUBLE, synchronise
from tests.gpu.steps import RATE, ROWS, batch, network
from tests.gpu.trainer_process import HOST_POOL_BYTES, write_figures

PARTS, ITERATIONS, WARM = 4, 6, 2
MEETING_S = 120.0
SETTINGS = OptimizerSettings(kind="adam", clip_norm=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training of one rank, or of one GPU alone."""

    opened: OpenDevice
    state: State
    runner: Runner

    def iterate(self) -> None:
        """Train on the batch once."""
        self.runner.train(*batch(), RATE)

    def bits(self) -> dict[str, int]:
        """Return a digest of each value of the state."""
        return {name: _digest(value) for name, value in sorted(self.state.export().items())}


def alone(settings: dict[str, Any]) -> None:
    """Train on one GPU, part by part. Report the bits and the pace."""
    with _training(settings, None) as training:
        write_figures(**_paced(training), bits=training.bits())


def train(settings: dict[str, Any]) -> None:
    """Train as one of two ranks. Report the bits, the pace, and the memory that the connection takes."""
    share = RankShare(rank=settings["rank"], ranks=2, reduce=Reduce(settings["reduce"]))
    with _training(settings, share) as training, _connected(settings, share, training) as (group, taken_bytes):
        with exchanging(group):
            figures = _paced(training)
        write_figures(**figures, bits=training.bits(), taken_bytes=taken_bytes)


def train_on(settings: dict[str, Any]) -> None:
    """Train as one of two ranks until the other one is lost. Report how that was noticed, and after which time."""
    share = RankShare(rank=settings["rank"], ranks=2)
    with _training(settings, share) as training, ExitStack() as stack:
        group, _ = stack.enter_context(_connected(settings, share, training))
        stack.enter_context(exchanging(group))
        training.iterate()
        write_figures(trains=True)
        last_s = time.monotonic()
        try:
            while True:
                training.iterate()
                last_s = time.monotonic()
        except RankLostError as error:
            stack.pop_all()  # the rest ends with this process
            write_figures(message=error.message, detail=error.detail, after_s=time.monotonic() - last_s)
    sys.stdin.readline()


@contextmanager
def _training(settings: dict[str, Any], share: RankShare | None) -> Iterator[Training]:
    claim = (settings["ledger"], settings["slot"], settings["epoch"])
    ordinal = settings["ordinal"]
    place = torch.device("cpu") if ON_DOUBLE else torch.device("cuda", ordinal)
    regions = CudaRegions(ordinal, settings["socket"])
    torch.manual_seed(3)
    module, (x, y), passes = network(), batch(), Passes(micro_batch_size=ROWS // PARTS)
    with open_device(f"cuda:{ordinal}", claim, HOST_POOL_BYTES, regions, place) as opened, ExitStack() as stack:
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, SETTINGS, passes, share),)
        if share is not None:
            stack.enter_context(measuring(share.ranks, on_device=True))
        calibrated = calibrate(captured, unknown_signatures(captured, {}), {}, settings["grant_bytes"])
        assert not calibrated.overflow_bytes, "the grant is too small"
        stack.close()
        state = State.create(module, SETTINGS, place, share)
        placer = Placer(opened.serving, region_bytes=settings["region_bytes"])
        runner = Runner(opened.device, state, calibrated.steps, placer=placer)
        runner.adopt((LIVENESS,), 1)
        yield Training(opened=opened, state=state, runner=runner)


@contextmanager
def _connected(
    settings: dict[str, Any], share: RankShare, training: Training
) -> Iterator[tuple[RankGroup, int | None]]:
    store = FileStore(str(Path(settings["directory"]) / "store"), share.ranks)
    timeout_s = settings["timeout_s"]
    group = join_ranks(store, share, attempt="1", meeting_s=MEETING_S, timeout_s=timeout_s)
    connected: RankGroup
    taken_bytes: int | None = None
    if ON_DOUBLE:
        connected = over_gloo(group, timeout_s)
    else:
        connected, taken_bytes = connect_by_nccl(
            group,
            store,
            share,
            TorchGpu(training.opened.torch_device),
            attempt="1",
            meeting_s=MEETING_S,
            timeout_s=timeout_s,
            address=LOOPBACK,
        )
    with leaving(connected):
        yield connected, taken_bytes


def _paced(training: Training) -> dict[str, float]:
    """Train for a fixed number of iterations, and return the time of one after the first ones."""
    for _ in range(WARM):
        training.iterate()
    synchronise()
    start_s = time.perf_counter()
    for _ in range(ITERATIONS - WARM):
        training.iterate()
    synchronise()
    return {"step_ms": (time.perf_counter() - start_s) * 1000 / (ITERATIONS - WARM)}


def _digest(value: torch.Tensor) -> int:
    if not value.numel():
        return 0
    part = value.cpu().contiguous().flatten().view(torch.uint8).to(torch.int64)
    return int((part * torch.arange(1, part.numel() + 1)).sum())


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in (alone, train, train_on)}

if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the test has ended
        ROLES[sys.argv[1]](json.loads(sys.argv[2]))
