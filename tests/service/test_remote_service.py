"""A real server predicts by a service that it reaches by TLS alone, as if the service ran on another host."""

import shutil
import socket
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.cluster import Cluster
from tests.certificates import Authority, new_authority
from tests.conftest import Database

from .conftest import Forks, Published, Service, service_of

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def authority(database: Database, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority, with the server's certificate in the directory `client` beside it, which is a setting."""
    directory = cluster.directory / "tls"  # where the server's user may read
    authority = new_authority(tmp_path_factory.mktemp("tls") / "ca")
    authority.sign(directory, "tensile-database", usage="clientAuth")
    for path in (directory, *directory.iterdir()):
        shutil.chown(path, cluster.system_user)
    with database.connect() as connection:
        connection.execute("select tensile_set_setting('tls_directory', %s)", [Jsonb(str(directory))])
    return authority


@pytest.fixture(scope="module")
def remote(
    database: Database, forks: Forks, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service whose socket the server does not find."""
    files = authority.sign(tmp_path_factory.mktemp("service") / "tls", "gpu1", names="DNS:gpu1.example.org")
    directory = tmp_path_factory.mktemp("sockets")
    directory.chmod(0o755)
    with service_of(database, directory, forks) as service:
        with database.connect() as connection:
            connection.execute("""select tensile_set_setting('socket_directory', '"/nowhere"')""")
        service.more = {
            "TENSILE_SERVICE_ADDRESS": "127.0.0.1:0",
            "TENSILE_SERVICE_TLS_DIRECTORY": str(files),
            "TENSILE_SERVICE_HOST_NAME": "gpu1.example.org",
        }
        service.run(peer_uid=None)
        yield service


def test_a_server_predicts_by_a_service_of_another_host(
    database: Database, remote: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        rows = [row for (row,) in connection.execute("select to_jsonb(t) from houses as t order by id")]
        query = "select tensile_predict('houses', t) from houses as t order by id"
        values = [value for (value,) in connection.execute(query)]
        page = connection.execute("select value from tensile_predict_table('houses', 'houses')").fetchall()
        place = connection.execute(
            "select service_address ~ '^127.0.0.1:\\d+$' from tensile.stat_workers where service_name is not null"
        ).fetchone()
    assert values == pytest.approx([p.value for p in houses.predictor.predict_rows(rows)], rel=1e-5)
    assert [value for (value,) in page] == pytest.approx(values, rel=1e-5)
    assert place == (True,)


@pytest.mark.nightly
def test_a_statement_timeout_ends_the_wait_for_a_host_that_hangs(
    database: Database, remote: Service, houses: Published
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hanging,
        database.connect() as admin,
        database.connect(user="demo") as connection,
    ):
        admin.execute(
            """insert into tensile.workers
                 (host, pid, device, version, lease_s, service_address, service_host_name, heartbeat_at)
               values ('hangs', 1, 'none', '0', 3600, %s, 'hangs', now() + interval '1 minute')""",
            (f"127.0.0.1:{hanging.getsockname()[1]}",),
        )
        connection.execute("set statement_timeout = '300 ms'")
        predict = "select tensile_predict('houses', t) from houses as t where id = 1"
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(predict)
        connection.execute("set statement_timeout = 0")
        assert connection.execute(predict).fetchone(), "the next host answers after the bound of a handshake"
        admin.execute("delete from tensile.workers where host = 'hangs'")


@pytest.mark.nightly
def test_a_server_goes_to_the_next_host_and_names_each_fault(
    database: Database, remote: Service, houses: Published, authority: Authority, cluster: Cluster
) -> None:
    with database.connect() as admin, database.connect(user="demo") as connection:
        admin.execute(
            """insert into tensile.workers
                 (host, pid, device, version, lease_s, service_address, service_host_name, heartbeat_at)
               values ('dead', 1, 'none', '0', 3600, '127.0.0.1:1', 'dead', now() + interval '1 minute')"""
        )
        assert connection.execute("select tensile_predict('houses', t) from houses as t where id = 1").fetchone()

        remote.stop()
        with pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            connection.execute("select tensile_predict('houses', t) from houses as t where id = 1")
        assert caught.value.diag.message_detail == "Tried 127.0.0.1:1: Connection refused."

        remote.run(peer_uid=None)
        assert connection.execute("select tensile_predict('houses', t) from houses as t where id = 1").fetchone()
        (cluster.directory / "tls" / "tls.key").chmod(0o640)
        with database.connect(user="demo") as another, pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            another.execute("select tensile_predict('houses', t) from houses as t where id = 1")
        assert "tls.key has mode 0640: other system users could use it" in (caught.value.diag.message_detail or "")
        admin.execute("delete from tensile.workers where host = 'dead'")
