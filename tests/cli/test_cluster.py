"""Check the embedded cluster: its creation, restarts after crashes, its system user, and refused paths."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
import tenacity

from indb_tensile import cluster as module
from indb_tensile.cluster import Cluster, find_programs, path_fault
from indb_tensile.errors import DatabaseError
from tests.cli.conftest import as_root, ended, until

postgres = pytest.mark.postgres


def query(cluster: Cluster, statement: str, user: str = "postgres") -> object:
    """Return one value from the cluster's own database."""
    with psycopg.connect(cluster.dsn(user=user, database="postgres")) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def server_pid(cluster: Cluster) -> int:
    return int((cluster.data / "postmaster.pid").read_text().splitlines()[0])


@pytest.mark.nightly
@postgres
def test_map_of_an_older_cluster_gets_the_new_roles(private_cluster: Cluster) -> None:
    private_cluster.create(roles=("postgres", "tensile_worker", "demo"))
    identities = private_cluster.data / "pg_ident.conf"
    before = identities.read_text()
    private_cluster.map_roles()
    private_cluster.start()
    with psycopg.connect(private_cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("create role tensile_reader login")
    assert query(private_cluster, "select current_user::text", user="tensile_reader") == "tensile_reader"
    after = identities.read_text()
    assert after.startswith(before)
    assert set(after[len(before) :].splitlines()) == {
        f'tensile "{user}" tensile_reader'
        for user in {pwd.getpwuid(os.geteuid()).pw_name, private_cluster.system_user}
    }
    private_cluster.map_roles()
    assert identities.read_text() == after

    identities.write_text(before)
    private_cluster.map_roles()  # the running server must read the map again
    until(lambda: query(private_cluster, "select 1", user="tensile_reader") == 1, "the map to be read again")


@pytest.mark.nightly
@postgres
def test_cluster_starts_again_after_crashes(private_cluster: Cluster) -> None:
    killed_initdb = private_cluster.directory / "new-killed"
    killed_initdb.mkdir(parents=True)
    (killed_initdb / "PG_VERSION").write_text("15\n")

    assert not private_cluster.exists()
    private_cluster.create()
    assert private_cluster.exists()
    assert not private_cluster.running()
    assert not killed_initdb.exists()
    private_cluster.start()
    private_cluster.start()  # the cluster runs already
    assert private_cluster.running()
    assert query(private_cluster, "select pg_postmaster_start_time() is not null") is True
    assert query(private_cluster, "select current_setting('listen_addresses')") == ""

    # Kill the server, like a loss of power.
    pid = server_pid(private_cluster)
    with psycopg.connect(private_cluster.dsn(database="postgres"), autocommit=True) as session:
        session.execute("create table survivor (n int)")
        os.kill(pid, signal.SIGKILL)
        until(lambda: ended(pid), "the server to be gone")
    assert (private_cluster.data / "postmaster.pid").exists()
    assert not private_cluster.running()

    # Another process of the same user gets the server's process id, like after a restart of a container.
    owner = {} if os.geteuid() != 0 else {"user": private_cluster.system_user}
    with subprocess.Popen(["sleep", "60"], **owner) as other_process:  # type: ignore[call-overload]
        for lock in (private_cluster.data / "postmaster.pid", private_cluster.run / ".s.PGSQL.5432.lock"):
            lock.write_text(lock.read_text().replace(str(pid), str(other_process.pid), 1))
        assert not private_cluster.running()
        private_cluster.start()
        assert private_cluster.running()
        assert query(private_cluster, "select count(*) from survivor") == 0
        assert other_process.poll() is None
        private_cluster.stop()
        private_cluster.stop()  # the cluster is stopped already
        other_process.kill()
    assert not private_cluster.running()

    # The error contains the server's own message.
    with (private_cluster.data / "tensile.conf").open("a") as configuration:
        configuration.write("shared_buffers = many\n")
    with pytest.raises(DatabaseError, match="pg_ctl start failed with exit code 1") as caught:
        private_cluster.start()
    assert 'invalid value for parameter "shared_buffers"' in caught.value.detail
    assert str(private_cluster.log) in caught.value.hint


@pytest.mark.nightly
@postgres
@as_root
def test_ordinary_system_user_has_its_own_cluster(open_directory: Path) -> None:
    """PostgreSQL runs as the caller, here `nobody`, and only this user may connect, as the roles of the map."""
    nobody = pwd.getpwnam("nobody")
    os.chown(open_directory, nobody.pw_uid, nobody.pw_gid)
    # `nobody` gets a copy of the modules, because the checkout may be closed to other users.
    for name in ("errors.py", "__init__.py", "cluster.py"):
        source = Path(module.__file__).parent / name
        target = open_directory / "lib" / "indb_tensile" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    shutil.copytree(Path(tenacity.__file__).parent, open_directory / "lib" / "tenacity")
    program = """
import os, sys
sys.path.insert(0, os.environ["LIB"])
sys.modules["psycopg.conninfo"] = type(sys)("psycopg.conninfo")
sys.modules["psycopg.conninfo"].make_conninfo = lambda **words: " ".join(f"{k}={v}" for k, v in words.items())
from pathlib import Path
from indb_tensile.cluster import Cluster, find_programs, system_user
assert system_user() == "nobody"
cluster = Cluster(directory=Path(os.environ["PLACE"]), programs=find_programs(), system_user=system_user())
cluster.create()
cluster.start()
assert cluster.running()
psql = cluster.programs.path("psql")
os.execv(psql, [psql, cluster.dsn(user="demo", database="postgres"), "-c", ""])
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", program],
        user="nobody", group=nobody.pw_gid, extra_groups=[], capture_output=True, text=True, cwd="/", check=False,
        env={"LIB": str(open_directory / "lib"), "PLACE": str(open_directory / "c"), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    cluster = Cluster(directory=open_directory / "c", programs=find_programs(), system_user="nobody")
    try:
        assert cluster.running(), done.stderr
        # The user `nobody` passed peer authentication. Only the role demo is missing.
        assert 'role "demo" does not exist' in done.stderr
        with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
            psycopg.connect(cluster.dsn(database="postgres"))
    finally:
        cluster.stop(mode="immediate")


def test_folder_that_is_no_cluster_is_not_changed(private_cluster: Cluster) -> None:
    precious = private_cluster.data / "precious"
    precious.mkdir(parents=True)
    with pytest.raises(DatabaseError, match="exists already and is not a cluster"):
        private_cluster.create()
    assert precious.exists()
    assert not private_cluster.exists()


@pytest.mark.parametrize("name", ["a,b", 'say"so', "it's", "$HOME", "back`tick", "back\\slash", "100%", "new\nline"])
def test_path_with_special_characters_is_refused(name: str) -> None:
    assert "has a character that PostgreSQL's programs do not take" in path_fault(Path("/srv") / name)


def test_path_of_a_socket_has_at_most_107_bytes() -> None:
    rest = len("/run/.s.PGSQL.5432")
    assert path_fault(Path("/" + "x" * (106 - rest))) == ""
    assert "would have more than 107 bytes" in path_fault(Path("/" + "x" * (107 - rest)))
    assert "would have more than 107 bytes" in path_fault(Path("/" + "ä" * 60))  # bytes, not characters


def test_missing_version_of_postgresql_is_named() -> None:
    with pytest.raises(DatabaseError, match="the embedded cluster belongs to PostgreSQL 99") as caught:
        find_programs(99)
    assert "postgresql-99" in caught.value.hint
    assert find_programs(find_programs().major) == find_programs()


def test_process_with_a_servers_old_id_is_not_the_server(tmp_path: Path) -> None:
    recorded = tmp_path / "postmaster.pid"
    assert not module._is_server_of(recorded)
    for text in ("", "no number\n/data\n", "12\n", f"{os.getpid()}\n/data\n", "4194305\n/data\n"):
        recorded.write_text(text)
        assert not module._is_server_of(recorded)


def test_only_an_id_in_use_is_removed_from_a_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    module._clear_process_id(lock)
    assert not lock.exists()
    lock.write_text("4194300\n/data\n1\n2\n")
    module._clear_process_id(lock)
    assert lock.read_text() == "4194300\n/data\n1\n2\n"
    lock.write_text(f"{os.getpid()}\n/data\n1\n2\n")
    module._clear_process_id(lock)
    assert lock.read_text() == "4194305\n/data\n1\n2\n"
