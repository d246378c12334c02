"""A sample of the matrix: under every policy's plans results are what they are without, bit for bit."""

import pytest

from indb_tensile.bench.exact import Asked, measure
from indb_tensile.bench.networks import NETWORKS, missing_library
from indb_tensile.bench.trial import Subject
from indb_tensile.scheduler.policies import POLICIES
from tests.bench.subjects import tiny


def test_every_policys_plan_is_exact_whatever_the_seed() -> None:
    rows = list(measure(map(tiny, range(2)), Asked()))
    assert all(row["exact"] for row in rows)
    assert {row["seed"] for row in rows} == {0, 1}
    assert {row["policy"] for row in rows} <= {"eager", *POLICIES}
    assert {"eager", "tensile", "tensile+", "capuchin", "vdnn"} <= {row["policy"] for row in rows}
    assert max(row["swaps"] for row in rows) > 0


def test_a_convolutional_network_is_exact_under_ours() -> None:
    network = NETWORKS["squeezenet"].resized(32)
    if missing_library(network) is not None:
        pytest.skip("torchvision is not installed: it is in the extra `bench`")
    rows = list(measure(iter([Subject.of(network, 2)]), Asked(policies=("tensile+",), iterations=2)))
    assert [row["exact"] for row in rows] == [True] * len(rows)
    assert max(row["swaps"] for row in rows) > 0
