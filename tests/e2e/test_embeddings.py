"""Check with a real controller that rows are embedded alike one by one, in a batch and as a table."""

import json

import psycopg
import pytest

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

TABLE = """
create table houses as
select n as id, sin(n) as size, (array['city', 'village'])[n % 2 + 1] as place, 3 * sin(n) + n % 2 as price
  from generate_series(1, 90) as n;
alter table houses add primary key (id);
grant select on houses to tensile_reader"""
TRAIN = "select tensile_train(%s, 'houses', 'price', architecture => %s, hyperparams => %s)"


@pytest.mark.nightly
def test_rows_are_embedded_alike_in_every_way(running: Service) -> None:
    with running.database.connect("demo") as demo:
        demo.execute(TABLE.encode())
        jobs = []
        for model, architecture, options in (
            ("worth", '{"type": "mlp", "hidden": [8, 6]}', {"epochs": 2, "ensemble": 2}),
            ("trees", "boosting", {}),
        ):
            row = demo.execute(TRAIN.encode(), (model, architecture, json.dumps(options))).fetchone()
            assert row is not None
            jobs.append(row[0])
        assert running.until_ended(*jobs) == ["succeeded"] * 2

        def answers(statement: str) -> list[list[float]]:
            return [row[0] for row in demo.execute(statement.encode()).fetchall()]

        single = answers("select tensile_embed('worth', h) from houses as h order by id")
        table = answers("select embedding from tensile_embed_table('worth', 'houses') order by (key ->> 'id')::int")
        (batch,) = answers("select tensile_embed_batch('worth', array_agg(h order by id)) from houses as h")
        assert {len(own) for own in single} == {12}
        for first, second, third in zip(single, table, batch, strict=True):
            assert first == pytest.approx(second, abs=1e-5)
            assert first == pytest.approx(third, abs=1e-5)
        assert answers("select tensile_embed('worth', null::houses)") == [None]
        assert answers("select tensile_embed_batch('worth', '{}'::houses[])") == [[]]
        for call in ("tensile_embed('trees', h) from houses as h", "* from tensile_embed_table('trees', 'houses')"):
            with pytest.raises(psycopg.Error, match="architecture boosting has no hidden layer") as caught:
                answers(f"select {call}")
            assert "Train a network" in str(caught.value)
        with running.database.connect("bob") as bob, pytest.raises(psycopg.Error, match='no model "worth"'):
            bob.execute("select * from tensile_embed_table('worth', 'houses')")
