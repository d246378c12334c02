"""Check the figures that the service reports for a training before it is enqueued."""

import re
import resource
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.config import GIB, MIB, Settings
from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.errors import RequestError
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator, Predictor, train
from indb_tensile.job import JobId, JobSpec, Relation, Task
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.completion.contention import of_cores
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.set_forecasts import SharedDevice
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.sizes import size
from tests.learning.tables import spec, table
from tests.scheduler.descriptions import elementwise
from worker.captured_steps import CapturedSteps
from worker.serving.explain import Explainer, upload_text
from worker.serving.requests import ColumnSummary, Explain

SPEC = JobSpec(
    model="m",
    relation=Relation(oid=1, schema="public", name="t"),
    target="label",
    task=Task.CLASSIFICATION,
    architecture={"type": "mlp", "hidden": [1024, 1024]},
    hyperparams={"batch_size": 2048},
)
SMALL = {"type": "mlp", "hidden": [32]}
LINK = Link(out_bytes_per_s=400_000_000, in_bytes_per_s=400_000_000)
COLUMNS = [
    ColumnSummary(name="pixels", kind="array", ndims=1, shape=(64,)),
    ColumnSummary(name="label", kind="integer", distinct=10),
]


class FakeCatalog:
    """A catalog with the same measured latency for every operator, or without measurements."""

    def __init__(self, latency_ns: int | None = None) -> None:
        self.latency_ns = latency_ns
        self.signatures: frozenset[str] = frozenset()

    def measured(self, signatures: Iterable[str]) -> dict[str, tuple[int, int]]:
        self.signatures = frozenset(signatures)
        return {} if self.latency_ns is None else dict.fromkeys(self.signatures, (self.latency_ns, 0))


def explain(
    spec: JobSpec = SPEC,
    *,
    catalog: FakeCatalog | None = None,
    limit_bytes: int | None = None,
    budget_bytes: int | None = GIB,
    rows: int = 20_000,
    predictor: Predictor | None = None,
    outlook: Outlook | None = None,
    device: str = "cpu",
    columns: list[ColumnSummary] = COLUMNS,
    gang: GangNetwork | None = None,
    connection_bytes: int = 0,
    budgets: Sequence[tuple[str, int]] = (),
) -> list[dict[str, Any]]:
    settings = Settings(
        device=device,
        capacity_bytes=GIB,
        budget_bytes=GIB,
        link_out_bytes_per_s=400_000_000,
        link_in_bytes_per_s=400_000_000,
    )
    explainer = Explainer(
        (catalog or FakeCatalog()).measured,
        lambda: predictor,
        settings,
        lambda: outlook,
        gang_network=lambda devices: gang,
        connection_bytes=lambda devices: connection_bytes,
        gang_budgets=lambda devices: budgets[:devices],
    )
    request = Explain(spec=spec, columns=columns, rows=rows, limit_bytes=limit_bytes, budget_bytes=budget_bytes)
    return explainer.explain(request)


@pytest.fixture(scope="module")
def estimated() -> list[dict[str, Any]]:
    """The rows without a measurement and with the whole budget free."""
    return explain()


@pytest.fixture(scope="module")
def measured() -> tuple[list[dict[str, Any]], FakeCatalog]:
    """The rows with a measurement of every operator, and the catalog that was asked."""
    catalog = FakeCatalog(latency_ns=7_000_000)
    return explain(catalog=catalog), catalog


@pytest.mark.nightly
def test_each_policy_has_a_row_and_planning_needs_at_most_the_memory_of_liveness(
    estimated: list[dict[str, Any]],
) -> None:
    rows = estimated
    assert [row["policy"] for row in rows] == ["vanilla", "liveness", "tensile+"]
    vanilla, liveness, tensile = (row["peak_bytes"] for row in rows)
    assert vanilla > liveness >= tensile
    assert {row["floor_bytes"] for row in rows} == {rows[0]["floor_bytes"]}
    assert rows[0]["floor_bytes"] <= tensile
    assert [rows[1][name] for name in ("overhead", "swaps", "swapped_bytes", "recomputed")] == [1.0, 0, 0, 0]
    assert [row["starts_now"] for row in rows] == [True, True, True]
    assert all(row["iteration_ms"] > 0 for row in rows)


