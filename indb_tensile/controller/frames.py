"""One trainer's link seen from the controller: frames in and out without ever blocking."""

import contextlib
import socket
import struct

from indb_tensile.errors import InvariantError
from indb_tensile.link import MAX_MESSAGE_BYTES, Message, decode, encode

_LENGTH = struct.Struct(">I")
_PART_BYTES = 1 << 20


class Frames:
    """A non-blocking end of the socket pair, with what is half received and half sent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = bytearray()
        self._unsent = bytearray()
        self.closed = False  # by the other end

    def fileno(self) -> int:
        """For a selector."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Something waits until the socket is writable."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send, or keep for later what the socket does not take now. To a closed link nothing is sent."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what is kept."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            self.closed = True

    def receive(self) -> list[Message]:
        """All messages that are complete by now. Raises InvariantError for what is not one of ours."""
        self._read()
        messages: list[Message] = []
        while (body := self._next_body()) is not None:
            messages.append(decode(body))
        return messages

    def close(self) -> None:
        """Close our end: the trainer sees it and exits."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.close()

    def _read(self) -> None:
        while not self.closed:
            try:
                part = self._connection.recv(_PART_BYTES)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            self._received += part
            self.closed = not part

    def _next_body(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        size_bytes: int = _LENGTH.unpack_from(self._received)[0]
        if size_bytes > MAX_MESSAGE_BYTES:
            raise InvariantError(f"a trainer announced a message of {size_bytes} bytes, over {MAX_MESSAGE_BYTES}")
        end = _LENGTH.size + size_bytes
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return body
