"""The policies by name. Each has a file of its own; most are plain functions from jobs, link and budget to plans."""

from collections.abc import Mapping
from types import MappingProxyType

from indb_tensile.errors import MissingError
from indb_tensile.scheduler.policies.autoswap import autoswap
from indb_tensile.scheduler.policies.capuchin import capuchin
from indb_tensile.scheduler.policies.home import home
from indb_tensile.scheduler.policies.liveness import liveness
from indb_tensile.scheduler.policies.policy import FunctionPolicy, Policy
from indb_tensile.scheduler.policies.superneurons import superneurons
from indb_tensile.scheduler.policies.tensile import tensile
from indb_tensile.scheduler.policies.tensile_plus_policy import TensilePlus
from indb_tensile.scheduler.policies.vanilla import vanilla
from indb_tensile.scheduler.policies.vdnn import vdnn
from indb_tensile.scheduler.policies.zico import Zico

DEFAULT_POLICY = "tensile+"
_REGISTERED: tuple[Policy, ...] = (
    FunctionPolicy("vanilla", vanilla),
    FunctionPolicy("liveness", liveness),
    FunctionPolicy("autoswap", autoswap),
    FunctionPolicy("home", home),
    FunctionPolicy("tensile", tensile, plans_jobs_apart=False),
    FunctionPolicy("vdnn", vdnn),
    Zico(),
    FunctionPolicy("superneurons", superneurons),
    FunctionPolicy("capuchin", capuchin),
    TensilePlus(),
)
POLICIES: Mapping[str, Policy] = MappingProxyType({policy.name: policy for policy in _REGISTERED})


def policy_named(name: str) -> Policy:
    """Return the policy of this name. Raises MissingError if there is none."""
    if name not in POLICIES:
        raise MissingError(f"there is no policy '{name}'", hint=f"Policies are: {', '.join(sorted(POLICIES))}.")
    return POLICIES[name]
