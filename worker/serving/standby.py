"""Finds the socket directory of a read-only service: that of a hot standby, which no controller has started.

Nothing can be written on a standby, so the service cannot announce its socket. Its sessions compute the socket's name
and take its directory from the setting socket_directory, which is replicated (sql_api/service_connection.py).
"""

from pathlib import Path

from indb_tensile.catalog.jobs import StandbyFacts
from indb_tensile.errors import RequestError, UnavailableError, UnsupportedError


class NoAnalyst:
    """Stands for the analyst in a service that only reads. The device of trainings is another host's."""

    pid: int | None = None

    async def start(self) -> None:
        """Start nothing."""

    async def ask(self, body: bytes) -> bytes:
        """Refuse the request."""
        raise UnsupportedError(
            "a hot standby answers predictions and evaluations only", hint="Connect to the primary server."
        )

    def stop(self) -> int | None:
        """Return None, because no process runs."""
        return None


def standby_directory(facts: StandbyFacts) -> Path:
    """Return the directory of the socket. Raises an error if the server is no standby, or if no directory is set."""
    if not facts.in_recovery:
        raise RequestError(
            "the database server is not a hot standby",
            hint="Start a controller: tensile controller. It starts a service of its own.",
        )
    if not facts.socket_directory:
        raise UnavailableError(
            "the setting socket_directory is not set",
            hint="Set it on the primary, as an administrator: "
            "select tensile_set_setting('socket_directory', '\"/run/tensile\"').",
        )
    return Path(facts.socket_directory)
