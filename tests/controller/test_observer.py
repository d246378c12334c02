"""Check that the observer declares workers dead by their heartbeat counts and its own monotonic clock alone."""

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.controller.observer import Observer
from indb_tensile.job import WorkerId


def observed(worker: int, beats: int, lease_s: float = 10.0) -> ObservedWorker:
    return ObservedWorker(worker=WorkerId(worker), beats=beats, lease_s=lease_s)


def look(observer: Observer, at_s: float, *sightings: ObservedWorker) -> tuple[ObservedWorker, ...]:
    return observer.look(sightings, asked_s=at_s, answered_s=at_s)


def test_worker_without_a_new_heartbeat_for_its_lease_is_dead() -> None:
    observer = Observer()
    assert look(observer, 0.0, observed(1, 7)) == ()
    assert look(observer, 9.9, observed(1, 7)) == ()
    assert look(observer, 10.0, observed(1, 7)) == (observed(1, 7),)


def test_heartbeat_renews_the_lease() -> None:
    observer = Observer()
    look(observer, 0.0, observed(1, 7))
    assert look(observer, 9.0, observed(1, 8)) == ()
    assert look(observer, 18.0, observed(1, 8)) == ()
    assert look(observer, 19.0, observed(1, 8)) == (observed(1, 8),)


def test_each_worker_has_its_own_lease() -> None:
    observer = Observer()
    look(observer, 0.0, observed(1, 7, 10.0), observed(2, 3, 5.0))
    assert look(observer, 6.0, observed(1, 7, 10.0), observed(2, 3, 5.0)) == (observed(2, 3, 5.0),)


def test_response_time_of_the_database_does_not_count() -> None:
    observer = Observer()
    observer.look((observed(1, 7),), asked_s=0.0, answered_s=8.0)
    assert observer.look((observed(1, 7),), asked_s=17.9, answered_s=30.0) == ()
    assert observer.look((observed(1, 7),), asked_s=18.0, answered_s=30.0) == (observed(1, 7),)


def test_lease_starts_again_for_a_worker_that_reappears() -> None:
    observer = Observer()
    look(observer, 0.0, observed(1, 7))
    look(observer, 5.0)
    assert look(observer, 11.0, observed(1, 7)) == ()


def test_leases_start_again_after_an_outage() -> None:
    observer = Observer()
    look(observer, 0.0, observed(1, 7))
    observer.forget()
    assert look(observer, 11.0, observed(1, 7)) == ()
    assert look(observer, 21.0, observed(1, 7)) == (observed(1, 7),)
