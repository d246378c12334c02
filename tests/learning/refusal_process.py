"""A process that answers test_requirements.py: it refuses a network, and prints the error and the growth in MiB."""

import resource

from indb_tensile.errors import MemoryLimitError
from indb_tensile.learning.networks.requirements import AvailableMemory
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import sample, spec

memory = AvailableMemory(
    device_bytes=600 << 20, limited=False, host_pool_bytes=8 << 30, host_bytes=1 << 40, free_bytes=1 << 40
)
assemble(sample("digits"), spec("label", architecture={"type": "mlp", "hidden": [64]}), memory)
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    assemble(sample("digits"), spec("label", architecture={"type": "mlp", "hidden": [20000, 20000]}), memory)
except MemoryLimitError as error:
    print(error.message)  # noqa: T201 - read by the test
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) // 1024)  # noqa: T201
