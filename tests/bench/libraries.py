"""Skip a test whose network comes from a library that is not installed."""

import pytest

from indb_tensile.bench.harness.networks.known_networks import Network, missing_library


def skip_without_library(network: Network) -> None:
    """Skip the test if the network's library is missing."""
    library = missing_library(network)
    if library is not None:
        pytest.skip(f"{library} is not installed: it is in the extra `bench`")
