"""Who is dead is told by a count of beats and by the observer's own monotonic clock alone."""

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.controller.observer import Observer
from indb_tensile.job import WorkerId


def seen(worker: int, beats: int, lease_s: float = 10.0) -> ObservedWorker:
    return ObservedWorker(worker=WorkerId(worker), beats=beats, lease_s=lease_s)


def look(observer: Observer, at_s: float, *sightings: ObservedWorker) -> tuple[ObservedWorker, ...]:
    return observer.look(sightings, asked_s=at_s, answered_s=at_s)


def test_a_worker_is_dead_when_its_beats_stand_still_for_its_lease() -> None:
    observer = Observer()
    assert look(observer, 0.0, seen(1, 7)) == ()
    assert look(observer, 9.9, seen(1, 7)) == ()
    assert look(observer, 10.0, seen(1, 7)) == (seen(1, 7),)


def test_a_beat_begins_the_lease_anew() -> None:
    observer = Observer()
    look(observer, 0.0, seen(1, 7))
    assert look(observer, 9.0, seen(1, 8)) == ()
    assert look(observer, 18.0, seen(1, 8)) == ()
    assert look(observer, 19.0, seen(1, 8)) == (seen(1, 8),)


def test_each_worker_has_the_lease_that_it_promised() -> None:
    observer = Observer()
    look(observer, 0.0, seen(1, 7, 10.0), seen(2, 3, 5.0))
    assert look(observer, 6.0, seen(1, 7, 10.0), seen(2, 3, 5.0)) == (seen(2, 3, 5.0),)


def test_time_that_the_database_took_to_answer_is_not_counted() -> None:
    observer = Observer()
    observer.look((seen(1, 7),), asked_s=0.0, answered_s=8.0)
    assert observer.look((seen(1, 7),), asked_s=17.9, answered_s=30.0) == ()
    assert observer.look((seen(1, 7),), asked_s=18.0, answered_s=30.0) == (seen(1, 7),)


def test_a_worker_that_was_away_is_counted_anew() -> None:
    observer = Observer()
    look(observer, 0.0, seen(1, 7))
    look(observer, 5.0)
    assert look(observer, 11.0, seen(1, 7)) == ()


def test_what_was_seen_before_an_outage_counts_no_more() -> None:
    observer = Observer()
    look(observer, 0.0, seen(1, 7))
    observer.forget()
    assert look(observer, 11.0, seen(1, 7)) == ()
    assert look(observer, 21.0, seen(1, 7)) == (seen(1, 7),)
