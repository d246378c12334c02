"""The policies by name. Each is a function from jobs, link and budget to plans, in a file of its own."""

from collections.abc import Mapping
from types import MappingProxyType

from indb_tensile.scheduler.policies.autoswap import autoswap
from indb_tensile.scheduler.policies.capuchin import capuchin
from indb_tensile.scheduler.policies.home import home
from indb_tensile.scheduler.policies.liveness import liveness
from indb_tensile.scheduler.policies.policy import Policy
from indb_tensile.scheduler.policies.superneurons import superneurons
from indb_tensile.scheduler.policies.tensile import tensile
from indb_tensile.scheduler.policies.tensile_plus import tensile_plus
from indb_tensile.scheduler.policies.vanilla import vanilla
from indb_tensile.scheduler.policies.vdnn import vdnn
from indb_tensile.scheduler.policies.zico import zico

DEFAULT_POLICY = "tensile+"
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "vanilla": vanilla,
        "liveness": liveness,
        "autoswap": autoswap,
        "home": home,
        "tensile": tensile,
        "vdnn": vdnn,
        "zico": zico,
        "superneurons": superneurons,
        "capuchin": capuchin,
        "tensile+": tensile_plus,
    }
)
# these policies give equal jobs equal parts of the budget, and equal plans
PER_JOB = frozenset(POLICIES) - {"tensile", "tensile+"}