@pytest.mark.nightly
def test_note_says_what_uploading_the_next_batch_ahead_saves_where_a_trainer_does_it(
    measured: tuple[list[dict[str, Any]], FakeCatalog],
) -> None:
    rows = explain(catalog=FakeCatalog(latency_ns=7_000_000), device="emulated")
    waits, ahead, _ = rows[-1]["note"].split("; ")
    match = re.fullmatch(r"an iteration waits (\S+) ms for its batch", waits)
    assert match is not None
    shorter = re.fullmatch(r"where the next batch is uploaded ahead it takes (\S+) ms and waits 0.00 ms", ahead)
    assert shorter is not None
    assert float(shorter[1]) == pytest.approx(rows[-1]["iteration_ms"] - float(match[1]), abs=0.02)
    assert "batch" not in rows[0]["note"]
    assert [{**row, "note": "", "planning_ms": 0} for row in rows] == [
        {**row, "note": "", "planning_ms": 0} for row in measured[0]
    ]
    assert "batch" not in measured[0][-1]["note"], "in the host's memory nothing is uploaded"


def test_plan_without_room_for_a_second_batch_is_named_as_such() -> None:
    own = Forecast(
        iteration_ns=9_000_000,
        compute_ns=7_000_000,
        stall_out_ns=0,
        stall_in_ns=0,
        upload_ns=2_000_000,
        peak_bytes=1,
        out_bytes=0,
        in_bytes=0,
    )
    waits = "an iteration waits 2.00 ms for its batch, as the plan has no room to upload the next one ahead"
    assert upload_text(own, own, own, 3 * MIB) == waits
    hidden = replace(own, iteration_ns=7_100_000, upload_ns=100_000)
    lent = "as long as 3.0 MB are free beside the plan it takes 7.10 ms and waits 0.10 ms"
    assert upload_text(own, own, hidden, 3 * MIB) == f"{waits}; {lent}"
    ahead = "an iteration waits 2.00 ms for its batch; where the next batch is uploaded ahead it takes 8.00 ms"
    half = replace(own, iteration_ns=8_000_000, upload_ns=1_000_000)
    assert upload_text(own, half, hidden, 3 * MIB) == f"{ahead} and waits 1.00 ms; {lent}"


def test_plan_swaps_and_starts_now_if_liveness_does_not_fit_the_free_memory(
    estimated: list[dict[str, Any]],
) -> None:
    liveness_bytes = estimated[1]["peak_bytes"]
    free_bytes = int(liveness_bytes * 0.85) // MIB * MIB
    _, liveness, tensile = explain(budget_bytes=free_bytes)
    assert (liveness["starts_now"], tensile["starts_now"]) == (False, True)
    assert tensile["peak_bytes"] <= free_bytes
    assert tensile["swaps"] + tensile["recomputed"] > 0
    assert (tensile["swapped_bytes"] > 0) == (tensile["swaps"] > 0)
    assert tensile["overhead"] == pytest.approx(tensile["iteration_ms"] / liveness["iteration_ms"], abs=1e-6)
    assert tensile["saved"] == pytest.approx(1 - tensile["peak_bytes"] / liveness_bytes, abs=1e-6)
    assert tensile["stall_ms"] >= 0
    assert tensile["planning_ms"] > 0
    assert "waits" in liveness["note"]


def test_training_waits_and_is_planned_for_the_whole_device_if_no_plan_fits_the_free_memory(
    estimated: list[dict[str, Any]],
) -> None:
    tensile = explain(budget_bytes=MIB)[-1]
    assert tensile["starts_now"] is False
    assert tensile["peak_bytes"] == estimated[-1]["peak_bytes"]
    assert "1.0 MB are free now" in tensile["note"]


def _outlook(busy_bytes: int) -> Outlook:
    """Return the outlook of a device of 1 GiB on which one job runs, if any, that needs this much for an hour."""
    point = TradeOff(peak_bytes=busy_bytes, iteration_ns=10**9, compute_ns=10**9)
    running = JobDemand(job=JobId(7), owner=1, priority=0, steps=3600, steps_left=3600, trade_offs=(point,))
    device = SharedDevice(budget_bytes=GIB, region_bytes=MIB, contention=of_cores(2, 1), max_slowdown=3.0)
    return Outlook(device=device, running=(running,) if busy_bytes else (), waiting=())


@pytest.mark.by_day("1048576-True")
@pytest.mark.parametrize(
    ("busy_bytes", "starts", "text"),
    [
        (0, True, "it would start at once; done after about "),
        (MIB, True, "it would start at once, and an iteration would then take job 7 1.00 times as long; done after "),
        (GIB, False, "it would wait at first, because all jobs together are then done sooner; done after about "),
    ],
)
def test_note_says_what_the_start_would_do_to_the_running_jobs(busy_bytes: int, starts: bool, text: str) -> None:
    rows = explain(outlook=_outlook(busy_bytes))
    assert rows[-1]["starts_now"] is starts
    assert rows[-1]["note"].startswith(text)
    assert text not in rows[1]["note"]


