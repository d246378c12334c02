"""A process that uses a claim of the ledger it inherits, as a trainer does, and reports when it has.

Run it as `python -m tests.native.trainer_process FD SLOT EPOCH ACTION SIZE`. It ends at the end of its input. The
actions "copy" and "copy and exit" start at a line of input.
"""

import ctypes
import itertools
import sys

from indb_tensile.device.device import EmulatedDevice


def main() -> None:
    fd, slot, epoch, action, size = sys.argv[1:]
    size_bytes = int(size)
    device = EmulatedDevice(int(fd), int(slot), int(epoch), 1 << 20, chunk_bytes=1000)
    if action == "hold":
        device.move(0, size_bytes)
    elif action == "move":
        _move_for_ever(device, size_bytes)
    elif action in ("copy", "copy and exit"):
        tensor = ctypes.create_string_buffer(b"\x11" * size_bytes, size_bytes)
        host = device.host_allocate(size_bytes)
        _write_word("ready")
        sys.stdin.readline()
        ticket = device.copy_out(host, ctypes.addressof(tensor), size_bytes)
        if action == "copy and exit":
            return
        device.wait(ticket)
        assert ctypes.string_at(host, size_bytes) == tensor.raw
    _write_word("done")
    sys.stdin.read()


def _write_word(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def _move_for_ever(device: EmulatedDevice, size_bytes: int) -> None:
    device.move(0, 1)
    _write_word("moving")
    for step in itertools.cycle(range(1, size_bytes)):
        device.move(0, step)
        device.move(step, 0)


if __name__ == "__main__":
    main()
