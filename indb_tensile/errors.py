"""The package's exceptions: the type says whose fault an error is, and the hint says what to do about it."""


class TensileError(Exception):
    """Base class of all exceptions that this package raises on purpose.

    `message` is one sentence: subject, fault, value. `detail` explains the cause, and `hint` says what to do.
    A caller in SQL gets `sqlstate`, and the command `tensile` exits with `exit_code`.
    """

    sqlstate = "XX000"
    exit_code = 70

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


class RequestError(TensileError):
    """The user asked for something that cannot be done."""

    sqlstate = "22023"  # invalid_parameter_value
    exit_code = 2


class DataError(RequestError):
    """The user's table cannot be trained on as it stands."""

    sqlstate = "22000"  # data_exception


class MissingError(RequestError):
    """The user named an object that does not exist."""

    sqlstate = "42704"  # undefined_object


class MissingColumnError(MissingError):
    """The user named a column that the relation does not have."""

    sqlstate = "42703"  # undefined_column


class UnsupportedError(RequestError):
    """The user asked for something that cannot be had here."""

    sqlstate = "0A000"  # feature_not_supported


class PrivilegeError(RequestError):
    """The user, or the worker on the user's behalf, lacks a privilege."""

    sqlstate = "42501"  # insufficient_privilege
    exit_code = 3


class MemoryLimitError(RequestError):
    """No plan of the job fits into the memory that the job may use.

    `needs_bytes` is the least budget of a device that could hold the job, if nothing else bounds its memory.
    """

    sqlstate = "53200"  # out_of_memory

    def __init__(self, message: str, *, detail: str = "", hint: str = "", needs_bytes: int | None = None) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.needs_bytes = needs_bytes


class HostMemoryError(TensileError):
    """The machine does not have enough free memory for the job now. A later attempt may succeed."""

    sqlstate = "53200"
    exit_code = 71


class OvertakenError(TensileError):
    """The deployed version of the model has changed since the training compared its own version with it."""


class DatabaseError(TensileError):
    """PostgreSQL cannot be reached, or the contents of the catalog are wrong."""

    sqlstate = "58000"  # system_error
    exit_code = 4


class CatalogVersionError(DatabaseError):
    """The catalog is missing or has another version than this program, so this program cannot use it."""


class TableBusyError(DatabaseError):
    """Another session holds a lock on the table. A later attempt to read the table may succeed."""

    sqlstate = "55P03"  # lock_not_available


class LostClaimError(DatabaseError):
    """The job no longer belongs to this worker, so the worker must not write anything more for the job."""


class StorageError(TensileError):
    """Data could not be stored: a disk is full, or a directory is not writable. A later attempt may succeed."""

    sqlstate = "53100"  # disk_full
    exit_code = 71


class RowFileError(TensileError):
    """The file for the rows of a large table cannot be created or written, as when its disk is full."""

    sqlstate = "53100"
    exit_code = 71


class DeviceError(TensileError):
    """The device is missing, or an operation on the device failed."""

    sqlstate = "58000"
    exit_code = 5


class DeviceMemoryError(DeviceError):
    """A request for device memory exceeds the job's grant or the capacity of the device."""

    sqlstate = "53200"


class OutgrownMemoryError(DeviceMemoryError):
    """An operator needed more device memory than was planned for it, and its need is stored for the next attempt.

    With `known` the attempt was planned with such a need already, so another one would hardly succeed.
    """

    def __init__(self, message: str, *, detail: str = "", hint: str = "", known: bool = False) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.known = known


class DeviceLostError(DeviceError):
    """The device, or this process's context on the device, is lost. The job runs again in another process."""


class NoRoomToParkError(TensileError):
    """The job has to leave the device, and cannot wait in the host pool. It continues later from its checkpoint."""

    sqlstate = "53200"
    exit_code = 71


class HandedOverError(TensileError):
    """The job leaves the device for another one that has nothing to do. It continues there from its checkpoint."""

    sqlstate = "55000"
    exit_code = 71


class HeldTrialError(TensileError):
    """A trial has reached the rung up to which it may train. It goes on, if at all, when its search says so."""

    sqlstate = "55000"
    exit_code = 71


class RankLostError(TensileError):
    """Another device of the job does not answer any more. The attempt ends, and another one may succeed."""

    sqlstate = "58000"
    exit_code = 71


class ComputationError(DeviceError):
    """A computation of the job failed on the device and destroyed this process's context: the attempt has failed."""


class UnavailableError(TensileError):
    """A process that should answer does not run or does not answer."""

    sqlstate = "57P03"  # cannot_connect_now
    exit_code = 6


class CancelledJobError(TensileError):
    """The job was cancelled, so it has no result; or PostgreSQL cancelled the statement."""

    sqlstate = "57014"  # query_canceled
    exit_code = 1


class WaitTimeoutError(TensileError, TimeoutError):
    """The awaited job has not ended in the given time. The job goes on."""

    sqlstate = "57014"
    exit_code = 7


class InvariantError(TensileError):
    """A bug in this package: an invariant was violated. The error carries the history that is needed to debug it."""

    sqlstate = "XX000"
    exit_code = 70


class GraphError(InvariantError):
    """A step graph breaks the rules of `scheduler/graph.py`."""
