"""Check predictions in transactions that are prepared, on a server that allows that."""

import pytest

from indb_tensile.cluster import temporary_cluster
from tests.conftest import ROLES
from tests.open_directory import open_directory

from .conftest import Forks, service_of
from .test_standby import database_with_a_model

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]  # a server and a service of its own


def test_a_transaction_that_has_predicted_a_table_can_be_prepared(forks: Forks) -> None:
    """PostgreSQL prepares no transaction that has exported a snapshot, so the session reads the table itself."""
    with (
        open_directory("suite-prepared-") as directory,
        temporary_cluster(ROLES, "max_prepared_transactions = 2\n", within=directory) as cluster,
    ):
        database = database_with_a_model(cluster, directory / "sockets")
        with service_of(database, directory / "sockets", forks) as service, database.connect("demo") as demo:
            service.start()
            demo.execute("begin; create table stored as select * from tensile_predict_table('flowers', 'large')")
            demo.execute("prepare transaction 'predicted'")
            demo.execute("commit prepared 'predicted'")
            counted = "select count(*), (tensile.bridge('ping', '{}') #>> '{result,readings}')::int from stored"
            assert demo.execute(counted).fetchone() == (2200, 0)
