"""Members of a round take turns with a GPU's regions, on the fake driver: copies in lent places end before the next
member has them.
"""

from pathlib import Path

from tests.native.cuda_double import environment, run

# Two members in two threads. Each has one region of its own, and needs both regions of the round in every iteration.
# The second member's gate opens at the end of the first member's iteration, and the other way round.
MEMBERS = """
import ctypes, socket, sys, threading
from indb_tensile import _native
from indb_tensile.device.cuda import CudaBroker, CudaDevice, CudaRegions
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.round_member import Seat, open_member
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment, Wait

REGION, PLACES, ITERATIONS = 2 << 20, (0, 1), 5
ledger = Ledger.create(4 * REGION, REGION, 1, 1, None)
broker = CudaBroker(0, REGION, 4)
claims = [ledger.claim_slot(1) for _ in range(2)]
for slot, _ in claims:
    ledger.grant(slot, REGION)
print(ledger.set_pool(4 * REGION) // REGION)
segments = (Segment(operator=0), Segment(operator=1, taken=PLACES))
parts = [
    RoundPart(position=n, operators=2, iterations=1, base_bytes=REGION, region_bytes=REGION, segments=segments,
              waits=(Wait(iteration=0, operator=1, position=1 - n, boundary=2 * n, each=2),))
    for n in range(2)
]
slots = tuple(slot for slot, _ in claims)
right = []

def iterate(number):
    slot, epoch = claims[number]
    own_end, member_end = socket.socketpair()
    sender = threading.Thread(target=broker.send, args=(own_end.fileno(),))
    sender.start()
    regions = CudaRegions(0, member_end.fileno())
    sender.join()
    device = CudaDevice(ledger.fd, slot, epoch, 1 << 20, regions=regions)
    seat = Seat(number=1, part=parts[number], slots=slots)
    member = open_member(ledger.fd, slot, epoch, seat, lambda: None, device)
    block = _native.Script.create(device.hook_address(), 0, device.pieces_address()).block()
    source, target = device.host_allocate(100_000), device.host_allocate(100_000)
    member.join(block)
    for iteration in range(ITERATIONS):
        member.enter()
        member.pass_boundary(0)
        assert member.pass_boundary(1) >= 0
        value = 1 + 10 * number + iteration
        ctypes.memset(source, value, 100_000)
        for place in PLACES:
            address = block + (1 + place) * REGION
            device.compute_after(device.copy_in(address, source, 100_000))
            device.copy_out(target, address, 100_000)
        device.move(0, 3 * REGION)
        device.move(3 * REGION, 0)
        member.pass_boundary(2)
        right.append(ctypes.string_at(target, 100_000) == bytes([value]) * 100_000)
        member.rest()
    member.leave()
    device.drain()
    members.append((member, device))

members = []
threads = [threading.Thread(target=iterate, args=(n,)) for n in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
passages = _native.Passages(ledger.fd)
print(len(right), all(right), [passages.progress(slot)[1] >= 2 * ITERATIONS for slot in slots])
passages.end(1)
for member, _ in members:
    member.close()
usage = ledger.device_usage()
lent = [ledger.usage(slot).lent_bytes for slot in slots]
print(usage.high_water_bytes // REGION, usage.pooled_bytes // REGION, lent)
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_violations.restype = ctypes.c_char_p
print(driver.fake_cuda_violations().decode())
"""


def test_members_take_turns_with_the_rounds_regions_and_copies_end_before_the_next_member_has_them(
    library: Path,
) -> None:
    lines = run(MEMBERS, environment(library)).splitlines()
    assert lines == ["2", "10 True [True, True]", "3 2 [0, 0]", ""]


def test_process_with_regions_of_its_own_is_lent_none(library: Path) -> None:
    source = """
from indb_tensile.device.cuda import CudaDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import DeviceError
ledger = Ledger.create(8 << 20, 2 << 20, 1, 1, None)
slot, epoch = ledger.claim_slot(1)
try:
    CudaDevice(ledger.fd, slot, epoch, 1 << 20).lent_regions(0, 1)
except DeviceError as error:
    print(error.message, error.hint)
"""
    assert run(source, environment(library)).strip() == (
        "slot 0: jobs cannot share memory in phases where each process allocates its own Turn phases off, or let the "
        "controller share the device's memory (share_memory)."
    )
