"""Runs the exchanges of a step on a thread of their own, one after another, beside the operators that compute.

One thread for all exchanges keeps them in the order in which they were started, which is the same on every rank. The
thread allocates no memory of the step: what an exchange needs is in its room (capture/exchange_room.py).
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from time import perf_counter_ns

import torch

from indb_tensile.errors import InvariantError
from indb_tensile.executor.ranks.exchange_streams import ExchangeStreams, StreamMark

SPANS_KEPT = 1 << 14  # more than the exchanges of any step; only timed iterations take them


class _LaneExchange:
    """An exchange in the queue of the lane, and what became of it."""

    def __init__(self, make: Callable[[], None], place: torch.device, ready: StreamMark | None) -> None:
        self.make = make
        self.place = place
        self.ready = ready  # reached when the values of a GPU are there
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.span = (0, 0)  # when it began and ended, by `perf_counter_ns`


class ExchangeLane:
    """A queue of exchanges and the thread that makes them. After an error it makes no more."""

    def __init__(
        self, around: Callable[[], AbstractContextManager[None]], streams: ExchangeStreams | None = None
    ) -> None:
        """Wait for exchanges within a context of `around`."""
        self._around = around
        self._streams = streams or ExchangeStreams()
        self._queue: SimpleQueue[_LaneExchange | None] = SimpleQueue()
        self._started: deque[_LaneExchange] = deque()  # and not waited for
        self._spans: deque[tuple[int, int]] = deque(maxlen=SPANS_KEPT)
        self._broken: Exception | None = None
        self._closed = False
        ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(ready,), name="exchanges", daemon=True)
        self._thread.start()
        ready.wait()
        torch.set_num_threads(torch.get_num_threads())  # of this thread: threads to come take what was set last

    def start(self, make: Callable[[], None], place: torch.device) -> None:
        """Queue an exchange of values on this device."""
        self._started.append(self._put(make, place))

    def finish(self) -> None:
        """Wait for the first exchange that was started and not waited for. Raises its error."""
        if not self._started:
            raise InvariantError("a step waits for an exchange that it has not started")
        exchange = self._started.popleft()
        self._wait(exchange)
        self._spans.append(exchange.span)

    def run(self, make: Callable[[], None], place: torch.device) -> None:
        """Make an exchange after all that were queued, and wait for it."""
        self._wait(self._put(make, place))

    def take_spans(self) -> tuple[tuple[int, int], ...]:
        """Return when each exchange that `finish` has waited for since the last call began and ended."""
        spans = tuple(self._spans)
        self._spans.clear()
        return spans

    def close(self, interrupt: Callable[[], None]) -> None:
        """Return when no exchange is under way. One that waits for other ranks is ended by `interrupt`.

        Exchanges that were started and not waited for are those of an iteration that has failed.
        """
        self._closed = True
        self._queue.put(None)
        if self._started:
            interrupt()
        with self._around():
            self._thread.join()

    def _put(self, make: Callable[[], None], place: torch.device) -> _LaneExchange:
        exchange = _LaneExchange(make, place, self._streams.mark(place))
        self._queue.put(exchange)
        return exchange

    def _wait(self, exchange: _LaneExchange) -> None:
        if not exchange.ended.is_set():
            with self._around():
                exchange.ended.wait()
        if exchange.error is not None:
            raise exchange.error

    def _work(self, ready: threading.Event) -> None:
        torch.set_num_threads(1)  # of this thread, beside which others compute
        torch.set_grad_enabled(False)
        ready.set()
        while (exchange := self._queue.get()) is not None:
            began_ns = perf_counter_ns()
            try:
                if self._broken is None and not self._closed:
                    with self._streams.after(exchange.ready, exchange.place):
                        exchange.make()
                exchange.error = self._broken
            except Exception as error:  # noqa: BLE001 - raised where the step waits for the exchange
                exchange.error = self._broken = error
            exchange.span = (began_ns, perf_counter_ns())
            exchange.ended.set()
