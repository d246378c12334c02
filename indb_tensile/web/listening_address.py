"""Where the page listens: on the loopback interface, or publicly with TLS and by an explicit option."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.errors import RequestError

_DEFAULT_PORT = 8080
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningAddress:
    """An address with its certificate, and the names by which browsers may call it.

    `host` is an IP address. `certificate` and `key` are PEM files, or both None for plain HTTP.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()

    @property
    def is_encrypted(self) -> bool:
        """True if browsers speak TLS with the page."""
        return self.certificate is not None

    @property
    def hosts(self) -> frozenset[str]:
        """The values of the header Host that requests may have, in lower case.

        A page of a foreign site that a browser was led to by a changed DNS entry has another one (DNS rebinding).
        """
        names = {_bracketed(self.host), *self.names}
        if ipaddress.ip_address(self.host).is_loopback:
            names |= set(_LOOPBACK_NAMES)
        standard = 443 if self.is_encrypted else 80
        hosts = {f"{name}:{self.port}" for name in names}
        return frozenset(name.lower() for name in (hosts | names if self.port == standard else hosts))

    @property
    def origin(self) -> str:
        """The address as people type it, without a path."""
        name = self.names[0] if self.names else _bracketed(self.host)
        return f"{'https' if self.is_encrypted else 'http'}://{name}:{self.port}"


def listening_address(
    listen: str, *, public: bool, certificate: Path | None, key: Path | None, names: tuple[str, ...] = ()
) -> ListeningAddress:
    """Check the options of `tensile web` and return the address.

    Raises RequestError for a text that is no address, for an address beyond loopback without `public`, a certificate
    and a key, and for files that cannot be read.
    """
    host, port = _split(listen)
    if (certificate is None) != (key is None):
        missing = "--key" if key is None else "--certificate"
        raise RequestError(f"TLS needs a certificate and its key, and {missing} is missing")
    for path in (certificate, key):
        if path is not None:
            _check_readable(path)
    if not ipaddress.ip_address(host).is_loopback:
        _check_public(listen, public=public, encrypted=certificate is not None, names=names)
    return ListeningAddress(host=host, port=port, certificate=certificate, key=key, names=names)


def _check_public(listen: str, *, public: bool, encrypted: bool, names: tuple[str, ...]) -> None:
    if not public:
        raise RequestError(
            f"--listen {listen} can be reached from other machines",
            hint="Listen on 127.0.0.1 and use an SSH tunnel (ssh -L 8080:127.0.0.1:8080 HOST), or add --public with "
            "--certificate and --key.",
        )
    if not encrypted:
        raise RequestError(
            f"--listen {listen} can be reached from other machines, and passwords and tokens would cross the network "
            "in plain text",
            hint="Add --certificate and --key, the PEM files of a TLS certificate.",
        )
    if not names:
        raise RequestError(
            f"--listen {listen} can be reached from other machines, and --host-name is missing",
            hint="Name each host name that browsers use for this page, as in --host-name gpu.example.org: requests "
            "with another name are refused.",
        )


def _split(listen: str) -> tuple[str, int]:
    host, colon, port_text = listen.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port_text = listen, str(_DEFAULT_PORT)
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise RequestError(
            f'--listen {listen}: "{host}" is no IP address', hint="Write it as 127.0.0.1:8080 or [::1]:8080."
        ) from None
    if not port_text.isascii() or not port_text.isdigit() or not 0 <= int(port_text) <= 65535:
        raise RequestError(
            f'--listen {listen}: "{port_text}" is no port',
            hint="A port is a number from 1 to 65535; 0 takes a free one.",
        )
    return host, int(port_text)


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise RequestError(f"the file {path} cannot be read: {error.strerror}") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
