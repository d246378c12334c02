"""The settings of the service, beyond those that it shares with the controller."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from indb_tensile import config, settings_loader
from indb_tensile.errors import RequestError
from indb_tensile.job import WorkerId
from indb_tensile.units import parse_bytes

RESIDENT_BYTES = config.GIB
PRIMARY_VARIABLE = "TENSILE_SERVICE_PRIMARY_DSN"  # set by `tensile service --read-only --primary-dsn`
READ_ONLY_VARIABLE = "TENSILE_SERVICE_READ_ONLY"  # not empty: set by `tensile service --read-only`


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The settings of one service; `shared` are those of its controller.

    `worker` is the controller that started the service; None for a service that only reads, on a hot standby.
    `peer_uid` is the system user whose connections are answered; None means the user that runs the database server.
    `primary_dsn` connects a service that only reads with the primary, whose catalog then counts its predictions.
    `resident_bytes` limits the weights kept in memory. The model used last is kept even if it is larger.
    """

    shared: config.Settings
    worker: WorkerId | None
    peer_uid: int | None = None
    resident_bytes: int = RESIDENT_BYTES
    primary_dsn: str = ""

    @property
    def directory(self) -> Path:
        """The directory of the socket. A service that only reads takes it from the catalog (standby.py)."""
        return Path(self.shared.service_directory)

    @property
    def host_name(self) -> str:
        """The name for which the certificate must be valid."""
        return self.shared.service_host_name or config.split_address(self.shared.service_address)[0]


def load(environ: Mapping[str, str]) -> ServiceSettings:
    """Read the settings from the environment. Raises RequestError that names a wrong or missing setting."""
    shared = settings_loader.load(environ)
    read_only = bool(environ.get(READ_ONLY_VARIABLE))
    if not shared.has_service and not read_only:
        raise RequestError(
            "the service has no directory for its socket and no address",
            hint=f"Set {config.variable('service_directory')} or {config.variable('service_address')}. "
            "A controller sets them for the service that it starts.",
        )
    return ServiceSettings(
        shared=shared,
        worker=None if read_only else WorkerId(_number(environ, "TENSILE_WORKER_ID")),
        peer_uid=_number(environ, "TENSILE_SERVICE_PEER_UID") if environ.get("TENSILE_SERVICE_PEER_UID") else None,
        resident_bytes=_size(environ, "TENSILE_SERVICE_RESIDENT_BYTES"),
        primary_dsn=environ.get(PRIMARY_VARIABLE, "") if read_only else "",
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise RequestError(f"{name} is {text!r}: a whole number is needed")
    return int(text)


def _size(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    try:
        return parse_bytes(text) if text else RESIDENT_BYTES
    except ValueError:
        raise RequestError(f"{name} is {text!r}: a size such as 512MB or 2GB is needed") from None
