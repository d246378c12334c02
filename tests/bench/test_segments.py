"""Networks in segments compute the networks' results bit for bit."""

import pytest
import torch

from indb_tensile.bench.harness.comparisons.segments import segmented
from indb_tensile.bench.harness.networks.known_networks import NETWORKS, random_example
from tests.bench.libraries import skip_without_library

# One network of each form: a chain, dense blocks, steps, an encoder of transformers. For the other networks, the
# figures of `bench step` show whether the results are equal.
CASES = [
    *(("squeezenet", 32, 3), ("squeezenet", 32, 1000), ("densenet121", 32, 3)),
    pytest.param("lstm", 3, 3, marks=pytest.mark.nightly),
    pytest.param("gpt2", 4, 5, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("name", "side", "count"), CASES)
def test_segments_compute_the_results_of_the_whole_network(name: str, side: int, count: int) -> None:
    network = NETWORKS[name].resized(side)
    skip_without_library(network)
    module, loss, x, y = random_example(network, 2)
    results = []
    for forward in (module, segmented(network, module, count)):
        torch.manual_seed(1)
        value = loss(forward(x), y)
        value.backward()  # type: ignore[no-untyped-call]
        results.append([value.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
        module.zero_grad()
    whole, parts = results
    assert len(whole) == len(parts) > 1
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
