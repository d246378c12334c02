"""Converts a registered network from the form of the catalog to the form that trainings and predictions use."""

from indb_tensile.catalog.stored_networks import StoredNetwork
from indb_tensile.learning.networks.registered_network import RegisteredNetwork


def registered(stored: StoredNetwork | None) -> RegisteredNetwork | None:
    """Return the network, or None if there is none. Raises DatabaseError if it is not what was registered."""
    if stored is None:
        return None
    return RegisteredNetwork.of_stored(stored.name, stored.digest, stored.config, stored.tokenizer, stored.weights)
