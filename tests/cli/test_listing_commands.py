"""Listings in a terminal: filters, sort keys, pages, and the errors of wrong ones."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs as catalog_jobs
from indb_tensile.catalog import models as catalog_models
from indb_tensile.catalog.usage import JobUsage, record_usage
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.cli.conftest import Done, Tensile, until
from tests.conftest import Database
from tests.nightly import nightly_unless

LISTINGS = ("jobs", "queue", "events", "models", "workers", "devices", "drift", "usage")
VALUED = (
    ("jobs", "--model"),
    ("jobs", "--owner"),
    ("queue", "--model", "--owner"),
    ("events", "--kind"),
    ("models", "--owner"),
    ("workers", "--host", "--device"),
    ("devices", "--host"),
    ("drift", "--feature"),
    ("usage", "--model", "--owner"),
)
DRIFTED = {
    "format": 1,
    "rows": 400,
    "inputs": [
        {"feature": "a", "measure": "number", "counts": [200, 200]},
        {"feature": "b", "measure": "number", "counts": [100, 300]},
        {"feature": "c", "reason": "columns of images are not measured"},
    ],
}
DRIFTED_VERSION = """
with version as (
  insert into tensile.model_versions
    (model_id, number, task, target, architecture, parameters, weights_bytes, deployed)
  select model_id, 1, 'regression', 'y', '{}', 1, 4, true from tensile.models returning version_id
), figure as (
  insert into tensile.version_figures (version_id, name, figure)
  select version_id, 'input_counts', %(counts)s from version
)
insert into tensile.predicted_inputs (version_id, day, rows, counts)
select version_id, tensile.usage_day(), 400, '{200,200,300,100}' from version"""
HOSTILE = (
    """50%% "o'clock" %(x)s %s {} $1 \\ ; -- '""",
    "a' or '1'='1",
    "ä𝄞'; drop table tensile.jobs; --",
    ":model\n%(state)s",
)


def rows(done: Done) -> list[dict[str, Any]]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def numbers(tensile: Tensile, *arguments: str, column: str = "job_id") -> list[int]:
    return [row[column] for row in rows(tensile(*arguments, "--json"))]


