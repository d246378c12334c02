"""One file a policy: from jobs, link and budget to plans."""

from collections.abc import Mapping
from types import MappingProxyType

from indb_tensile.scheduler.policies.liveness import liveness
from indb_tensile.scheduler.policies.policy import Policy
from indb_tensile.scheduler.policies.tensile import tensile
from indb_tensile.scheduler.policies.vanilla import vanilla

POLICIES: Mapping[str, Policy] = MappingProxyType({"vanilla": vanilla, "liveness": liveness, "tensile": tensile})
