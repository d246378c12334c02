"""Logs a database role in by its password, which the server checks and the page forgets.

A connection that the server grants without asking for the password is refused: it shows who runs `tensile web`, not
who sits before the browser.
"""

import ipaddress

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from indb_tensile.catalog.connection import Connection, UnreachableError, connect
from indb_tensile.errors import PrivilegeError
from indb_tensile.monitor.viewer import Viewer

_APPLICATION = "tensile web"


def log_in(dsn: str, role: str, password: str) -> Viewer:
    """Return a viewer for this role.

    Raises PrivilegeError if the role, its password or the way to the server is not good enough, and UnreachableError
    if there is no server.
    """
    connections = []
    try:
        for _ in range(2):
            connections.append(_open(dsn, role, password))
        reading, acting = connections
        return Viewer((reading, acting), reopen=None)
    except BaseException:
        for connection in connections:
            connection.close()
        raise


def _open(dsn: str, role: str, password: str) -> Connection:
    # `passfile` and a service could supply another password than the one that was typed.
    parameters = {
        name: value for name, value in conninfo_to_dict(dsn).items() if name not in ("password", "passfile")
    }
    conninfo = make_conninfo("", **{**parameters, "user": role, "password": password, "passfile": "/dev/null"})
    try:
        connection = connect(conninfo, application_name=_APPLICATION, callers_path=True)
    except UnreachableError as error:
        if "authentication failed" in error.message or "does not exist" in error.message:
            raise PrivilegeError("the server does not accept this role with this password") from None
        raise
    try:
        _check(connection, role)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: Connection, role: str) -> None:
    if not connection.pgconn.used_password:
        raise PrivilegeError(
            f'the server lets role "{role}" in from here without a password, so a password proves nothing',
            hint="Set the method scram-sha-256 for this role and this host in the server's pg_hba.conf.",
        )
    if not (connection.pgconn.ssl_in_use or _is_local(connection)):
        raise PrivilegeError(
            "the way to the server is not encrypted, so the password could be read on it",
            hint="Add sslmode=require to the connection string of tensile web.",
        )


def _is_local(connection: Connection) -> bool:
    address = connection.info.hostaddr
    return not address or ipaddress.ip_address(address).is_loopback