@pytest.fixture
def worker(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection as the worker, which writes the results of jobs."""
    with database.connect("tensile_worker") as connection:
        yield connection


@pytest.fixture
def monitor(database: Database) -> Tensile:
    """The command as a role that sees the jobs of all roles."""
    return Tensile({"TENSILE_DSN": database.dsn("monitor")})


def queue(database: Database, *names: str, role: str = "demo") -> list[int]:
    """Enqueue one job for a model of each name, and return the jobs."""
    with database.connect(role) as connection:
        return [int(enqueue(connection, name)) for name in names]


def publish(worker: psycopg.Connection[Any], model: str, metric: float = 0.5) -> None:
    """Let the next job publish a version."""
    claimed = claim(worker, register(worker))
    incumbent = catalog_models.deployed_version(worker, model)
    version = publication(metric=metric, metrics={"r2": metric}, incumbent=incumbent, incumbent_metric=0.5)
    catalog_models.publish_version(worker, claimed, version)


@pytest.mark.postgres
def test_filters_of_jobs_must_all_hold_and_repeated_ones_admit_each_value(demo: Tensile, database: Database) -> None:
    first, second, third, fourth = queue(database, "a", "b", "a", "c")
    demo("cancel", str(first))
    assert numbers(demo, "jobs", "--model", "a") == [third, first]
    assert numbers(demo, "jobs", "--model", "a", "--model", "c") == [fourth, third, first]
    assert numbers(demo, "jobs", "--model", "a", "--state", "queued") == [third]
    assert numbers(demo, "jobs", "--state", "queued", "--state", "cancelled") == [fourth, third, second, first]
    done = demo("jobs", "--state", "failed")
    assert (done.code, done.out, done.err) == (0, "", "no row matches\n")


@pytest.mark.postgres
def test_a_monitor_lists_the_jobs_of_all_roles_and_filters_by_owner(monitor: Tensile, database: Database) -> None:
    (hers,) = queue(database, "hers", role="alice")
    (his,) = queue(database, "his", role="bob")
    assert [(row["job_id"], row["owner"]) for row in rows(monitor("jobs", "--json"))] == [
        (his, "bob"),
        (hers, "alice"),
    ]
    assert numbers(monitor, "jobs", "--owner", "alice") == [hers]
    assert numbers(monitor, "queue", "--owner", "bob") == [his]


@pytest.mark.postgres
def test_times_are_those_of_the_sessions_zone_and_ages_count_from_now(demo: Tensile, database: Database) -> None:
    old, new = queue(database, "old", "new")
    with database.connect() as admin:
        admin.execute("update tensile.jobs set enqueued_at = '2026-03-04 05:06+09' where job_id = %s", (old,))
    assert numbers(demo, "jobs", "--since", "2h") == [new]
    assert numbers(demo, "jobs", "--until", "90 min") == [old]
    assert numbers(demo, "jobs", "--since", "2026-03-04T05:06+09:00") == [new, old]
    assert numbers(demo, "jobs", "--until", "2026-03-04T05:06+09:00") == []
    tokyo = demo.with_variables(PGTZ="Asia/Tokyo")
    assert numbers(tokyo, "jobs", "--since", "2026-03-04 05:06", "--until", "2026-03-04 05:07") == [old]
    assert (
        numbers(demo.with_variables(PGTZ="UTC"), "jobs", "--since", "2026-03-04 05:06", "--until", "2026-03-04 05:07")
        == []
    )
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert numbers(demo, "jobs", "--since", tomorrow.isoformat()) == []


@pytest.mark.postgres
def test_jobs_are_sorted_by_columns_and_paged(demo: Tensile, database: Database) -> None:
    first, second, third = queue(database, "b", "a", "b")
    assert numbers(demo, "jobs", "--sort", "model") == [second, third, first]
    assert numbers(demo, "jobs", "--sort", "-model,job_id") == [first, third, second]
    assert numbers(demo, "jobs", "--sort", "model", "--limit", "1", "--offset", "1") == [third]
    assert demo("jobs", "--limit", "2").err == "more rows follow: --offset 2\n"
    assert demo("jobs", "--limit", "1", "--offset", "1").err == "more rows follow: --offset 2\n"
    assert demo("jobs", "--limit", "1", "--offset", "2").err == ""
    assert demo("jobs", "--offset", "3").err == "no row matches\n"
    assert numbers(demo, "jobs", "--limit", str(10**30), "--offset", "1") == [second, first]
    assert numbers(demo, "jobs", "--offset", str(10**30)) == []


@pytest.mark.postgres
def test_a_listing_of_jobs_is_limited_by_default_and_says_so(demo: Tensile, database: Database) -> None:
    queue(database, *[f"m{number}" for number in range(21)])
    done = demo("jobs", "--json")
    assert (len(rows(done)), done.err) == (20, "more rows follow: --offset 20\n")


@pytest.mark.postgres
def test_the_queue_is_listed_in_the_order_in_which_jobs_start(demo: Tensile, database: Database) -> None:
    assert demo("queue").err == "no job waits\n"
    first, second = queue(database, "a", "b")
    with database.connect("demo") as connection:
        connection.execute("update tensile.jobs set priority = 5 where job_id = %s", (second,))
    listed = rows(demo("queue", "--json"))
    assert [(row["position"], row["job_id"]) for row in listed] == [(1, second), (2, first)]
    assert listed[0]["waits_for"] == "a controller: none is alive"
    assert numbers(demo, "queue", "--sort", "-position") == [first, second]


@pytest.mark.postgres
def test_events_are_filtered_by_job_and_kind(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    first, second = queue(database, "a", "b")
    publish(worker, "a")
    demo("cancel", str(second))
    listed = rows(demo("events", "--json"))
    assert [(row["job_id"], row["model"], row["kind"]) for row in listed] == [
        (second, "b", "cancelled"),
        (first, "a", "succeeded"),
        (first, "a", "starting"),
    ]
    assert listed[-1]["detail"]["from"] == "queued"
    assert numbers(demo, "events", "--job", str(second)) == [second]
    assert numbers(demo, "events", "--kind", "starting", "--kind", "cancelled") == [second, first]
    assert numbers(demo, "events", "--model", "a", "--since", "1h", "--owner", "demo") == [first, first]
    assert numbers(demo, "events", "--until", "1h") == []


@pytest.mark.postgres
def test_anothers_events_are_not_listed(demo: Tensile, monitor: Tensile, database: Database) -> None:
    (hers,) = queue(database, "hers", role="alice")
    Tensile({"TENSILE_DSN": database.dsn("alice")})("cancel", str(hers))
    assert rows(demo("events", "--job", str(hers), "--json")) == []
    assert numbers(monitor, "events", "--owner", "alice") == [hers]


@pytest.mark.postgres
def test_models_are_filtered_and_sorted(demo: Tensile, database: Database, worker: psycopg.Connection[Any]) -> None:
    for model, metric in (("a", 0.25), ("b", 0.75)):
        queue(database, model)
        publish(worker, model, metric)
    with database.connect("demo") as connection:
        connection.execute("select tensile_create_model('plain')")

    def names(*options: str) -> list[str]:
        return [row["model"] for row in rows(demo("models", "--json", *options))]

    assert names() == ["a", "b", "plain"]
    assert names("--sort", "-metric") == ["b", "a", "plain"]
    assert names("--deployed") == ["a", "b"]
    assert names("--not-deployed") == ["plain"]
    assert names("--task", "regression") == ["a", "b"]
    assert names("--task", "classification") == names("--owner", "alice") == names("--until", "1d") == []
    assert names("--since", "1d", "--limit", "1") == names("--model", "a") == ["a"]


@pytest.mark.postgres
def test_workers_and_devices_are_listed_alive_or_stopped(
    demo: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    for command in ("workers", "devices"):
        assert demo(command).err.startswith(f"no {'controller' if command == 'workers' else 'device'}")
    stopped, alive = register(worker), register(worker)
    worker.execute("update tensile.workers set stopped_at = now() where worker_id = %s", (stopped,))
    for number in (stopped, alive):
        worker.execute(
            "insert into tensile.devices (worker_id, kind, capacity_bytes, budget_bytes) values (%s, 'cpu', 9, 8)",
            (number,),
        )
    for command in ("workers", "devices"):
        assert numbers(demo, command, column="worker_id") == [alive, stopped]
        assert numbers(demo, command, "--alive", column="worker_id") == [alive]
        assert numbers(demo, command, "--stopped", column="worker_id") == [stopped]
        assert numbers(demo, command, "--host", "elsewhere", column="worker_id") == []
        assert numbers(demo, command, "--sort", "worker_id", column="worker_id") == [stopped, alive]
    assert numbers(demo, "workers", "--device", "emulated:test", "--since", "1h", column="worker_id") == [
        alive,
        stopped,
    ]
    assert numbers(demo, "devices", "--device", "cpu", column="worker_id") == [alive, stopped]


@pytest.mark.postgres
@pytest.mark.nightly
def test_drift_is_listed_the_largest_first_and_only_to_owner_and_monitors(
    demo: Tensile, monitor: Tensile, database: Database
) -> None:
    assert demo("drift").err == "no drift is measured: select tensile_measure_drift('model')\n"
    with database.connect("demo") as owner, database.connect() as admin:
        owner.execute("select tensile_create_model('m'); select tensile_measure_drift('m')")
        admin.execute(DRIFTED_VERSION, {"counts": json.dumps(DRIFTED)})
    listed = [(row["feature"], row["reading"]) for row in rows(demo("drift", "--json"))]
    assert listed == [("b", "large"), ("a", "stable"), ("c", "not measured")]
    assert [row["feature"] for row in rows(monitor("drift", "--reading", "large", "--deployed", "--json"))] == ["b"]
    assert rows(demo("drift", "--not-deployed", "--json")) == []
    assert " stable " in demo("drift", "--feature", "a").out
    assert demo("drift", "--reading", "huge").code == 2


@pytest.mark.postgres
def test_use_is_listed_by_owner_and_model_the_largest_first(
    demo: Tensile, monitor: Tensile, database: Database, worker: psycopg.Connection[Any]
) -> None:
    assert demo("usage").err == "no job has used a device yet\n"
    number = register(worker)
    for role, model, device_s in (("demo", "a", 3.0), ("demo", "b", 5.0), ("alice", "a", 4.0)):
        queue(database, model, role=role)
        claimed = claim(worker, number)
        use = JobUsage(
            job=claimed.job, device_s=device_s, byte_s=1e9, running_s=device_s, alone_s=1.0, measured_s=device_s
        )
        record_usage(worker, [use])
        catalog_jobs.cancelled(worker, claimed.job, claimed.claim)
    listed = [
        (row["owner"], row["model"], row["device_seconds"], row["slowdown"])
        for row in rows(monitor("usage", "--json"))
    ]
    assert listed == [("demo", "b", 5.0, 5.0), ("alice", "a", 4.0, 4.0), ("demo", "a", 3.0, 3.0)]
    of_a = rows(monitor("usage", "--model", "a", "--sort", "device_seconds", "--json"))
    assert [row["owner"] for row in of_a] == ["demo", "alice"]
    assert [row["model"] for row in rows(demo("usage", "--json"))] == ["b", "a"]
    assert " 953.7 MB s " in demo("usage", "--owner", "demo").out


@pytest.mark.postgres
@pytest.mark.parametrize("value", nightly_unless(lambda value: value is HOSTILE[0], HOSTILE))
def test_a_filters_value_is_compared_and_never_run(demo: Tensile, database: Database, value: str) -> None:
    (other,) = queue(database, "a")
    for command, *options in VALUED:
        assert numbers(demo, command, *[text for option in options for text in (option, value)]) == []
    if value.isprintable():
        (job,) = queue(database, value)
        assert numbers(demo, "jobs", "--model", value, "--sort", "model") == [job]
        assert numbers(demo, "queue", "--model", value) == [job]
    assert other in numbers(demo, "jobs", "--sort", "job_id")


@pytest.mark.postgres
def test_a_name_that_no_row_has_lists_nothing_and_says_which_names_there_are(
    demo: Tensile, database: Database
) -> None:
    queue(database, "churn", "it's 5%", "churn")
    done = demo("jobs", "--model", "chrun", "--owner", "demo", "--state", "queued")
    assert (done.code, done.out) == (0, "")
    assert done.err == "no row matches\nno row has --model chrun: the names in use are churn, it's 5%\n"
    assert demo("events", "--kind", "ended\x1b[2J", "--kind", "x").err == (
        "no row matches\nno row has --kind ended\\x1b[2J or x: there is no row at all\n"
    )
    assert demo("jobs", "--model", "chrun", "--json").err == ""
    queue(database, *[f"m{number:02}" for number in range(25)])
    assert demo("jobs", "--model", "x").err.endswith(", m17, …\n")


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_wrong_sort_key_names_the_right_ones(demo: Tensile) -> None:
    for command in LISTINGS:
        for key in ("nonsense", "model,1; select 1"):
            done = demo(command, "--sort", key)
            assert (done.code, done.out) == (2, ""), key
            assert "there is no such column\n  hint: Sort by one or more of " in done.err
            assert "sorts from high to low" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs", "--state", "odd"], "'odd' is not one of 'queued', 'starting', 'running', 'succeeded'"),
        (["jobs", "--since", "tomorrowish"], "'tomorrowish' is neither a time, such as 2026-11-22"),
        (["jobs", "--since", "2026-02-30"], "is neither a time"),
        (["jobs", "--since", "3 fortnights"], "its unit is s, min, h, d or w"),
        (["jobs", "--until", "99999999999999999999w"], "is more than 1000 years"),
        (["jobs", "--limit", "0"], "0 is not in the range x>=1"),
        (["jobs", "--limit", "many"], "'many' is not a valid integer"),
        (["jobs", "--offset", "-1"], "-1 is not in the range x>=0"),
        (["jobs", "--model", "\udcff"], "'\\udcff' is not UTF-8"),
        (["events", "--job", "seven"], "'seven' is not a valid integer"),
        (["models", "--task", "clustering"], "'clustering' is not one of 'classification', 'regression'"),
    ],
)
def test_a_wrong_filter_names_the_right_values(tensile: Tensile, arguments: list[str], words: str) -> None:
    done = tensile(*arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err.replace("\n", " ")


@pytest.mark.postgres
def test_a_number_too_large_for_a_job_is_an_error_and_2(demo: Tensile) -> None:
    done = demo("events", "--job", str(10**30))
    assert done.code == 2
    assert "Traceback" not in done.err


def test_a_listing_without_sqlalchemy_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None; from indb_tensile.cli.main import main; "
        "main(['jobs', '--dsn', 'host=/nowhere'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert done.stderr.startswith("tensile: this command needs sqlalchemy, which is not installed\n  hint: ")


def importing(package: str, dsn: str, *commands: Sequence[str]) -> list[Sequence[str]]:
    """Run the commands one after another in one process, and return those after which the package is imported."""
    program = (
        "import sys\nfrom indb_tensile.cli.main import main\n"
        f"for number, command in enumerate({[list(command) for command in commands]!r}):\n"
        "    try:\n        main(command)\n    except SystemExit:\n        pass\n"
        f"    print(file=sys.stdout)\n    print('imported', number, {package!r} in sys.modules)"
    )
    environment = Tensile({"TENSILE_DSN": dsn}).environment()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/", env=environment
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("imported ")]
    assert len(lines) == len(commands)
    return [commands[int(number)] for _, number, imported in lines if imported == "True"]


@pytest.mark.nightly
def test_help_does_not_import_sqlalchemy() -> None:
    helps = [["--version"], ["--help"], *([command, "--help"] for command in LISTINGS)]
    assert importing("sqlalchemy", "", *helps) == []


@pytest.mark.nightly
@pytest.mark.postgres
def test_only_commands_that_list_import_sqlalchemy(database: Database) -> None:
    (job,) = queue(database, "m")
    number = str(job)
    others = (["job", number], ["cancel", number], ["wait", number], ["watch"], ["plan", number], ["version"],
              ["predict", "m", "{}"], ["train", "m", "nosuch"], ["vacuum"])  # fmt: skip
    assert importing("sqlalchemy", database.dsn("demo"), *others, ["jobs"]) == [["jobs"]]


@pytest.mark.postgres
def test_a_listing_leaves_no_session_behind_and_names_itself(demo: Tensile, database: Database) -> None:
    assert demo("jobs").code == 0
    with database.connect() as admin:
        sessions = """select count(*) from pg_stat_activity
                       where datname = current_database() and application_name = 'tensile'"""
        until(lambda: admin.execute(sessions).fetchone() == (0,), "the session to end")


@pytest.mark.postgres
def test_a_database_without_the_catalog_names_the_command_that_installs_it(
    tensile: Tensile, database: Database
) -> None:
    dsn = database.cluster.dsn(user="demo", database="postgres")
    for command in LISTINGS:
        done = tensile(command, "--dsn", dsn)
        assert done.code == 4
        assert done.err.startswith('tensile: the catalog is not installed in database "postgres"\n  hint: ')
