"""Databases in other encodings than UTF-8: the catalog, a training, its errors and predictions, with names and values
beyond ASCII."""

from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.cluster import Cluster
from tests.e2e.conftest import Service
from tests.e2e.encoded_service import encoded_service

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

ROWS = """
create table "größe" (id int primary key, "länge" int, "geschmack" text);
insert into "größe"
select i, i % 7, case when i % 7 < 3 then 'süß' else 'herb' end
  from generate_series(1, 300) i;
grant select on "größe" to tensile_reader"""
TRAIN = [
    """select tensile_train('café', '"größe"', "target" => 'geschmack', hyperparams => '{"epochs": 30}')""",
    """select tensile_train('café', '"größe"', "target" => 'geschmack', hyperparams => '{"epochs": 3}', transform =>
                            '{"ähnlich": "case when länge < 3 then ''süß'' else ''x'' end"}')""",
    """select tensile_train_query('thé', $$select "länge", "geschmack" from "größe" where "geschmack" <> 'ß'$$,
                                  "target" => 'geschmack', hyperparams => '{"epochs": 30}')""",
]
PREDICT = [
    """select tensile_predict_label('café', t) from "größe" t where id < 8""",
    """select label from tensile_predict_table('café', '"größe"')""",
    """select label from tensile_predict_table('thé', '"größe"')""",
]


@pytest.fixture(params=["SQL_ASCII", "LATIN1", "EUC_JP"])
def service(request: pytest.FixtureRequest, cluster: Cluster, template: str) -> Iterator[Service]:
    """A controller, which the test starts, on a database with this encoding. Its catalog is installed anew."""
    del template  # it has created the roles
    with encoded_service(cluster, request.param) as service:
        yield service


def test_names_and_values_beyond_ascii_train_and_are_predicted(service: Service) -> None:
    service.start()
    with psycopg.connect(service.database.dsn("demo"), autocommit=True, client_encoding="UTF8") as demo:
        demo.execute(ROWS)
        for statement in TRAIN:
            (job,) = demo.execute(statement).fetchone() or (None,)
            assert service.until_ended(job) == ["succeeded"]
        for statement in PREDICT:
            rows = demo.execute(statement).fetchall()
            assert {row[0] for row in rows} == {"süß", "herb"}, statement
        with pytest.raises(psycopg.Error, match="höhe"):
            demo.execute("""select tensile_train('café', '"größe"', "target" => 'höhe')""")
