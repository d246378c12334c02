"""Networks in segments are the networks, bit for bit."""

import pytest
import torch

from indb_tensile.bench.harness import networks
from indb_tensile.bench.harness.networks import NETWORKS, random_example
from indb_tensile.bench.harness.segments import segmented

# One network of each form: a chain, dense blocks, steps, an encoder of transformers. The others' figures in `bench
# step` say by themselves whether they are the network's.
CASES = [("squeezenet", 32, 3), ("squeezenet", 32, 1000), ("densenet121", 32, 3), ("lstm", 3, 3), ("gpt2", 4, 5)]


@pytest.mark.parametrize(("name", "side", "count"), CASES)
def test_segments_make_what_the_whole_network_makes(name: str, side: int, count: int) -> None:
    network = NETWORKS[name].resized(side)
    lacking = networks.missing_library(network)
    if lacking is not None:
        pytest.skip(f"{lacking} is not installed: it is in the extra `bench`")
    module, loss, x, y = random_example(network, 2)
    found = []
    for forward in (module, segmented(network, module, count)):
        torch.manual_seed(1)
        value = loss(forward(x), y)
        value.backward()  # type: ignore[no-untyped-call]
        found.append([value.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
        module.zero_grad()
    whole, parts = found
    assert len(whole) == len(parts) > 1
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