@pytest.mark.nightly
def test_limit_below_the_floor_is_reported_as_impossible() -> None:
    rows = explain(limit_bytes=MIB)
    assert [row["starts_now"] for row in rows] == [False, False, False]
    unknown = ("iteration_ms", "overhead", "saved", "stall_ms", "swaps", "swapped_bytes", "recomputed")
    assert [rows[-1][name] for name in unknown] == [None] * len(unknown)
    assert rows[-1]["peak_bytes"] == rows[-1]["floor_bytes"]
    assert "more than its memory limit of 1.0 MB" in rows[-1]["note"]


@pytest.mark.nightly
def test_start_is_unknown_if_the_free_memory_is_unknown() -> None:
    assert [row["starts_now"] for row in explain(budget_bytes=None)] == [None, None, None]


def test_measured_operators_replace_the_estimate(
    estimated: list[dict[str, Any]], measured: tuple[list[dict[str, Any]], FakeCatalog]
) -> None:
    rows, catalog = measured
    assert len(catalog.signatures) > 10
    assert rows[-1]["note"] == "operator times as measured on this kind of device"
    assert rows[1]["iteration_ms"] > 7 * len(catalog.signatures) / 2
    assert "the others estimated" in estimated[-1]["note"]


@pytest.mark.nightly
def test_trained_predictor_predicts_operators_without_a_measurement(
    estimated: list[dict[str, Any]], measured: tuple[list[dict[str, Any]], FakeCatalog]
) -> None:
    slow = train(
        [
            MeasuredOperator(description=elementwise(1 << k, name), latency_ns=1_000_000 << k)
            for k in range(20)
            for name in ("aten.relu.default", "aten.mm.default", "aten.addmm.default")
        ],
        PROCESSOR_SPEED,
    )
    rows = explain(predictor=slow)
    assert rows[-1]["note"].endswith("measured on this kind of device, the others predicted")
    assert rows[1]["iteration_ms"] > 100 * estimated[1]["iteration_ms"]
    catalog = FakeCatalog(latency_ns=7_000_000)
    assert _without_planning_time(explain(catalog=catalog, predictor=slow)) == _without_planning_time(measured[0])


def _without_planning_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the planning time, which differs from run to run."""
    return [{name: value for name, value in row.items() if name != "planning_ms"} for row in rows]


@pytest.mark.nightly
def test_training_of_many_gigabytes_is_explained_without_allocating_them() -> None:
    wide = replace(SPEC, architecture={"type": "mlp", "hidden": [20_000, 20_000, 20_000]})
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = explain(wide)
    growth_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) * 1024
    assert rows[1]["peak_bytes"] > 10 * GIB
    assert growth_bytes < GIB // 4
    assert "more than the device's budget" in rows[-1]["note"]


def arrays_prepared(hyperparams: dict[str, Any], *, rows: int) -> Prepared:
    """Return the training that `explain` foretells for this many rows with an array of 64 numbers."""
    described = [("pixels", "real[]"), ("label", "int")]
    listed = [([float(row + at) for at in range(64)], row % 10) for row in range(rows)]
    return assemble(table(described, listed), spec("label", architecture=SMALL, hyperparams=hyperparams))


@pytest.mark.parametrize(
    "hyperparams",
    [
        pytest.param({"batch_size": 64, "micro_batch_size": 16}, marks=pytest.mark.nightly),
        pytest.param({"batch_size": 64, "precision": "bfloat16"}, marks=pytest.mark.nightly),
        {"batch_size": 64, "micro_batch_size": 16, "precision": "bfloat16"},
    ],
)
def test_parts_and_precision_are_explained_as_they_are_trained(hyperparams: dict[str, Any]) -> None:
    """So foretold memory is that of the training to the byte, and its operators' times are those measured for it."""
    catalog = FakeCatalog()
    request = replace(SPEC, architecture=SMALL, hyperparams=hyperparams)
    explained = explain(request, catalog=catalog, rows=160)
    steps = CapturedSteps.capture(arrays_prepared(hyperparams, rows=160))
    workload = Workload(job=JobId(0), graphs=steps.graphs, latency_ns=steps.latency_ns)
    planned = [plan_jobs((workload,), budget_bytes=GIB, link=LINK, policy=name) for name in ("vanilla", "liveness")]
    assert [row["peak_bytes"] for row in explained[:2]] == [
        answer[0].peak_bytes for answer in planned if not isinstance(answer, Infeasible)
    ]
    assert steps.captured[0].signatures <= catalog.signatures


