"""The benchmark of ranks runs all contenders, counts what they send, and judges bits and peaks."""

import socket
from typing import Any

import pytest

from indb_tensile.bench.commands.rank_comparison import RankOptions, faults, measure, methods
from indb_tensile.bench.harness.comparisons.sent_bytes import sent_bytes
from tests.bench.subjects import Tiny

TWO_RANKS = ["DDP", "DDP, ZeRO", "exact", "fast", "exact, divided", "exact, 70%", "fast, 70%"]


@pytest.mark.nightly
def test_every_contender_has_a_row_and_the_exact_sum_has_the_bits_of_one_device() -> None:
    rows = measure(Tiny(), RankOptions(ranks=(1, 2), bits=3, parts=4, rounds=1, iterations=1, turn_s=0.05))
    assert [(row["ranks"], row["method"]) for row in rows] == [
        *((1, method) for method in ("DDP", "exact", "exact, 70%")),
        *((2, method) for method in TWO_RANKS),
        *((3, method) for method in ("exact, bits", "fast, bits", "exact, divided, bits")),
    ]
    assert list(faults(rows)) == []
    assert all(row["peak_bytes"] == row["planned_bytes"] for row in rows if row["reduce"])
    assert all(row["exact_bits"] for row in rows if row["reduce"] == "exact")
    timed = [row for row in rows if "step_ms" in row]
    assert all((row["sent_bytes"] > 0) == (row["ranks"] > 1) for row in timed)
    assert all(row["samples_per_s"] > 0 and row["ratio"] > 0 for row in timed)
    foretold = ("foretold_ms", "first_foretold_ms", "first_forecast_error", "first_exchange_ms", "exchange_ms")
    for row in timed:
        assert {row[name] is None for name in foretold} == {row["method"].startswith("DDP")}
        if row["reduce"]:
            several = row["ranks"] > 1
            assert (row["first_exchange_ms"] > 0, row["exchange_ms"] > 0) == (several, several)
            assert row["first_foretold_ms"] > 0
            assert row["late_ms"] >= 0


def test_one_rank_has_nothing_to_add_up_and_more_have_both_sums_with_as_much_memory_and_less() -> None:
    assert [method.name for method in methods(1, 0.5)] == ["DDP", "exact", "exact, 50%"]
    assert [method.name for method in methods(2, 0.7)] == TWO_RANKS


def test_other_bits_different_ranks_and_a_peak_above_the_plan_are_faults() -> None:
    row: dict[str, Any] = {"network": "mlp", "ranks": 2, "method": "exact", "reduce": "exact", "planned_bytes": 5}
    sound = row | {"equal_ranks": True, "exact_bits": True, "peak_bytes": 5}
    fast = sound | {"method": "fast", "reduce": "fast", "exact_bits": False}
    parallel = fast | {"method": "DDP", "reduce": None, "planned_bytes": None}
    assert list(faults([sound, fast, parallel, parallel | {"equal_ranks": False}])) == []
    assert list(
        faults([sound | {"exact_bits": False}, fast | {"equal_ranks": False}, sound | {"peak_bytes": 7}])
    ) == [
        "mlp, 2 ranks, exact: the parameters are not those of one device with the same parts",
        "mlp, 2 ranks, fast: the ranks end with different parameters",
        "mlp, 2 ranks, exact: the peak is 2 bytes above that of the plan",
    ]


def test_bytes_that_connections_of_this_process_send_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            before = sent_bytes()
            client.sendall(b"x" * 10_000)
            received = 0
            while received < 10_000:
                received += len(accepted.recv(10_000))
            accepted.sendall(b"y" * 500)
            assert client.recv(500, socket.MSG_WAITALL) == b"y" * 500
            assert sent_bytes() - before == 10_500
