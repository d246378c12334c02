"""Rounds on a GPU: how fast two processes hand regions over, and two jobs whose memory is too small for both.

On the driver's double torch computes on the host (TENSILE_GPU_PLACE), which tests this code and measures nothing.
"""

import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from indb_tensile._native import Passages
from indb_tensile.device.cuda import CudaBroker, Gpu
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.round_member import Seat
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, plan_jobs
from indb_tensile.scheduler.round_plans import plan_round
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload
from tests.gpu.conftest import Bench, answer, report, resume
from tests.gpu.place import ON_DOUBLE, PLACE
from tests.gpu.round_process import CHANNELS, NUMBER

pytestmark = pytest.mark.gpu

NETWORK = {"rows": 16, "channels": 16} if ON_DOUBLE else {"rows": 64, "channels": CHANNELS}
REGION_BYTES = (1 << 18) if ON_DOUBLE else (16 << 20)
LEAST_SHARE = 0.3  # of what the jobs need side by side; the first budget from here on for which there is a round


def test_two_processes_hand_the_regions_of_a_round_over(gpu: Gpu) -> None:
    ledger = Ledger.create(4 * REGION_BYTES, REGION_BYTES, 1 << 33, 1 << 33, None)
    bench = Bench(ledger, CudaBroker(gpu.ordinal, REGION_BYTES, 4), REGION_BYTES)
    passages = Passages(ledger.fd)
    with ExitStack() as stack:
        members = [
            stack.enter_context(bench.trainer("handover", 1, "round_process", **_settings(number)))
            for number in (0, 1)
        ]
        ledger.set_pool(2 * REGION_BYTES)
        for member in members:
            assert answer(member)["ready"]
        for member in members:
            resume(member)
        figures = [answer(member) for member in members]
        passages.end(NUMBER)
        for member in members:
            resume(member)
    report("handover of a round's regions", region_bytes=REGION_BYTES, members=figures)
    assert ledger.device_usage().capacity_bytes == 4 * REGION_BYTES


def test_two_jobs_share_memory_in_a_round_with_the_bits_of_each_alone(gpu: Gpu, tmp_path: Path) -> None:
    count = 512 if ON_DOUBLE else 64
    ledger = Ledger.create(count * REGION_BYTES, REGION_BYTES, 1 << 33, 1 << 33, None)
    bench = Bench(ledger, CudaBroker(gpu.ordinal, REGION_BYTES, count), REGION_BYTES)
    with ExitStack() as stack:
        members, alone = [], []
        for number in (0, 1):
            member = stack.enter_context(
                bench.trainer(
                    "train",
                    count - number,
                    "round_process",
                    grant_bytes=(count - number) * REGION_BYTES,
                    workload=str(tmp_path / f"workload {number}"),
                    plan=str(tmp_path / f"plan {number}"),
                    **_settings(number),
                    **NETWORK,
                )
            )
            alone.append(answer(member))
            members.append(member)
            ledger.grant(_slot(number), REGION_BYTES)  # the next job then has the memory
        plans, budget_bytes, blocks_bytes = _round(tmp_path)
        seats = _seat(ledger, plans, budget_bytes)
        for number, (member, plan) in enumerate(zip(members, plans, strict=True)):
            (tmp_path / f"plan {number}").write_bytes(pickle.dumps((plan.plans, seats[number])))
            resume(member)
        together = [answer(member) for member in members]
        usage = ledger.device_usage()
        Passages(ledger.fd).end(NUMBER)
        for member in members:
            resume(member)
    report(
        "two jobs in a round",
        region_bytes=REGION_BYTES,
        budget_bytes=budget_bytes,
        blocks_bytes=blocks_bytes,
        foretold_ms=[plan.forecast.iteration_ns / 1e6 for plan in plans],
        alone=alone,
        together=together,
        share_of_alone=[a["step_ms"] / t["step_ms"] for a, t in zip(alone, together, strict=True)],
    )
    assert [figures["bits"] for figures in together] == [figures["bits"] for figures in alone]
    assert usage.granted_bytes == budget_bytes < blocks_bytes
    assert all(figures["unplanned"] == 0 for figures in together)


def _settings(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "slots": [_slot(0), _slot(1)],
        "region_bytes": REGION_BYTES,
        "place": PLACE,
        **({"host_pool_bytes": 1 << 26} if ON_DOUBLE else {}),
    }


def _slot(number: int) -> Any:
    """Return the slot of the first or the second process: a new ledger hands them out in order."""
    return number


def _round(directory: Path) -> tuple[tuple[JobPlan, ...], int, int]:
    """Return the plans of a round under the smallest budget that has one, and the bytes of both jobs side by side."""
    read = [pickle.loads((directory / f"workload {number}").read_bytes()) for number in (0, 1)]
    workloads: tuple[Workload, ...] = tuple(workload for workload, _ in read)
    link: Link = read[0][1]
    present = plan_jobs(workloads, budget_bytes=1 << 50, link=link)
    assert not isinstance(present, Infeasible)
    needed_bytes = sum(plan.peak_bytes for plan in present)
    for share in range(int(20 * LEAST_SHARE), 20):
        budget_bytes = needed_bytes * share // 20 // REGION_BYTES * REGION_BYTES
        plans = plan_round(
            workloads,
            tuple(plan.plans for plan in present),
            budget_bytes=budget_bytes,
            region_bytes=REGION_BYTES,
            link=link,
            compute=Compute.TURNS,
            least_gain=0,
        )
        if plans is not None:
            return plans, budget_bytes, needed_bytes
    raise AssertionError(f"there is no round in less than {needed_bytes} bytes")


def _seat(ledger: Ledger, plans: tuple[JobPlan, ...], budget_bytes: int) -> list[Seat]:
    """Grant each job its base, give the round the rest of the budget, and return the jobs' seats."""
    assert [plan.job for plan in plans] == [JobId(1), JobId(2)]
    parts = [plan.part for plan in plans if plan.part is not None]
    for number, part in enumerate(parts):
        ledger.grant(_slot(number), part.base_bytes)
    pool_bytes = budget_bytes - sum(part.base_bytes for part in parts)
    assert ledger.set_pool(pool_bytes) == pool_bytes
    return [Seat(number=NUMBER, part=part, slots=(_slot(0), _slot(1))) for part in parts]
