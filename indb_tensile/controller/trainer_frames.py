"""The controller's end of the socket to one trainer: sends and receives frames without blocking."""

import contextlib
import socket

from indb_tensile.errors import InvariantError
from indb_tensile.framing import FrameBuffer
from indb_tensile.messages import MAX_MESSAGE_BYTES, Message, decode, encode

_PART_BYTES = 1 << 20


class TrainerFrames:
    """A non-blocking end of the socket pair, with buffers for bytes that are received or sent only in part."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = FrameBuffer(MAX_MESSAGE_BYTES, _refusal)
        self._unsent = bytearray()
        self.closed = False  # true after either end was closed

    def fileno(self) -> int:
        """Return the descriptor for a selector."""
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes wait until the socket is writable."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message; keep the bytes that the socket does not accept now. A closed link drops the message."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send the kept bytes."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            self.closed = True

    def receive(self) -> list[Message]:
        """Return all messages that are complete. Raises InvariantError for bytes that are no message."""
        self._read()
        messages: list[Message] = []
        while (body := self._received.take()) is not None:
            messages.append(decode(body))
        return messages

    def close(self) -> None:
        """Close this end: the trainer notices and exits."""
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
            self._received.feed(part)
            self.closed = not part


def _refusal(size_bytes: int) -> InvariantError:
    return InvariantError(f"a trainer announced a message of {size_bytes} bytes, over {MAX_MESSAGE_BYTES}")
