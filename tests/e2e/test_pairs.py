"""Check with a real controller that pairs are learned, each side is embedded by itself, and items are ranked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.client import Model, Tensile
from indb_tensile.errors import UnsupportedError
from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

# Wants, age and colour decide about the product; a note about every third product is missing.
TABLE = """
create table goods as
select n as id, 'p' || n as product, n / 4 as size, case when n % 3 > 0 then 'a note about ' || n % 4 end as note
  from generate_series(0, 19) as n;
alter table goods add primary key (id);
create table fitted_sales as
select n as id, (array['red', 'green', 'blue', 'grey'])[n % 4 + 1] as wants,
       nullif(10.0 * (n * 7 % 25 / 5), 20) as age, product, size, note
  from generate_series(1, 600) as n join goods as g on g.id = n * 7 % 25 / 5 * 4 + n % 4;
alter table fitted_sales add primary key (id);
grant select on fitted_sales to tensile_reader"""
TRAIN = """select tensile_train('fits', 'fitted_sales', '["product", "size", "note"]', task => 'pairs',
  preprocess => '{"encode": {"note": "tokens"}, "missing": {"age": "indicator"}}',
  hyperparams => '{"epochs": 10, "batch_size": 64, "learning_rate": 0.02}')"""
SIMILARITY = """
create function inner_product(a real[], b real[]) returns double precision language sql immutable as
$$ select sum(x * y) from unnest(a, b) as pair (x, y) $$"""


@pytest.fixture(scope="module")
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        connection.execute(SIMILARITY)
        yield connection


@pytest.mark.nightly
def test_pairs_are_learned_embedded_by_side_and_ranked(
    running: Service, demo: psycopg.Connection, tmp_path: Path
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    job = rows(TRAIN)[0][0]
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    metrics = dict(rows("select * from tensile_evaluate('fits')"))
    assert set(metrics) == {"mrr", "recall_at_1", "recall_at_10"}
    assert metrics["mrr"] > 0.6
    assert dict(rows("select * from tensile_evaluate('fits', 'fitted_sales')"))["mrr"] > 0.6
    demo.execute("create table vectors as select (key ->> 'id')::int as id, embedding "
                 "from tensile_embed_table('fits', 'goods', side => 'item')")  # fmt: skip
    query = "tensile_embed('fits', s, side => 'query')"
    answers = rows(f"select s.id, inner_product({query}, v.embedding), tensile_predict('fits', s) "
                 "from fitted_sales as s join goods as g using (product) join vectors as v on v.id = g.id "
                 "where s.id < 4")  # fmt: skip
    assert len(answers) == 3
    for _, of_vectors, of_pair in answers:
        assert of_vectors == pytest.approx(of_pair, abs=1e-5)
    nearest = rows(f"""select product from vectors as v join goods using (id),
      (select {query} as embedding from fitted_sales as s where id = 1) as q
      order by inner_product(v.embedding, q.embedding) desc limit 4""")
    assert rows("select product from fitted_sales where id = 1")[0] in nearest
    embedded = "tensile_embed('fits', '{\"wants\": \"red\", \"age\": null}'::jsonb, side => 'query')"
    assert rows(f"select inner_product(v, v) from (select {embedded}) as e (v)") == [(pytest.approx(1, abs=1e-5),)]
    for call, message in (
        ("tensile_embed('fits', s) from fitted_sales as s", "side is left out"),
        ("tensile_embed('fits', g, side => 'iten') from goods as g", 'side is "iten"'),
        ("tensile_embed('fits', g, side => 'query') from goods as g", "no column wants, age"),
        ("* from tensile_embed_table('fits', 'goods', side => 'query')", 'has no column "wants"'),
        ("tensile_predict_label('fits', s) from fitted_sales as s", "has no labels"),
        ("* from tensile_feature_importance('fits')", "has no feature importance"),
    ):
        with pytest.raises(psycopg.Error, match=message):
            rows(f"select {call}")
    with Tensile(running.database.dsn("demo")) as client, pytest.raises(UnsupportedError, match="has no file"):
        Model.export("fits", tmp_path / "fits.safetensors", database=client)


@pytest.mark.nightly
def test_pairs_are_reported_predicted_into_a_table_explained_and_learned_again(
    running: Service, demo: psycopg.Connection
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    assert rows(TRAIN.replace("tensile_train", "count(*) from tensile_explain"))[0][0]
    job = rows(TRAIN.replace("'fits'", "'again'"))[0][0]
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    report = json.dumps(rows(f"select * from tensile_data_report({job})"), default=str)
    assert "of the most popular items" in report
    into = rows("select tensile_predict_into('again', 'fitted_sales', 'scored')")[0][0]
    assert running.until_ended(into) == ["succeeded"], running.log.read_text()
    direct = rows("select value from tensile_predict_table('again', 'fitted_sales') order by (key ->> 'id')::int")
    stored = rows("select value from scored order by id")
    assert [own for (own,) in stored] == pytest.approx([own for (own,) in direct], abs=1e-5)
    added = rows("select feature, attribution, baseline, prediction from fitted_sales as s, "
                 "tensile_explain_prediction('again', s) where id = 1")  # fmt: skip
    assert {feature for feature, *_ in added} == {"wants", "age", "product", "size", "note"}
    assert sum(share for _, share, *_ in added) == pytest.approx(added[0][3] - added[0][2], abs=1e-5)
    (batch,) = rows("select tensile_embed_batch('again', array_agg(g order by id), side => 'item') from goods as g")[
        0
    ]
    table = rows("select embedding from tensile_embed_table('again', 'goods', side => 'item') "
                 "order by (key ->> 'id')::int")  # fmt: skip
    assert [own for (own,) in table] == [pytest.approx(own, abs=1e-5) for own in batch]
    second = rows("select tensile_retrain('again')")[0][0]
    assert running.until_ended(second) == ["succeeded"], running.log.read_text()
    demo.execute("drop view scored")
