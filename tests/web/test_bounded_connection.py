"""Silent and slow connections end, and one address cannot take all connections."""

from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from indb_tensile.web.bounded_connection import MOST_OF_ADDRESS, REQUEST_S, BoundedConnection, network_of


class Timer:
    """A call that is due later."""

    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s, self.call, self.cancelled = due_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Task:
    """A task that never ends."""

    def add_done_callback(self, _: object) -> None: ...


class Loop:
    """An event loop whose time the test sets. It runs no task."""

    def __init__(self) -> None:
        self.now_s, self.timers = 0.0, list[Timer]()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def create_task(self, work: Any, **_: Any) -> "Task":
        work.close()
        return Task()

    def wait(self, until_s: float) -> None:
        self.now_s = until_s
        for timer in self.timers:
            if not timer.cancelled and timer.due_s <= until_s:
                timer.call()


class Transport:
    """The client's end."""

    def __init__(self, address: str) -> None:
        self.address, self.aborted = address, False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": (self.address, 5)}.get(name, default)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Server:
    """Connections of one server."""

    def __init__(self) -> None:
        self.loop, self.state = Loop(), ServerState()
        self.config = uvicorn.Config(
            _never_run, interface="asgi3", http=BoundedConnection, log_config=None, lifespan="off", ws="none"
        )
        self.config.load()

    def connect(self, address: str = "192.0.2.1") -> tuple[BoundedConnection, Transport]:
        made = BoundedConnection(self.config, self.state, {}, _loop=self.loop)  # type: ignore[arg-type]
        transport = Transport(address)
        made.connection_made(transport)  # type: ignore[arg-type]
        return made, transport


async def _never_run(scope: Any, receive: Any, send: Any) -> None: ...


WHOLE = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.parametrize("parts", [(), (b"GET / HT",), (HEAD,), (HEAD, b"abc")])
def test_a_connection_without_a_whole_request_ends_and_trickled_bytes_gain_no_time(parts: tuple[bytes, ...]) -> None:
    server = Server()
    connection, transport = server.connect()
    for number, part in enumerate(parts, start=1):
        server.loop.wait(number)
        connection.data_received(part)
    server.loop.wait(REQUEST_S - 0.1)
    assert not transport.aborted
    server.loop.wait(REQUEST_S)
    assert transport.aborted


def test_a_response_may_take_long_and_the_next_request_may_not() -> None:
    server = Server()
    connection, transport = server.connect()
    connection.data_received(WHOLE)
    server.loop.wait(10_000.0)  # a live page
    assert not transport.aborted
    connection.cycle.response_complete = True
    connection.on_response_complete()
    assert connection.timeout_keep_alive_task is not None
    connection.timeout_keep_alive_task.cancel()  # as the first byte of a request does
    server.loop.wait(10_000.0 + REQUEST_S - 0.1)
    assert not transport.aborted
    server.loop.wait(10_000.0 + REQUEST_S)
    assert transport.aborted


def test_one_address_has_a_bound_which_is_not_that_of_others_or_of_this_machine() -> None:
    server = Server()
    taken = [server.connect()[1] for _ in range(MOST_OF_ADDRESS)]
    assert not any(transport.aborted for transport in taken)
    assert server.connect()[1].aborted
    assert not server.connect("192.0.2.2")[1].aborted
    assert not any(server.connect("127.0.0.1")[1].aborted for _ in range(MOST_OF_ADDRESS + 1))


def test_addresses_are_counted_by_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert (network_of("::1"), network_of("127.8.9.1"), network_of("")) == (None, None, None)
    assert network_of("fe80::1%eth0") == network_of("fe80::1")
