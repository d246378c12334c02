"""Runs the exchanges of a step on a thread of their own, one after another, beside the operators that compute.

One thread for all exchanges keeps them in the order in which they were started, which is the same on every rank. The
thread allocates no memory of the step: what an exchange needs is in its room (capture/exchange_room.py).

If the step comes to wait for the last exchange in the queue before the thread has begun it, the step's own thread
makes it. That saves the time in which one thread wakes up, and then the other. With several in the queue the lane
goes on with the next one meanwhile, which is worth more.
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
        self.queued_ns = perf_counter_ns()
        self.ended_ns = 0


class ExchangeLane:
    """A queue of exchanges and the thread that makes them. After an error it makes no more."""

    def __init__(
        self, around: Callable[[], AbstractContextManager[None]], streams: ExchangeStreams | None = None
    ) -> None:
        """Wait for exchanges within a context of `around`."""
        self._around = around
        self._streams = streams or ExchangeStreams()
        self._queue: deque[_LaneExchange] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # one for each exchange that was queued; False at the end
        self._making = threading.Lock()  # held by the thread that makes exchanges
        self._started: deque[_LaneExchange] = deque()  # and not waited for
        self._spans: deque[tuple[int, int]] = deque(maxlen=SPANS_KEPT)
        self._free_ns = 0  # when the last exchange that was waited for ended
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
        waits = not exchange.ended.is_set()
        self._wait(exchange)
        begin_ns = max(exchange.queued_ns, self._free_ns)
        self._free_ns = max(begin_ns, perf_counter_ns() if waits else exchange.ended_ns)
        self._spans.append((begin_ns, self._free_ns))

    def run(self, make: Callable[[], None], place: torch.device) -> None:
        """Make an exchange after all that were queued, and wait for it."""
        self._wait(self._put(make, place))

    def take_spans(self) -> tuple[tuple[int, int], ...]:
        """Return when each exchange that `finish` has waited for since the last call began and ended.

        It begins when it is started and the one before it has ended. If the step waits for it, it ends when the step
        goes on. So the time in which threads wake up is part of it, and a step takes as long as exchanges and
        operators with these times.
        """
        spans = tuple(self._spans)
        self._spans.clear()
        return spans

    def close(self, interrupt: Callable[[], None]) -> None:
        """Return when no exchange is under way. One that waits for other ranks is ended by `interrupt`.

        Exchanges that were started and not waited for are those of an iteration that has failed.
        """
        self._closed = True
        self._calls.put(False)
        if self._started:
            interrupt()
        with self._around():
            self._thread.join()

    def _put(self, make: Callable[[], None], place: torch.device) -> _LaneExchange:
        exchange = _LaneExchange(make, place, self._streams.mark(place))
        self._queue.append(exchange)
        self._calls.put(True)
        return exchange

    def _wait(self, exchange: _LaneExchange) -> None:
        if not exchange.ended.is_set():
            with self._around():
                if exchange.place.type == "cpu" and len(self._queue) <= 1:
                    self._make_here(exchange)
                exchange.ended.wait()
        if exchange.error is not None:
            raise exchange.error

    def _make_here(self, exchange: _LaneExchange) -> None:
        """Make this exchange, which is the last one in the queue, in this thread, unless the lane makes one now."""
        if not self._making.acquire(blocking=False):
            return
        try:
            if self._queue:
                with torch.no_grad():
                    self._make(self._queue.popleft())
        finally:
            self._making.release()

    def _work(self, ready: threading.Event) -> None:
        torch.set_num_threads(1)  # of this thread, beside which others compute
        torch.set_grad_enabled(False)
        ready.set()
        while self._calls.get():
            with self._making:
                if self._queue:
                    self._make(self._queue.popleft())

    def _make(self, exchange: _LaneExchange) -> None:
        try:
            if self._broken is None and not self._closed:
                with self._streams.after(exchange.ready, exchange.place):
                    exchange.make()
            exchange.error = self._broken
        except Exception as error:  # noqa: BLE001 - raised where the step waits for the exchange
            exchange.error = self._broken = error
        exchange.ended_ns = perf_counter_ns()
        exchange.ended.set()
