"""The TLS files of a service: its certificate and key, and the certificate of its clients' authority.

Only TLS 1.3 is spoken, which has neither renegotiation nor weak ciphers to turn off. No older version is needed,
because both ends of a connection belong to this project.
"""

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from indb_tensile.errors import RequestError, TensileError

_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for
_NAMES = ("tls.crt", "tls.key", "ca.crt")  # as in a TLS secret of Kubernetes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The time in which a certificate is valid."""

    begin: datetime
    end: datetime

    def fault(self, now: datetime) -> str:
        """Return why the certificate is not valid now, or an empty text."""
        if now < self.begin:
            return f"is not valid before {self.begin:%Y-%m-%d %H:%M} UTC"
        return f"has expired on {self.end:%Y-%m-%d %H:%M} UTC" if now >= self.end else ""


class ServiceCertificates:
    """The files in a service's directory. A file that is replaced is read again, without a restart of the service.

    Raises RequestError that names a file which is missing, can be read by others, or cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stamps = self._read_stamps()
        self._context = server_context(directory)

    def context(self) -> ssl.SSLContext:
        """Return the rules for the next connection."""
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = server_context(self._directory)
                log.info("the certificate in %s was read again", self._directory)
            except RequestError as error:  # key and certificate are replaced one after the other, and may not fit yet
                log.warning("%s; the previous certificate stays in use", error.message)
        return self._context

    def _read_stamps(self) -> tuple[tuple[int, int], ...]:
        return tuple(_stamp(self._directory / name) for name in _NAMES)


def server_context(directory: Path) -> ssl.SSLContext:
    """Return the rules of a service's connections: a client needs a certificate of the authority in ca.crt.

    Raises RequestError that names a file which is missing, can be read by others, or cannot be used.
    """
    certificate, key, authority = (directory / name for name in _NAMES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a client shows its certificate on each connection
    _use(key, lambda: _check_secrecy(key))
    _use(authority, lambda: context.load_verify_locations(authority))
    _use(certificate, certificate.stat)
    # Without a password OpenSSL would ask for one on a terminal.
    _use(certificate, lambda: context.load_cert_chain(certificate, key, password=""), " with tls.key")
    return context


def validity(directory: Path, host_name: str) -> Validity:
    """Return how long the service's certificate is valid, expired or not.

    Raises RequestError if it is not valid for this name or not for servers. Which authority has signed it does not
    matter, because the clients decide that. The certificate is read in a handshake within this process.
    """
    certificate, key, _ = (directory / name for name in _NAMES)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    _use(certificate, lambda: server.load_cert_chain(certificate, key, password=""), " with tls.key")
    _use(certificate, lambda: client.load_verify_locations(certificate))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host_name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in (*ends, *ends):  # the handshake takes two turns of each end
            _step(end)
    except ssl.SSLCertVerificationError as error:
        raise RequestError(
            f"the certificate {certificate} cannot be the service's: {error.verify_message.rstrip('.')}",
            hint=f'It must be valid for servers, and for "{host_name}": the name in TENSILE_SERVICE_HOST_NAME, or '
            "the address of the service.",
        ) from None
    facts = ends[0].getpeercert() or {}
    first, last = (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(str(facts[name])), UTC) for name in ("notBefore", "notAfter")
    )
    return Validity(begin=first, end=last)


def _step(end: ssl.SSLObject) -> None:
    with suppress(ssl.SSLWantReadError):  # the other end's turn
        end.do_handshake()


def _use(path: Path, action: Callable[[], object], more: str = "") -> None:
    """Do something with a file. Raises RequestError that names the file."""
    try:
        action()
    except TensileError:
        raise
    except ssl.SSLError as error:
        raise RequestError(
            f"{path}{more} cannot be used: {error.reason or error}",
            hint="Certificates and keys are PEM files, the key belongs to the certificate and has no password.",
        ) from None
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}",
            hint="TENSILE_SERVICE_TLS_DIRECTORY is the directory with tls.crt, tls.key and ca.crt.",
        ) from None


def _check_secrecy(key: Path) -> None:
    """Raise RequestError if other system users can read the key. The rule is that of libpq."""
    facts = key.stat()
    mode = facts.st_mode & 0o777
    if mode & (0o027 if facts.st_uid == 0 else 0o077):
        raise RequestError(
            f"{key} has mode {mode:04o}: other system users could use it", hint=f"Run: chmod 0600 {key}"
        )


def _stamp(path: Path) -> tuple[int, int]:
    """Return a value that differs once the file's bytes or its mode have changed, or another file has its name."""
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_ctime_ns, facts.st_ino
