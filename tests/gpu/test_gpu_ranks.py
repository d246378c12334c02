"""Two ranks of one training that exchange by NCCL, each on a GPU of its own.

They need two GPUs and a torch with NCCL. By hand, where the package is built:

    python -m pytest -s -ra --confcutdir=tests/gpu tests/gpu/test_gpu_ranks.py

On the driver's double both ranks are on one device, torch computes on the host, and Gloo takes the place of NCCL.
"""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.device.cuda import CudaBroker, NoGpu, probe
from indb_tensile.device.ledger import Ledger
from tests.gpu.conftest import REGION_BYTES, Bench, answer, report
from tests.gpu.place import ON_DOUBLE

pytestmark = pytest.mark.gpu

RANKS = 2
REGIONS = 8 if ON_DOUBLE else 48  # of 64 MiB
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def ordinals() -> list[int]:
    """Return the number of each rank's GPU."""
    gpus = probe()
    if isinstance(gpus, NoGpu):
        pytest.skip(f"no GPU: {gpus.reason}")
    if ON_DOUBLE:
        return [gpus.devices[0].ordinal] * RANKS
    from tests.executor.ranks.group_kinds import missing_for_nccl

    if missing := missing_for_nccl(RANKS):
        pytest.skip(missing)
    return [gpu.ordinal for gpu in gpus.devices[:RANKS]]


def start(stack: ExitStack, role: str, ordinal: int, directory: Path, **settings: object) -> subprocess.Popen[str]:
    """Start one rank, with regions of its own."""
    ledger = Ledger.create(REGIONS * REGION_BYTES, REGION_BYTES, 1 << 33, 1 << 33, None)
    bench = Bench(ledger, CudaBroker(ordinal, REGION_BYTES, REGIONS), REGION_BYTES)
    return stack.enter_context(
        bench.trainer(
            role,
            REGIONS,
            "rank_process",
            ordinal=ordinal,
            directory=str(directory),
            grant_bytes=REGIONS * REGION_BYTES,
            region_bytes=REGION_BYTES,
            timeout_s=TIMEOUT_S,
            **settings,
        )
    )


def trained(ordinals: list[int], directory: Path, reduce: str) -> list[dict[str, Any]]:
    """Train all ranks and return their figures."""
    with ExitStack() as stack:
        ranks = [
            start(stack, "train", ordinal, directory, rank=rank, reduce=reduce)
            for rank, ordinal in enumerate(ordinals)
        ]
        return [answer(rank) for rank in ranks]


def test_ranks_by_nccl_end_with_the_bits_of_one_gpu(ordinals: list[int], tmp_path: Path) -> None:
    with ExitStack() as stack:
        alone = answer(start(stack, "alone", ordinals[0], tmp_path))
    ranks = trained(ordinals, tmp_path, "exact")
    figures = [{key: value for key, value in row.items() if key != "bits"} for row in (alone, *ranks)]
    report("two ranks by NCCL, exact sum", alone=figures[0], ranks=figures[1:])
    assert [rank["bits"] for rank in ranks] == [alone["bits"]] * RANKS
    if not ON_DOUBLE:
        assert all(rank["taken_bytes"] > 0 for rank in ranks)


def test_ranks_by_nccl_end_with_equal_bits_if_the_library_adds(ordinals: list[int], tmp_path: Path) -> None:
    ranks = trained(ordinals, tmp_path, "fast")
    report("two ranks by NCCL, fast sum", ranks=[rank["step_ms"] for rank in ranks])
    assert ranks[0]["bits"] == ranks[1]["bits"]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "silent"])
def test_ranks_by_nccl_notice_that_one_is_lost(ordinals: list[int], tmp_path: Path, blow: signal.Signals) -> None:
    with ExitStack() as stack:
        first, second = [
            start(stack, "train_on", ordinal, tmp_path, rank=rank) for rank, ordinal in enumerate(ordinals)
        ]
        assert answer(first) == answer(second) == {"trains": True}
        second.send_signal(blow)
        figures = answer(first)
    report(f"rank that is lost by {blow.name}", **figures)
    assert figures["message"] == "rank 0 of 2 has lost another rank"
