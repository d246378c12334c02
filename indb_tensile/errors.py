"""The exception tree: the type says whose fault it is, the message says what to do."""


class TensileError(Exception):
    """Root of everything this package raises on purpose.

    `message` is one sentence: subject, fault, value. `detail` adds what helps to see why,
    `hint` says the way out. `sqlstate` is what a SQL caller sees, `exit_code` what a shell sees.
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
    """The user named something that is not there."""

    sqlstate = "42704"  # undefined_object


class PrivilegeError(RequestError):
    """The user, or the worker on the user's behalf, may not do this."""

    sqlstate = "42501"  # insufficient_privilege
    exit_code = 3


class MemoryLimitError(RequestError):
    """The job cannot be planned below the memory it may use."""

    sqlstate = "53200"  # out_of_memory


class HostMemoryError(TensileError):
    """The machine has not enough free memory for the job now. A later attempt may succeed."""

    sqlstate = "53200"
    exit_code = 71


class OvertakenError(TensileError):
    """Another version of the model was deployed since a training compared its own with the deployed one."""


class DatabaseError(TensileError):
    """PostgreSQL could not be reached, or the catalog is not what it should be."""

    sqlstate = "58000"  # system_error
    exit_code = 4


class CatalogVersionError(DatabaseError):
    """The catalog has another version than this program, or is not there: only another program can work on it."""


class TableBusyError(DatabaseError):
    """Another session locks the table: reading it can succeed later."""

    sqlstate = "55P03"  # lock_not_available


class LostClaimError(DatabaseError):
    """The job no longer belongs to this worker; nothing may be written for it."""


class StorageError(TensileError):
    """Bytes could not be stored: a disk is full, or a directory cannot be written. A later attempt may succeed."""

    sqlstate = "53100"  # disk_full
    exit_code = 71


class DeviceError(TensileError):
    """The device refused, failed or is missing."""

    sqlstate = "58000"
    exit_code = 5


class DeviceMemoryError(DeviceError):
    """More was asked of the device than the job's grant or the capacity allows."""

    sqlstate = "53200"


class DeviceLostError(DeviceError):
    """The device, or this process's hold on it, is gone: the job runs again in another process."""


class ComputationError(DeviceError):
    """What the job computed broke there, and with it this process's hold on the device: an attempt that failed."""


class UnavailableError(TensileError):
    """A process that should answer does not run."""

    sqlstate = "57P03"  # cannot_connect_now
    exit_code = 6


class InvariantError(TensileError):
    """Our own fault: a rule of the design was broken. Carries the history needed to debug it."""

    sqlstate = "XX000"
    exit_code = 70


class GraphError(InvariantError):
    """A step graph breaks the rules of `scheduler/graph.py`."""
