"""Check what is recorded of a device, and when, while the database answers or is away."""

from dataclasses import replace

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.controller.device_records import DeviceRecords
from indb_tensile.job import JobId, WorkerId
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.set_forecasts import SharedDevice
from tests.controller.fakes import FakeClock, FakeRecords

_WORKER = WorkerId(1)
_USE = DeviceUse(
    kind="x", capacity_bytes=9, budget_bytes=9, granted_bytes=5, used_bytes=5, high_water_bytes=5, host_bytes=0
)
_SHARE = JobUse(job=JobId(1), granted_bytes=5, used_bytes=5, high_water_bytes=5)


def test_changed_holdup_is_recorded_once_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    device.record_holdup(_WORKER, None)
    device.record_holdup(_WORKER, "a trainer to start")
    device.record_holdup(_WORKER, "a trainer to start")
    records.away = True
    device.record_holdup(_WORKER, None)
    records.away = False
    device.record_holdup(_WORKER, None)
    device.record_holdup(_WORKER, None)
    assert records.holdups == [(_WORKER, "a trainer to start"), (_WORKER, None)]


def test_contention_that_jobs_have_taught_is_recorded_once_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    measured = Contention(points=((1, 1.0), (2, 1.5)))
    taught = measured.observed(2, 1.0)
    for contention in (measured, measured.observed(2, 1.55), taught, taught):
        device.record_contention(contention)
    relearned = taught.observed(2, 1.0)
    records.away = True
    device.record_contention(relearned)
    records.away = False
    device.record_contention(relearned)
    assert records.learned == [taught, relearned]
    device.record_contention(Contention(points=((1, 1.0), (2, 9.0))))
    assert records.learned == [taught, relearned], "what was measured anew was taught by no job"


def test_cores_that_other_programs_take_are_written_when_they_have_changed() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    for taken in (0.05, 0.05, 0.08, 0.08):
        device.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=taken))
    assert (records.taken_cores, records.learned) == ([0.08], []), "the first were the catalog's"
    records.away = True
    device.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=0.1))
    records.away = False
    device.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=0.1))
    assert records.taken_cores == [0.08, 0.1], "a failed write is tried again"


def test_overheads_are_recorded_where_they_changed_noticeably_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    known = Overheads().closed("a", 1, 100.0).closed("b", 2, 100.0)
    noisy, changed = known.closed("a", 1, 95.0), known.closed("a", 1, 50.0)
    more = changed.started("c", 3, 7.0)
    for overheads in (known, noisy, changed, changed):
        device.record_overheads(overheads)
    records.away = True
    device.record_overheads(more)
    records.away = False
    for overheads in (more, more):
        device.record_overheads(overheads)
    assert records.overheads == [
        (KindOverheads(kind="a", state_bytes=1, closing_ns=50.0),),
        (KindOverheads(kind="c", state_bytes=3, startup_ns=7.0),),
    ]


def test_first_overheads_of_an_empty_catalog_are_recorded() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    for overheads in (Overheads(), Overheads().started("a", 1, 0.0)):
        device.record_overheads(overheads)
    assert records.overheads == [(KindOverheads(kind="a", state_bytes=1, startup_ns=0.0),)]


def test_use_of_the_device_while_the_database_is_away_is_written_later() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    device = DeviceRecords(records, clock)
    device.record_use(_WORKER, _USE, (_SHARE,))
    records.away, clock.now_s = True, 101.0
    device.record_use(_WORKER, _USE, (_SHARE,))
    records.away, clock.now_s = False, 103.0
    device.record_use(_WORKER, _USE, ())
    device.record_use(_WORKER, _USE, ())
    assert records.usages == (JobUsage(job=JobId(1), device_s=1.0, byte_s=5.0, running_s=1.0),)


def test_changed_outlook_is_recorded_after_some_seconds_and_a_failed_write_is_dropped() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    device = DeviceRecords(records, clock)
    shared = SharedDevice(budget_bytes=8, region_bytes=1, contention=Contention(points=((1, 1.0),)), max_slowdown=3.0)
    outlooks = [
        Outlook(device=replace(shared, budget_bytes=size), running=(), waiting=()) for size in (8, 8, 9, 10, 11)
    ]
    for now_s, outlook in zip((100.0, 110.0, 111.0, 112.0, 120.0), outlooks, strict=True):
        clock.now_s = now_s
        device.record_outlook(_WORKER, outlook)
    device.record_outlook(_WORKER, None)
    assert records.outlooks == [(_WORKER, outlooks[k]) for k in (0, 2, 4)]
    records.away, clock.now_s = True, 130.0
    device.record_outlook(_WORKER, outlooks[0])


def test_nothing_of_a_worker_is_recorded_while_none_is_registered() -> None:
    records = FakeRecords()
    device = DeviceRecords(records)
    contention = Contention(points=((1, 1.0),))
    shared = SharedDevice(budget_bytes=8, region_bytes=1, contention=contention, max_slowdown=3.0)
    device.record_use(None, _USE, (_SHARE,))
    device.record_holdup(None, "a trainer to start")
    device.record_outlook(None, Outlook(device=shared, running=(), waiting=()))
    assert (records.use, records.holdups, records.outlooks) == (None, [], [])
