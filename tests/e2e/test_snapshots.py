"""Check with a real controller that a training on a view, a query or a table with a policy gives the same bits as a
training on a plain table with the same rows.
"""

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

QUERY = "select * from seen order by id"
TABLES = """
create table plain as
  select i as id, (i * 37 % 101)::float8 / 7 as x, (i % 9)::real as z, 'w' || i % 4 as word, 'c' || i % 3 as y
    from generate_series(1, 300) as i;
create table loose as select * from plain;
create view seen as select * from plain;
create table protected as select * from plain union all select 301, 0, 0, 'w9', 'c9';
alter table plain add primary key (id);
alter table protected add primary key (id);
alter table protected enable row level security;
alter table protected force row level security;
create policy visible on protected using (id <= 300);
grant select on plain, loose to tensile_reader;
"""
PAIRS = (("plain", "protected"), ("plain", "seen"), ("loose", QUERY))


@pytest.mark.nightly
def test_training_through_a_snapshot_gives_the_bits_of_a_plain_table(service: Service) -> None:
    service.start()
    with service.database.connect("alice") as alice:
        alice.execute(TABLES)
        jobs = {name: train(alice, name) for pair in PAIRS for name in pair}
        snapshot_jobs = alice.execute("select job_id from tensile.snapshots where sealed order by job_id").fetchall()
        assert [job for (job,) in snapshot_jobs] == sorted((jobs["protected"], jobs["seen"], jobs[QUERY]))
        alice.execute("drop view seen; drop table protected")  # the jobs have their snapshots
        assert service.until_ended(*jobs.values()) == ["succeeded"] * 5, service.log.read_text()
        assert relations_of_versions(alice, "on_query") == ["query"]
        with pytest.raises(psycopg.Error, match="the model was trained on the rows of a query, which are not kept"):
            alice.execute("select * from tensile_split(%s)", ("on_query",))
        parts = alice.execute("select part, count(*) from tensile_split(%s, 'loose') group by part", ("on_query",))
        assert sum(count for _, count in parts.fetchall()) == 300
        for plain_relation, snapshot_relation in PAIRS:
            assert published_version(service, jobs[snapshot_relation]) == published_version(
                service, jobs[plain_relation]
            )

    # A controller drops old snapshots when it starts, and then once a minute.
    service.stop()
    service.start()
    tables = "select count(*) from pg_class where relnamespace = 'tensile_data'::regnamespace and relkind = 'r'"
    service.until(lambda: not service.value(tables), "the snapshots of ended jobs to be dropped")
    service.until(lambda: not service.value("select count(*) from tensile.snapshots"), "their rows to be gone")


def train(connection: psycopg.Connection[Any], relation: str) -> int:
    function, name = ("tensile_train_query", "on_query") if relation == QUERY else ("tensile_train", f"on_{relation}")
    row = connection.execute(
        f"""select {function}(%s, %s, target => 'y', architecture => '{{"type": "mlp", "hidden": [16]}}',
                              hyperparams => '{{"epochs": 3, "seed": 7}}')""".encode(),
        (name, relation),
    ).fetchone()
    assert row is not None
    return int(row[0])


def relations_of_versions(connection: psycopg.Connection[Any], model: str) -> list[str]:
    rows = connection.execute("select relation from tensile_training_info(%s)", (model,)).fetchall()
    return [row[0] for row in rows]


def published_version(service: Service, job: int) -> tuple[Any, ...]:
    """Return everything that the job published: weights, preprocessing, metrics."""
    row = service.connection.execute(
        """select (select sha256(string_agg(a.chunk, ''::bytea order by a.chunk_no))
                     from tensile.artifacts as a where a.version_id = v.version_id),
                  b.bundle::text, v.metrics::text, v.parameters, v.weights_bytes
             from tensile.model_versions as v join tensile.version_bundles as b using (version_id)
            where v.job_id = %s""",
        (job,),
    ).fetchone()
    assert row is not None
    assert row[0] is not None
    return tuple(row)
