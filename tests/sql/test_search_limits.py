"""Check what delays a search or ends it beside its trials: quotas, privileges, and locks of other sessions."""

from typing import cast

import pytest

from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import publish_version
from indb_tensile.errors import PrivilegeError
from tests.catalog.enqueue import claim, publication, register
from tests.conftest import Database
from worker.search_steward import SearchSteward

from .conftest import Connection, refused, value
from .search_progress import SPACE, OneSession, hand_back, report, search, states, step

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


def test_a_role_that_may_no_longer_train_gets_no_further_trial(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice)
    with database.connect("postgres") as admin:
        admin.execute("create role leaver")
        admin.execute("update tensile.jobs set owner_oid = 'leaver'::regrole, owner_name = 'leaver'")
        try:
            with pytest.raises(PrivilegeError, match='role "leaver" may no longer train'):
                step(worker, number)
        finally:
            admin.execute("drop role leaver")


def test_one_users_locks_delay_no_other_search(database: Database, alice: Connection, worker: Connection) -> None:
    mine = search(alice)
    with database.connect("bob") as bob:
        bob.execute(
            "create table flowers as select * from (values (1, 2.0, 'a'), (2, 3.0, 'b')) as v (id, x, species)"
        )
        bob.execute("insert into flowers select i, i, chr(97 + i % 2) from generate_series(3, 60) as i")
        bob.execute("grant select on flowers to tensile_reader")
        own = int(value(bob, "select tensile_search('b', 'flowers', 'species', hyperparams => %s)", SPACE))
        with bob.transaction():
            bob.execute("select from tensile.jobs where job_id = %s for update", (own,))
            for number in (own, mine):  # a wait for the lock would never end
                step(worker, number)
            assert len(states(alice, mine)) == 2
            assert states(bob, own) == []
        step(worker, own)
        assert len(states(bob, own)) == 4
        assert states(alice, own) == []
        assert refused(alice, "select tensile_trial_info(%s)", own).message == f"there is no job {own}"
        assert refused(bob, "insert into tensile.trials select * from tensile.trials").sqlstate == "42501"
        assert (
            refused(bob, f"select tensile.add_trial({own}, 9, '{{}}', '{{}}', '{{1}}', '{{}}')").sqlstate == "42501"
        )


def test_a_full_queue_delays_trials_and_ends_nothing(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice, more="trials => 6, parallel => 6")
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 3)")
        step(worker, number)
        assert len(states(alice, number)) == 2
        admin.execute("select tensile_set_quota('alice')")
    step(worker, number)
    assert len(states(alice, number)) == 6


def test_locks_on_a_model_and_its_versions_delay_one_search_only(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    first, second = search(alice, "first", "trials => 1, prune => 'none'"), search(alice, "second")
    worker.execute("set lock_timeout = '100ms'")
    steward = SearchSteward(cast(Session, OneSession(worker)))
    with database.connect("alice") as other, other.transaction():
        other.execute("select from tensile.models where name = 'first' for update")
        steward.attend()
        assert (states(alice, first), len(states(alice, second))) == ([], 2)
    steward.attend()
    claimed = next(own for own in (claim(worker, me) for _ in range(5)) if own.spec.model == "first")
    report(worker, claimed, 0, 0.9, complete=True)
    publish_version(worker, claimed, publication())
    with database.connect("alice") as other, other.transaction():
        other.execute("select from tensile.model_versions for update")
        steward.attend()
        assert value(alice, "select state::text from tensile.jobs where job_id = %s", first) == "queued"
    steward.attend()
    assert value(alice, "select state::text from tensile.jobs where job_id = %s", first) == "succeeded"


def test_trials_that_wait_for_their_search_do_not_count_as_queued(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 4)")
    number = search(alice, more="trials => 9, parallel => 3")
    step(worker, number)
    for metric in (0.5, 0.6, 0.7):
        claimed = claim(worker, me)
        report(worker, claimed, 0, metric)
        hand_back(worker, claimed)
    step(worker, number)
    assert [state for _, state, _ in states(alice, number)] == ["waiting", "waiting", "queued", "queued", "queued"]
    assert value(alice, "select jobs_queued from tensile.stat_quotas where role = 'alice'") == 4


def test_a_refusal_by_a_quota_is_shown_with_the_search(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice)
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 1)")
        step(worker, number)
        waits = "select waits_for from tensile.stat_searches where search_id = %s"
        assert value(alice, waits, number).startswith('trial 1: role "alice" may have at most 1 job in the queue')
        admin.execute("select tensile_set_quota('alice', highest_priority => 5)")
        admin.execute("select tensile_set_priority(%s, 9)", (number,))
    step(worker, number)
    assert value(alice, waits, number) is None
    assert value(alice, "select priority from tensile.jobs where search_id <> job_id limit 1") == 5
