"""Points that a policy may reach, for the tests of tables and verdicts."""

from typing import Any


def point(policy: str, eor: float, peak: int, **more: Any) -> dict[str, Any]:
    """Return a point of a network whose liveness peak is 100."""
    return {
        "model": "net",
        "link_gb_s": 25.0,
        "policy": policy,
        "eor": eor,
        "peak_bytes": peak,
        "liveness_peak_bytes": 100,
        "msr_liveness": 1 - peak / 100,
        "msr_vanilla": 1 - peak / 300,
        "faults": [],
        **more,
    }
