"""Says what the exit of a trainer means for its job: whose fault it is, in words, and what its owner can do."""

from indb_tensile.errors import DatabaseError, DeviceMemoryError
from indb_tensile.job import ORPHANED, Blame
from indb_tensile.scheduler.admission.events import Exit, ExitCause
from indb_tensile.scheduler.admission.pool import Fault, Interrupted
from indb_tensile.sizes import size

_SIGSEGV = 11  # the signal by which strict mode ends a process that touches memory that is away


def outcome_of(exit_: Exit) -> Interrupted:
    """Return the outcome of the job of a trainer that exited without a reason of its own."""
    match exit_.ending:
        case ExitCause.STARVED | ExitCause.PROBABLY_STARVED:
            return _starved(exit_)
        case ExitCause.OUTSIDE:
            reason = f"its trainer was killed by signal {-exit_.code} from outside"
            return Interrupted(reason=reason, blame=Blame.OTHERS)
        case ExitCause.STOPPED:
            return Interrupted(reason="its controller stopped its trainer", blame=Blame.OTHERS)
        case ExitCause.INVALID_MESSAGE:
            return Interrupted(reason="its trainer sent a message that its controller cannot read")
        case ExitCause.BY_ITSELF:
            reason = f"its trainer ended with {_exit_text(exit_.code)} before the job was done"
            foreign = exit_.code in (DatabaseError.exit_code, ORPHANED)
            return Interrupted(reason=reason, blame=Blame.OTHERS if foreign else Blame.JOB)


def _starved(exit_: Exit) -> Interrupted:
    """Return the outcome after the kernel ended the trainer for memory. One more attempt is made, because other
    processes may have taken the memory.
    """
    reason = "the kernel ended its trainer for memory"
    if exit_.ending is ExitCause.PROBABLY_STARVED:
        reason = "its trainer got SIGKILL, not from its controller: most probably the kernel ended it for memory"
    if exit_.peak_bytes:
        # The peak counts pages that the process shares with others, so it may exceed the memory of the machine.
        reason += f": it had {size(min(exit_.peak_bytes, exit_.memory_bytes or exit_.peak_bytes))}"
        reason += f" of {size(exit_.memory_bytes)}" if exit_.memory_bytes else ""
    fault = Fault(
        sqlstate=DeviceMemoryError.sqlstate,
        message=reason,
        detail="This is memory of the host, not of the device. The job's event reading tells what its rows need.",
        hint="Leave columns out with exclude, train on a sample of the rows or with a smaller batch_size, let fewer "
        "jobs run at a time (max_jobs), lower read_limit_bytes, so that such a table is refused before it is read, "
        "or give the machine or its container more memory.",
    )
    return Interrupted(reason=reason, blame=Blame.MEMORY, fault=fault)


def _exit_text(code: int) -> str:
    """Describe an exit code for a reader."""
    return "a memory fault (SIGSEGV, see the controller's log)" if code == -_SIGSEGV else f"code {code}"
