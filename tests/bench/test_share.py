"""The benchmark of sharing runs a tiny mix with every method, with equal results and within its memory."""

import psycopg
import pytest

from indb_tensile.bench.commands.share import KNOWN
from indb_tensile.bench.harness.share.share_methods import RIVALS, available
from indb_tensile.bench.harness.share.share_mixes import Mix, MixBars, MixBudget, MixJob, MixTraining
from indb_tensile.bench.harness.share.share_runs import run_mix
from indb_tensile.bench.harness.share.share_site import share_site
from indb_tensile.cluster import Cluster

NETWORK = '{"type": "mlp", "hidden": [512, 512], "dropout": 0.1}'
FIRST = MixTraining(table="diabetes", architecture=NETWORK, epochs=3, batch_size=64, learning_rate=0.001)
SECOND = MixTraining(table="breast_cancer", architecture=NETWORK, epochs=2, batch_size=64, learning_rate=0.001)
TINY = Mix(
    name="tiny",
    text="three tiny jobs of two owners in the memory of 1.5",
    jobs=(
        MixJob(training=FIRST),
        MixJob(training=FIRST, owner=1, priority=3),
        MixJob(training=SECOND, after_s=0.2),
    ),
    budget=MixBudget(of_largest=1.5),
    about_s=5.0,
    bars=MixBars(speedup=1.4, of_unlimited=0.9),
    unlimited=2,
)


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_tiny_mix_runs_with_every_method_within_its_memory_and_with_equal_results(cluster: Cluster) -> None:
    dsn = cluster.dsn(database="postgres")
    methods = available(KNOWN)
    with psycopg.connect(dsn) as connection:
        before = databases_and_roles(connection)
    with share_site(dsn, "emulated", 300.0) as site:
        outcome = run_mix(site, TINY, methods, threads=1, rounds=2, known=KNOWN)
    with psycopg.connect(dsn) as connection:
        assert databases_and_roles(connection) == before
    assert outcome.faults == ()
    rows = {row["method"]: row for row in outcome.rows()}
    assert list(rows) == ["cold", *(method.name for method in methods), "unlimited"]
    assert all(0 < row["peak_bytes"] <= outcome.budget_bytes for name, row in rows.items() if name in RIVALS)
    assert all(0 < row["first_step_s"] < row["makespan_s"] for row in rows.values())
    assert all(row["antt"] <= row["worst_slowdown"] for name, row in rows.items() if name != "cold")
    assert (rows["cold"]["antt"], rows["cold"]["stp_measured"]) == (None, None)
    assert [len(runs) for runs in outcome.rounds.values()] == [2] * len(outcome.rounds)
    compared = [bar.text for bar in outcome.bars()]
    assert compared[2:5] == [
        "times as fast as turns",
        "times as fast as first_fit",
        "STP over that of 2 without a limit",
    ]


def databases_and_roles(connection: psycopg.Connection) -> list[tuple[str]]:
    statement = "select datname from pg_database union all select rolname from pg_roles where rolname like '%bench%'"
    return sorted(connection.execute(statement).fetchall())
