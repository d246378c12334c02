"""Ends a benchmark's process as the command `tensile` ends: with an error message and an exit code.

An interrupt, SIGTERM or a closed output pipe ends the process without a message. The output printed until then stays
valid, and resources that the benchmark created, such as a server, are released.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

from indb_tensile.errors import TensileError

CUT_OFF = 128  # exit codes above it, plus the signal's number, stand for processes that a signal ended
INTERRUPTED = CUT_OFF + signal.SIGINT
UNREAD = CUT_OFF + signal.SIGPIPE  # Python ignores SIGPIPE itself: writes to a closed socket raise BrokenPipeError


def run(main: Callable[[], None]) -> None:
    """Call `main`. On an error that a user can mend, print message and hint and exit with the error's code."""
    exit_on_sigterm()
    try:
        main()
        sys.stdout.flush()
    except TensileError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        print(f"tensile: {error.message}{hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _is_unread(sys.stdout.fileno()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter still flushes its buffer
        sys.exit(UNREAD)


def exit_on_sigterm() -> None:
    """Exit by SystemExit on SIGTERM from now on, so that all context managers release their resources."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(CUT_OFF + signal.SIGTERM))


def _is_unread(descriptor: int) -> bool:
    """Return whether the descriptor is a pipe whose reading end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
