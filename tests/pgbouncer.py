"""Run PgBouncer in front of a test's database, as a process of its own that listens on a Unix socket only."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.conftest import ROLES, Database

DEADLINE_S = 60.0
_PORT = 6432


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A database that is reached through PgBouncer."""

    directory: Path
    database: Database

    def dsn(self, user: str) -> str:
        """Return a connection string for one of ROLES."""
        return make_conninfo(host=str(self.directory), port=_PORT, user=user, dbname=self.database.name)

    def connect(self, user: str) -> psycopg.Connection:
        """Return a connection in autocommit mode that prepares no statement on the server."""
        return psycopg.connect(self.dsn(user), autocommit=True, prepare_threshold=None)


@contextmanager
def pooled(database: Database, mode: str, settings: str = "") -> Iterator[Pooled]:
    """Run PgBouncer with this pool_mode. PgBouncer refuses to run as root, so the cluster's system user runs it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "pgbouncer is not installed: sh tests/run.sh installs it"
    directory = Path(tempfile.mkdtemp(prefix="tensile-pgbouncer-"))
    directory.chmod(0o755)
    users, configuration, log = directory / "users.txt", directory / "pgbouncer.ini", directory / "pgbouncer.log"
    users.write_text("".join(f'"{role}" ""\n' for role in ROLES))
    configuration.write_text(
        f"[databases]\n* = host={database.cluster.run} port=5432\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {directory}\n"
        f"auth_type = trust\nauth_file = {users}\npool_mode = {mode}\nlogfile = {log}\n{settings}"
    )
    user = database.cluster.system_user
    as_root = os.geteuid() == 0
    if as_root:
        for path in (directory, users, configuration):
            shutil.chown(path, user)
    identity: dict[str, Any] = {"user": user, "extra_groups": []} if as_root else {}
    process = subprocess.Popen([program, "-q", str(configuration)], cwd="/", **identity)
    try:
        pool = Pooled(directory=directory, database=database)
        _wait_until_open(pool, process, log)
        yield pool
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _wait_until_open(pool: Pooled, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            pool.connect("postgres").close()
        except psycopg.OperationalError as error:
            reason = log.read_text() if log.exists() else str(error)
            assert process.poll() is None, reason
            assert time.monotonic() < deadline, reason
            time.sleep(0.02)  # between two attempts; the deadline decides the outcome
        else:
            return
