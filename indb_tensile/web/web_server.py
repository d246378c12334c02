"""Runs the page: opens the viewer of whoever started it, listens, and serves until a signal ends it."""

import logging
import socket
from collections.abc import Callable

import uvicorn

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.errors import RequestError
from indb_tensile.monitor.viewer import Viewer
from indb_tensile.web.application import LoginMethod, application
from indb_tensile.web.bounded_connection import BoundedConnection
from indb_tensile.web.handshake_limit import HandshakeLimitLoop
from indb_tensile.web.listening_address import ListeningAddress
from indb_tensile.web.login_links import LoginLinks
from indb_tensile.web.metrics_exporter import exporter
from indb_tensile.web.password_login import log_in
from indb_tensile.web.request_guard import RequestGuard

log = logging.getLogger("web")

_APPLICATION = "tensile web"
_SHUTDOWN_S = 2  # longest time for which open streams delay the shutdown
_MOST_CONNECTIONS = 1000


def serve(
    dsn: str,
    address: ListeningAddress,
    *,
    by_password: bool,
    with_metrics: bool,
    announce: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    `announce` gets each login link, which only whoever started the page may see; `tell` gets other lines for the
    terminal. Raises DatabaseError for a database that cannot be used, and RequestError for an address that is taken.
    """
    starter = _starter(dsn)
    try:
        with _listen(address) as listener:
            bound = ListeningAddress(
                host=address.host,
                port=listener.getsockname()[1],
                certificate=address.certificate,
                key=address.key,
                names=address.names,
            )
            login_method = _login_method(dsn, starter, bound, by_password=by_password, announce=announce)
            page = application(
                login_method,
                hosts=bound.hosts,
                encrypted=bound.is_encrypted,
                metrics=exporter(starter) if with_metrics else None,
            )
            if by_password:
                tell(f"open {bound.origin}/ and log in as a role of the database")
            if with_metrics:
                tell(f"metrics, without a login, as role {starter.role} sees them: {bound.origin}/metrics")
            if login_method.links is not None:
                login_method.links.start()
            # At shutdown the streams of open pages are cut off, which the server would log as an error each time.
            logging.getLogger("uvicorn.error").addFilter(
                lambda record: "graceful shutdown" not in record.getMessage()
            )
            uvicorn.Server(server_config(page, bound)).run(sockets=[listener])
    finally:
        starter.close()


def server_config(page: RequestGuard, address: ListeningAddress) -> uvicorn.Config:
    """Return how the page is served."""
    return uvicorn.Config(
        page,
        http=BoundedConnection,
        loop=f"{HandshakeLimitLoop.__module__}:{HandshakeLimitLoop.__qualname__}",
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
        log_config=None,
        access_log=False,  # addresses contain login links
        server_header=False,
        proxy_headers=False,  # a header must not change whose address failed logins are counted for
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=32 * 1024,
        ws="none",
    )


def _starter(dsn: str) -> Viewer:
    def open_connection() -> Connection:
        return connect(dsn, application_name=_APPLICATION, callers_path=True)

    reading = open_connection()
    try:
        install.check_version(reading)
        return Viewer((reading, open_connection()), reopen=open_connection)
    except BaseException:
        reading.close()
        raise


def _login_method(
    dsn: str, starter: Viewer, address: ListeningAddress, *, by_password: bool, announce: Callable[[str], None]
) -> LoginMethod:
    if by_password:
        return LoginMethod(check_password=lambda role, password: log_in(dsn, role, password))
    links = LoginLinks(lambda token: announce(f"{address.origin}/enter?link={token}"))
    return LoginMethod(links=links, starter=starter)


def _listen(address: ListeningAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise RequestError(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror}",
            hint="Choose another port with --listen, or 0 for a free one.",
        ) from error
    return listener
