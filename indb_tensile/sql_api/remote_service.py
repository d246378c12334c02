"""A session's connection to a service of another host: TCP with TLS 1.3, where both sides show a certificate.

The database's host has three files in the directory of the setting tls_directory: `tls.crt` and `tls.key`, its own
certificate and key, and `ca.crt`, the authority whose services it trusts. A service announces its IP address, so no
session waits for a name server; the name in its certificate is announced apart. `ssl` is imported when a session
first needs it, because most sessions find a service on their own host.
"""

import errno
import os
import re
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .spi import Plpy, check_for_cancel

if TYPE_CHECKING:
    from ssl import SSLContext, SSLSocket

SLICE_S = 0.1  # longest wait before the session checks for a cancel request
CONNECT_S = 3.0  # a host that is switched off answers nothing
HANDSHAKE_S = 5.0  # a service that hangs accepts connections, because its kernel does
_SETTING = "tls_directory"


class RemoteFaultError(ConnectionError):
    """A service of another host cannot be used. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class RemoteService:
    """A service of another host, at `address`, whose certificate must be valid for `host_name`."""

    def __init__(self, address: str, host_name: str, directory: str | None) -> None:
        self.label = address
        self._host_name = host_name
        self._directory = directory

    def open(self, plpy: Plpy) -> "SSLSocket":
        """Return an encrypted connection, on which each wait takes SLICE_S at most.

        Raises RemoteFaultError, and the error of a cancel request that arrives meanwhile.
        """
        address = _parsed(self.label)
        context = _context(self._directory)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        plain = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _connect(plpy, plain, address)
            encrypted = context.wrap_socket(plain, server_hostname=self._host_name, do_handshake_on_connect=False)
        except OSError as error:
            raise self.fault(error) from None
        finally:
            plain.close()  # no effect after `wrap_socket`, which has taken the descriptor
        done = False
        try:
            _shake_hands(plpy, encrypted)
            done = True
        except OSError as error:
            raise self.fault(error) from None
        finally:
            if not done:
                encrypted.close()
        return encrypted

    def fault(self, error: OSError) -> RemoteFaultError:
        """Return what the error of a connection or its greeting means, with a way out."""
        import ssl

        if isinstance(error, RemoteFaultError):
            return error
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._refused_certificate(error)
        reason = str(getattr(error, "reason", None) or "")
        if "ALERT_PROTOCOL_VERSION" in reason:
            return RemoteFaultError("it does not speak TLS 1.3", "Update Python and OpenSSL on that host.")
        # In TLS 1.3 a client has ended its handshake when the service looks at its certificate, and asyncio sends no
        # reason before it closes the connection.
        if "ALERT" in reason or isinstance(error, ssl.SSLEOFError | ConnectionResetError):
            own = f"{self._directory}/tls.crt"
            return RemoteFaultError(
                f"it ended the connection, as it does if it refuses this server's certificate {own}",
                "The log of the service says why. The certificate must be valid today, for clients, and from the "
                f"authority in the service's ca.crt: openssl x509 -in {own} -noout -dates -issuer.",
            )
        if isinstance(error, ssl.SSLError):
            return RemoteFaultError("the process that listens there does not speak TLS", _NOT_TLS)
        return RemoteFaultError(error.strerror or str(error))

    def _refused_certificate(self, error: Any) -> RemoteFaultError:
        """Return the fault for a certificate of the service that this server does not accept."""
        code, words = error.verify_code, str(error.verify_message).rstrip(".")
        if code in (_NOT_YET_VALID, _EXPIRED):
            return RemoteFaultError(
                f"its certificate was refused: {words}",
                "Renew tls.crt on that host, in its TENSILE_SERVICE_TLS_DIRECTORY; its service reads the new file "
                "without a restart. Or correct the clock of this host.",
            )
        if code in _WRONG_NAME:
            return RemoteFaultError(
                f'its certificate is not valid for "{self._host_name}"',
                "Make its certificate with this name, or name another one of the certificate in "
                "TENSILE_SERVICE_HOST_NAME on that host.",
            )
        if code in _UNKNOWN_AUTHORITY:
            return RemoteFaultError(
                f"its certificate is not from the authority in {self._directory}/ca.crt: {words}",
                "Put the certificate of the authority that signed the service's certificate into that file.",
            )
        return RemoteFaultError(f"its certificate was refused: {words}", "Make a new certificate for that service.")


# Codes of OpenSSL's verification: X509_V_ERR_...
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_NAME = (62, 64)
_NOT_TLS = "See which process listens at that address, and the log of the service there."


def _parsed(address: str) -> tuple[str, int]:
    """Return host and port of an address that a worker has announced."""
    match = re.fullmatch(r"\[?([0-9A-Fa-f:.]+)\]?:(\d{1,5})", address)
    if match is None:  # a name would be looked up, which takes as long as the name server likes
        raise RemoteFaultError("its address is not an IP address with a port")
    return match[1], int(match[2])


def _context(directory: str | None) -> "SSLContext":
    """Return the rules of a connection, with the files of this host. They are read anew for each connection."""
    import ssl

    if not directory:
        raise RemoteFaultError(
            f"the setting {_SETTING} is not set",
            f"An administrator sets it: select tensile_set_setting('{_SETTING}', '\"/etc/tensile/tls\"').",
        )
    certificate, key, authority = (f"{directory}/{name}" for name in ("tls.crt", "tls.key", "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _read(key, lambda: _check_secrecy(key))
    _read(authority, lambda: context.load_verify_locations(authority))
    _read(certificate, lambda: os.stat(certificate))  # noqa: PTH116 - pathlib is slow to import
    # Without a password OpenSSL would ask for one on a terminal.
    _read(certificate, lambda: context.load_cert_chain(certificate, key, password=""), " with tls.key")
    return context


def _read(path: str, action: Callable[[], object], more: str = "") -> None:
    import ssl

    try:
        action()
    except RemoteFaultError:
        raise
    except ssl.SSLError as error:
        raise RemoteFaultError(
            f"{path}{more} cannot be used: {error.reason or error}",
            "Certificates and keys are PEM files, the key belongs to the certificate and has no password.",
        ) from None
    except OSError as error:
        raise RemoteFaultError(
            f"{path} cannot be read: {error.strerror}",
            f"The system user of the database server must be able to read the files of {_SETTING}.",
        ) from None


def _check_secrecy(key: str) -> None:
    """Raise RemoteFaultError if other system users can read the key. The rule is that of libpq."""
    facts = os.stat(key)  # noqa: PTH116 - pathlib is slow to import
    mode = facts.st_mode & 0o777
    if mode & (0o027 if facts.st_uid == 0 else 0o077):
        raise RemoteFaultError(
            f"{key} has mode {mode:04o}: other system users could use it", f"Run: chmod 0600 {key}"
        )


def _connect(plpy: Plpy, plain: socket.socket, address: tuple[str, int]) -> None:
    """Connect within CONNECT_S. The kernel ends the connection if its other host vanishes."""
    for level, name, value in _NOTICE_DEAD_HOSTS:
        if hasattr(socket, name):  # some exist on Linux alone
            plain.setsockopt(level, getattr(socket, name), value)
    plain.setblocking(False)
    code = plain.connect_ex(address)
    if code == errno.EINPROGRESS:
        answers = select.poll()
        answers.register(plain, select.POLLOUT)
        until_s = time.monotonic() + CONNECT_S
        while not answers.poll(SLICE_S * 1000):
            check_for_cancel(plpy)
            if time.monotonic() > until_s:
                raise RemoteFaultError(f"its host does not answer within {CONNECT_S:g} s")
        code = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    plain.settimeout(SLICE_S)


# A host without power sends no reset. A request may take long, so silence alone is no fault: this kernel asks the
# other one, first after 10 s, and gives up 15 s later.
_NOTICE_DEAD_HOSTS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 25_000),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
)


def _shake_hands(plpy: Plpy, encrypted: "SSLSocket") -> None:
    until_s = time.monotonic() + HANDSHAKE_S
    while True:
        try:
            encrypted.do_handshake()
        except TimeoutError:
            check_for_cancel(plpy)
            if time.monotonic() > until_s:
                message = f"it accepts connections but makes no TLS handshake within {HANDSHAKE_S:g} s"
                raise RemoteFaultError(message, _NOT_TLS) from None
        else:
            return
