"""Check with a real controller that a network of timm trains to the same bits in little memory, and predicts.

It needs the extra `timm`, as tests/learning/test_timm.py does.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import weights
from tests.learning import pictures
from tests.learning.test_timm import MISSING, needs_timm

pytestmark = pytest.mark.postgres

TABLE = """
create table if not exists corners (id integer primary key, photo bytea, corner text);
grant select on corners to tensile_reader"""
ARGUMENTS = """('NAME', 'corners', 'corner', features => array['photo'], preprocess => '{"size": [32, 32]}',
  architecture => '{"type": "timm", "name": "test_resnet", "drop_path_rate": 0.1}',
  hyperparams => '{"epochs": 12, "batch_size": 16, "learning_rate": 0.002, "baseline": false}'"""


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        connection.execute("truncate corners")
        rows = [
            (row, pictures.encoded(pictures.square(row, 16, 120 + row % 100)), f"c{row % 4}") for row in range(120)
        ]
        connection.cursor().executemany("insert into corners values (%s, %s, %s)", rows)
        yield connection


@pytest.mark.nightly
@pytest.mark.skipif(MISSING is None, reason="timm is installed")
def test_a_job_on_a_machine_without_timm_fails_with_the_package_and_the_command(
    running: Service, demo: psycopg.Connection
) -> None:
    ((job,),) = demo.execute(f"select tensile_train{ARGUMENTS.replace('NAME', 'absent')})".encode()).fetchall()
    assert running.until_ended(job) == ["failed"]
    fault = "select error_sqlstate, error_message, error_hint from tensile.jobs where job_id = %s"
    assert demo.execute(fault, [job]).fetchall() == [
        (
            "0A000",
            "architecture timm needs the package timm, which is not installed here",
            "On the machines of controllers and services: pip install 'indb-tensile[timm]'",
        )
    ]


@needs_timm
@pytest.mark.nightly
def test_a_network_trains_to_the_same_bits_in_little_memory_and_predicts(
    running: Service, demo: psycopg.Connection
) -> None:
    def train(name: str, limit: str) -> int:
        statement = f"select tensile_train{ARGUMENTS.replace('NAME', name)}, memory_limit => '{limit}')"
        return int(demo.execute(statement.encode()).fetchall()[0][0])

    explained = f"select count(*) from tensile_explain{ARGUMENTS.replace('NAME', 'roomy')})"
    assert demo.execute(explained.encode()).fetchall()[0][0]
    roomy, tight = train("roomy", "20MB"), train("tight", "8MB")
    assert running.until_ended(roomy, tight) == ["succeeded"] * 2, running.log.read_text()
    assert weights(running, roomy) == weights(running, tight)
    single = demo.execute("select tensile_predict_label('tight', c) from corners as c order by id").fetchall()
    table = "select label from tensile_predict_table('roomy', 'corners') order by (key ->> 'id')::int"
    assert demo.execute(table.encode()).fetchall() == single
    # After half of these steps the averages of batch normalisation lag so far behind that a third would be right.
    assert sum(label == f"c{row % 4}" for row, (label,) in enumerate(single)) >= 110
    stored = "select architecture ->> 'name', architecture ->> 'library_version' is not null from "
    assert demo.execute(f"{stored} tensile_training_info('tight')".encode()).fetchall() == [("test_resnet", True)]
