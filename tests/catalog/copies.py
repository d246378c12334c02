"""Create, drop and copy databases on a test's own cluster."""

import subprocess
from typing import Any

import psycopg
from psycopg import sql

from indb_tensile.cluster import Cluster, find_programs


def new_database(cluster: Cluster, name: str) -> psycopg.Connection[Any]:
    """Create a database, and return a superuser's connection to it."""
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return psycopg.connect(cluster.dsn(database=name), autocommit=True)


def drop_database(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def copy_database(cluster: Cluster, source: str, target: str, *options: str) -> None:
    """Restore a dump of the source into the target. Stops at the first error."""
    programs = find_programs()
    dump = subprocess.run(
        [programs.path("pg_dump"), *options, "-d", cluster.dsn(database=source)], capture_output=True, check=False
    )
    assert dump.returncode == 0, dump.stderr.decode()
    psql = [programs.path("psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn(database=target)]
    restore = subprocess.run(psql, input=dump.stdout, capture_output=True, check=False)
    assert restore.returncode == 0, restore.stderr.decode()
