"""The embedded cluster: made whole or not at all, started again after every crash, for whichever system user."""

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
    """One value from the cluster's own database."""
    with psycopg.connect(cluster.dsn(user=user, database="postgres")) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def server_pid(cluster: Cluster) -> int:
    return int((cluster.data / "postmaster.pid").read_text().splitlines()[0])


@postgres
def test_a_cluster_of_an_earlier_version_lets_its_user_be_the_roles_that_came_later(private_cluster: Cluster) -> None:
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
    private_cluster.map_roles()  # of a server that runs, and has to read it again
    until(lambda: query(private_cluster, "select 1", user="tensile_reader") == 1, "the map to be read again")


@postgres
def test_it_recovers_from_whatever_a_crash_leaves_behind(private_cluster: Cluster) -> None:
    killed_initdb = private_cluster.directory / "new-killed"
    killed_initdb.mkdir(parents=True)
    (killed_initdb / "PG_VERSION").write_text("15\n")

    assert not private_cluster.exists()
    private_cluster.create()
    assert private_cluster.exists()
    assert not private_cluster.running()
    assert not killed_initdb.exists()
    private_cluster.start()
    private_cluster.start()  # runs already
    assert private_cluster.running()
    assert query(private_cluster, "select pg_postmaster_start_time() is not null") is True
    assert query(private_cluster, "select current_setting('listen_addresses')") == ""

    # The server and all its processes are killed at once, as by a loss of power.
    pid = server_pid(private_cluster)
    with psycopg.connect(private_cluster.dsn(database="postgres"), autocommit=True) as held:
        held.execute("create table survivor (n int)")
        os.kill(pid, signal.SIGKILL)
        until(lambda: ended(pid), "the server to be gone")
    assert (private_cluster.data / "postmaster.pid").exists()
    assert not private_cluster.running()

    # In the meantime its process number went to another process of the same user, as after a restart of a container.
    owner = {} if os.geteuid() != 0 else {"user": private_cluster.system_user}
    with subprocess.Popen(["sleep", "60"], **owner) as stranger:  # type: ignore[call-overload]
        for lock in (private_cluster.data / "postmaster.pid", private_cluster.run / ".s.PGSQL.5432.lock"):
            lock.write_text(lock.read_text().replace(str(pid), str(stranger.pid), 1))
        assert not private_cluster.running()
        private_cluster.start()
        assert private_cluster.running()
        assert query(private_cluster, "select count(*) from survivor") == 0
        assert stranger.poll() is None
        private_cluster.stop()
        private_cluster.stop()  # stopped already
        stranger.kill()
    assert not private_cluster.running()

    # What the server itself has to say is in the error.
    with (private_cluster.data / "tensile.conf").open("a") as configuration:
        configuration.write("shared_buffers = many\n")
    with pytest.raises(DatabaseError, match="pg_ctl start failed with exit code 1") as caught:
        private_cluster.start()
    assert 'invalid value for parameter "shared_buffers"' in caught.value.detail
    assert str(private_cluster.log) in caught.value.hint


@postgres
@as_root
def test_an_ordinary_system_user_has_a_cluster_of_its_own(place: Path) -> None:
    """As `nobody`: PostgreSQL runs as the one who asks, and only that one gets in, as the roles of the map."""
    nobody = pwd.getpwnam("nobody")
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    # Its own copy: the developer's interpreter and checkout may be closed to others.
    for name in ("errors.py", "__init__.py", "cluster.py"):
        source = Path(module.__file__).parent / name
        target = place / "lib" / "indb_tensile" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    shutil.copytree(Path(tenacity.__file__).parent, place / "lib" / "tenacity")
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
        env={"LIB": str(place / "lib"), "PLACE": str(place / "c"), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    cluster = Cluster(directory=place / "c", programs=find_programs(), system_user="nobody")
    try:
        assert cluster.running(), done.stderr
        # nobody came through peer authentication: only the role of that name is missing yet.
        assert 'role "demo" does not exist' in done.stderr
        with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
            psycopg.connect(cluster.dsn(database="postgres"))
    finally:
        cluster.stop(mode="immediate")


def test_a_folder_that_is_no_cluster_is_left_alone(private_cluster: Cluster) -> None:
    precious = private_cluster.data / "precious"
    precious.mkdir(parents=True)
    with pytest.raises(DatabaseError, match="exists already and is not a cluster"):
        private_cluster.create()
    assert precious.exists()
    assert not private_cluster.exists()


@pytest.mark.parametrize("name", ["a,b", 'say"so', "it's", "$HOME", "back`tick", "back\\slash", "100%", "new\nline"])
def test_a_path_that_the_programs_misread_is_refused(name: str) -> None:
    assert "has a character that PostgreSQL's programs do not take" in path_fault(Path("/srv") / name)


def test_a_sockets_path_may_have_107_bytes_and_no_more() -> None:
    rest = len("/run/.s.PGSQL.5432")
    assert path_fault(Path("/" + "x" * (106 - rest))) == ""
    assert "would have more than 107 bytes" in path_fault(Path("/" + "x" * (107 - rest)))
    assert "would have more than 107 bytes" in path_fault(Path("/" + "ä" * 60))  # bytes, not characters


def test_a_version_that_is_not_installed_is_named() -> None:
    with pytest.raises(DatabaseError, match="the embedded cluster belongs to PostgreSQL 99") as caught:
        find_programs(99)
    assert "postgresql-99" in caught.value.hint
    assert find_programs(find_programs().major) == find_programs()


def test_a_server_is_told_from_a_process_that_has_its_number(tmp_path: Path) -> None:
    recorded = tmp_path / "postmaster.pid"
    assert not module._is_server_of(recorded)
    for text in ("", "no number\n/data\n", "12\n", f"{os.getpid()}\n/data\n", "4194305\n/data\n"):
        recorded.write_text(text)
        assert not module._is_server_of(recorded)


def test_only_a_number_in_use_is_taken_out_of_a_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    module._clear_process_id(lock)
    assert not lock.exists()
    lock.write_text("4194300\n/data\n1\n2\n")
    module._clear_process_id(lock)
    assert lock.read_text() == "4194300\n/data\n1\n2\n"
    lock.write_text(f"{os.getpid()}\n/data\n1\n2\n")
    module._clear_process_id(lock)
    assert lock.read_text() == "4194305\n/data\n1\n2\n"
