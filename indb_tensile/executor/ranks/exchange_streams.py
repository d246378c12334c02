"""Orders exchanges and the kernels of a step on a GPU, by a stream for the exchanges and events of the driver.

What a thread queues on a GPU goes to the stream that is current in this thread. The thread of the exchanges has one
of its own, so kernels of the step and copies of its plan run beside an exchange. An exchange begins once the kernels
before it have run. Its thread ends it when all that it has queued has run, and whoever waits for the thread queues
the kernels that follow after that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

# Streams of the default priority are those of a pool, from which torch takes each of them in turn. One of them
# computes, and would be taken for the exchanges, too.
_OWN_POOL = -1


class StreamMark(Protocol):
    """A place in the queue of a stream, as an event of the driver."""

    def query(self) -> bool:
        """Return whether everything before it has run."""
        ...


class ExchangeStreams:
    """The streams on which one thread makes exchanges. `cuda` is torch's interface to the driver."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._own: dict[torch.device, Any] = {}

    def mark(self, place: torch.device) -> StreamMark | None:
        """Mark the end of what this thread has queued on the device; None for host memory, which has no queue."""
        mark: StreamMark | None = None
        if place.type == "cuda":
            mark = self._cuda.current_stream(place).record_event()
        return mark

    @contextmanager
    def after(self, mark: StreamMark | None, place: torch.device) -> Iterator[None]:
        """Queue what the context does behind the mark, and wait until it has run. An error is not waited for."""
        if mark is None:
            yield
            return
        if place not in self._own:
            self._own[place] = self._cuda.Stream(place, priority=_OWN_POOL)
        stream = self._own[place]
        with self._cuda.stream(stream):
            stream.wait_event(mark)
            yield
        stream.synchronize()
