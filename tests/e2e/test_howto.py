"""Check that the statements and commands of the how-to page work as they are written there."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from safetensors.numpy import load_file

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.cluster import temporary_cluster
from tests.docs.pages import ROOT, Page
from tests.e2e.conftest import Service
from tests.open_directory import open_directory

pytestmark = pytest.mark.postgres

PAGE = Page(ROOT / "docs" / "user" / "howto.md")
BIN = Path(sys.executable).parent
SMALL = """
select tensile_load_dataset('digits');
select tensile_create_model('digits', '{"type": "mlp", "hidden": [16]}', '{"epochs": 2}');
"""


def blocks(info: str) -> list[str]:
    """Return the page's code blocks with this info string, in their order."""
    return [f"{block.text}\n" for block in PAGE.blocks if block.info == info]


def shell(service: Service, command: str, directory: Path) -> str:
    """Run the command in a shell with `tensile` on its path and TENSILE_DSN set, and return its output."""
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TENSILE_DSN": service.database.dsn("demo"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        ["sh", "-euc", command], env=environment, capture_output=True, text=True, check=False, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_commands_of_the_how_to_page_work_as_written(service: Service, tmp_path: Path) -> None:
    service.settings |= {"TENSILE_CAPACITY_BYTES": str(256 << 20)}
    service.start()
    with service.database.connect("demo") as demo:
        for statement in SMALL.strip().splitlines():
            demo.execute(statement)
        for deploy in ("if_better", "always"):
            row = demo.execute("select tensile_train('digits', 'digits', deploy => %s)", (deploy,)).fetchone()
            assert row is not None
            assert service.until_ended(row[0]) == ["succeeded"]
        for block in blocks("sql"):
            demo.execute(block)
        scored = demo.execute("select count(*), count(*) filter (where p.digit = s.digit) from digits_scored as s "
                              "join digits_scored_in_portions as p using (id)").fetchone()  # fmt: skip
        assert scored == (1797, 1797)
        assert demo.execute("select deployed from tensile.model_list where model = 'digits'").fetchone() == (1,)
    for block in blocks("sql as=superuser"):
        service.connection.execute(block)

    (export,) = (block for block in blocks("sh") if "safetensors" in block)
    shell(service, export, tmp_path)
    assert load_file(tmp_path / "digits.safetensors")

    (line,) = blocks("cron")
    command = line.split(maxsplit=5)[5].replace(r"\%", "%").replace('--dsn "host=db dbname=app user=alice"', "")
    shell(service, command, tmp_path)
    shell(service, command, tmp_path)  # a second time in the same night
    (keys,) = service.connection.execute("select count(*) from tensile.jobs where idempotency_key like 'digits %'")
    assert keys == (1,)


def test_uninstallation_leaves_only_the_users_own_objects() -> None:
    with open_directory("suite-howto-") as directory, temporary_cluster(within=directory) as cluster:
        with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as maintenance:
            maintenance.execute("create database tensile")
        with connect(cluster.dsn(), application_name="test") as connection:
            install.install(connection)
        with psycopg.connect(cluster.dsn(), autocommit=True) as superuser:
            superuser.execute("create table kept (a integer); grant select on kept to tensile_reader")
            superuser.execute("create function public.tensile_of_mine() returns integer return 1")
            superuser.execute("create role alice; alter function tensile_of_mine() owner to alice")
            for block in blocks("sql as=superuser uninstall"):
                superuser.execute(block)
            schemas = superuser.execute("select nspname from pg_namespace where nspname like 'tensile%'").fetchall()
            roles = superuser.execute("select rolname from pg_roles where rolname like 'tensile%'").fetchall()
            functions = superuser.execute("select proname from pg_proc where proname like 'tensile%'").fetchall()
            assert (schemas, roles, functions) == ([], [], [("tensile_of_mine",)])
            assert superuser.execute("select count(*) from kept").fetchone() == (0,)
            superuser.execute("select public.tensile_of_mine()")
