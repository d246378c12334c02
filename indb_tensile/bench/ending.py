"""How a benchmark's process ends, as the command `tensile` does: with a sentence where the user can mend it.

An interrupt, SIGTERM and an output that nobody reads any more end it without a word: what it
printed until then stands, and what it had started, a server say, is taken down.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

from indb_tensile.errors import TensileError

CUT_OFF = 128  # exit codes above it are those of processes that a signal ended
INTERRUPTED = CUT_OFF + signal.SIGINT
UNREAD = CUT_OFF + signal.SIGPIPE  # which Python ignores: sockets close under whoever writes to them


def run(main: Callable[[], None]) -> None:
    """Call it, and end the process where it cannot go on."""
    end_when_told()
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter has yet to flush
        sys.exit(UNREAD)


def end_when_told() -> None:
    """Leave all blocks from now on where SIGTERM comes, so that what they have started is taken down."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(CUT_OFF + signal.SIGTERM))


def _is_unread(descriptor: int) -> bool:
    """Whether it is a pipe that nobody reads from any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
