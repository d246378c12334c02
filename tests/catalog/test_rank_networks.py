"""Check that the times of transfers between devices are stored by their hosts, found again, and measured anew."""

from dataclasses import replace

import pytest

from indb_tensile.catalog.rank_networks import latest_network, load_network, save_network
from indb_tensile.scheduler.timing.network_times import Collective, GangNetwork, NetworkTimes
from tests.conftest import Database
from tests.scheduler.timing.networks import network_of

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

KIND = "cpu:A:1"


def between(*hosts: str, message_ns: int = 100_000) -> GangNetwork:
    network = network_of(len(hosts), message_ns=message_ns, busy=True)
    others = [replace(network.times.measured[0], collective=own) for own in (Collective.COPY, Collective.ONE_WAY)]
    return replace(network, hosts=hosts, times=NetworkTimes(measured=(*network.times.measured, *others)))


def test_network_is_found_by_the_hosts_of_all_ranks_and_the_kind_of_device(database: Database) -> None:
    pair, apart = between("a", "a"), between("a", "b", message_ns=7)
    with database.connect("tensile_worker") as worker:
        assert load_network(worker, KIND, ["a", "a"], fresh=True) is None
        save_network(worker, KIND, pair)
        save_network(worker, KIND, apart)
        assert load_network(worker, KIND, ["a", "a"], fresh=True) == pair
        assert load_network(worker, KIND, ["b", "a"], fresh=True) == apart
        assert load_network(worker, KIND, ["a", "a", "b"], fresh=True) is None
        assert load_network(worker, "cpu:B:1", ["a", "a"], fresh=True) is None


def test_measurement_of_two_days_ago_is_made_again_and_replaced(database: Database) -> None:
    old, new = between("a", "b"), between("a", "b", message_ns=7)
    with database.connect("tensile_worker") as worker, database.connect() as postgres:
        save_network(worker, KIND, old)
        postgres.execute("update tensile.rank_networks set measured_at = now() - interval '2 days'")
        assert load_network(worker, KIND, ["a", "b"], fresh=True) is None
        assert load_network(worker, KIND, ["a", "b"], fresh=False) == old
        save_network(worker, KIND, new)
        assert load_network(worker, KIND, ["a", "b"], fresh=True) == new


def test_explanations_use_the_network_of_as_many_devices_with_this_host_or_else_the_last_one(
    database: Database,
) -> None:
    own, others, three = between("a", "b"), between("b", "c", message_ns=7), between("a", "b", "c", message_ns=9)
    with database.connect("tensile_worker") as worker:
        assert latest_network(worker, KIND, "a", 2) is None
        for network in (own, others, three):
            save_network(worker, KIND, network)
        networks = [
            latest_network(worker, KIND, host, ranks) for host, ranks in (("a", 2), ("d", 2), ("d", 3), ("a", 4))
        ]
    assert networks == [own, others, three, None]


def test_measurements_are_forgotten_with_their_kind_of_device_and_with_hosts_that_have_gone(
    database: Database,
) -> None:
    network = between("a", "b")
    with database.connect("tensile_worker") as worker, database.connect() as postgres:
        save_network(worker, KIND, network)
        save_network(worker, "cpu:B:1", network)
        (forgotten,) = postgres.execute("select tensile.forget_device(%s)", (KIND,)).fetchone() or (None,)
        assert forgotten == len(network.times.measured)
        postgres.execute("update tensile.rank_networks set measured_at = now() - interval '91 days'")
        removed = "select removed from tensile.vacuum_step(100) where kind = 'links'"
        assert worker.execute(removed).fetchone() == (len(network.times.measured),)
        assert latest_network(worker, "cpu:B:1", "a", 2) is None