@pytest.mark.nightly
def test_precision_of_a_gpu_is_part_of_the_signatures_of_an_explanation() -> None:
    """Measured times of TensorFloat-32 and of float32 are told apart by them."""
    catalogs = {name: FakeCatalog() for name in ("float32", "tf32")}
    for name, catalog in catalogs.items():
        request = replace(SPEC, architecture=SMALL, hyperparams={"batch_size": 64, "precision": name})
        explain(request, catalog=catalog, rows=160, device="cuda:0")
    assert catalogs["float32"].signatures.isdisjoint(catalogs["tf32"].signatures)


def test_training_that_is_impossible_is_not_explained() -> None:
    with pytest.raises(RequestError, match="unknown architecture"):
        explain(replace(SPEC, architecture={"type": "rnn"}))


POLICIES = ("vanilla", "liveness", "tensile+")
WORDS = ["server", "query", "index", "table", "sound", "music", "player", "codec", "window", "kernel", "driver"]
WORDS += ["printer", "network", "fonts", "library"]
NOTES = [
    " ".join(WORDS[(row + at) % len(WORDS)] for at in range(30 if row % 4 == 0 else 2 + row % 3))
    for row in range(200)
]
OF_TEXTS: dict[str, Any] = {
    "architecture": {"type": "wide_and_deep", "text_width": 8, "hidden": [8]},
    "preprocess": {"encode": {"body": "tokens"}, "vocabulary": 300, "length": 32},
    "hyperparams": {"batch_size": 16, "length_buckets": 3, "epochs": 1},
}


def texts_explained(**changes: Any) -> list[dict[str, Any]]:
    texts = tuple(None if row % 50 == 9 else note for row, note in enumerate(NOTES))
    columns = [
        ColumnSummary(name="body", kind="text", texts=texts),
        ColumnSummary(name="n", kind="float", distinct=200),
        ColumnSummary(name="label", kind="text", distinct=2),
    ]
    return explain(replace(SPEC, **{**OF_TEXTS, **changes}), rows=200, columns=columns)


@pytest.mark.nightly
def test_the_graphs_of_texts_of_several_lengths_are_those_of_the_training() -> None:
    """So foretold memory is that of the training to the byte."""
    listed = [(row, None if row % 50 == 9 else note, float(row), "ab"[row % 2]) for row, note in enumerate(NOTES)]
    described = [("id", "bigint"), ("body", "text"), ("n", "double precision"), ("label", "text")]
    prepared = assemble(table(described, listed), spec("label", **OF_TEXTS))
    assert prepared.buckets is not None
    assert len(prepared.buckets.lengths) > 1
    steps = CapturedSteps.capture(prepared)
    workload = Workload(job=JobId(0), graphs=steps.graphs, latency_ns=steps.latency_ns)
    planned = {name: plan_jobs((workload,), budget_bytes=GIB, link=LINK, policy=name) for name in POLICIES}
    rows = texts_explained()
    for row, (name, answer) in zip(rows, planned.items(), strict=True):
        assert row["policy"] == name
        assert not isinstance(answer, Infeasible)
        assert row["peak_bytes"] == answer[0].peak_bytes
    shares = re.findall(r"(\d+) tokens in (\d+)% of batches, ([\d.]+) ms and ([\d.]+ \w+)", rows[-1]["note"])
    pairs = zip(shares, prepared.buckets.lengths, strict=True)  # the sample has the rows that validate and test, too
    assert all(abs(int(foretold) - chosen) <= 4 for (foretold, *_), chosen in pairs)
    assert 98 <= sum(int(share) for _, share, *_ in shares) <= 102
    mean_ms = sum(int(share) * float(ms) for _, share, ms, _ in shares) / 100
    assert rows[-1]["iteration_ms"] == pytest.approx(mean_ms, rel=0.05)
    assert shares[-1][-1] == size(rows[-1]["peak_bytes"])


@pytest.mark.nightly
def test_an_epoch_of_short_texts_is_foretold_to_be_shorter_in_the_same_memory() -> None:
    single = texts_explained(hyperparams={"batch_size": 16, "epochs": 1})
    several = texts_explained()
    assert [row["peak_bytes"] for row in several] == [row["peak_bytes"] for row in single]
    assert several[1]["iteration_ms"] < single[1]["iteration_ms"]
    assert several[1]["overhead"] == 1.0
    assert " tokens in " not in single[-1]["note"]
