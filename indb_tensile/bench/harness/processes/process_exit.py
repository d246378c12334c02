"""Ends a benchmark's process with an error message and an exit code.

Errors are printed as by the command `tensile`, with two differences. An interrupt ends the process without a message,
because it also reaches the processes that a benchmark has started. A bug leaves its traceback on standard error.
SIGTERM and a closed output pipe end the process without a message, too. The output printed until then stays valid,
and resources that the benchmark created, such as a server, are released. A benchmark that prints its report only at
its end, such as chaos, prints what it has so far, and says what is missing.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

from indb_tensile.error_report import INTERRUPTED, report_error

SIGNAL_BASE = 128  # exit codes above it, plus the signal's number, stand for processes that a signal ended
# Python ignores SIGPIPE: a write to a closed pipe or socket raises BrokenPipeError.
UNREAD = SIGNAL_BASE + signal.SIGPIPE


def run(main: Callable[[], None]) -> None:
    """Call `main`. On an error that a user can fix, print message, detail and hint and exit with the error's code."""
    exit_on_sigterm()
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _is_unread(sys.stdout.fileno()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter still flushes its buffer
        sys.exit(UNREAD)
    except Exception as error:
        code = report_error(error)
        if code is None:
            raise
        sys.exit(code)


def exit_on_sigterm() -> None:
    """Exit by SystemExit on SIGTERM from now on, so that all context managers release their resources."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGNAL_BASE + signal.SIGTERM))


def _is_unread(descriptor: int) -> bool:
    """Return whether the descriptor is a pipe whose reading end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
