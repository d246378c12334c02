"""Whether the jobs of a controller may share memory in phases, and what a boundary between two segments costs."""

import logging

from indb_tensile.config import Settings

log = logging.getLogger("controller")

# On a GPU the host waits, exchanges regions and launches between two segments of a job in a round. An estimate: the
# thread sleeps while it waits, which costs some tens of microseconds. tests/gpu measures it (part `rounds`).
_GPU_BOUNDARY_NS = 60_000


def runs_rounds(settings: Settings, *, shared: bool) -> bool:
    """Return whether jobs may share memory in phases. If they may not although they should, the log says why.

    `shared` is true if the controller makes a GPU's regions for all trainers.
    """
    if not settings.phases:
        return False
    obstacle = _obstacle(settings, shared=shared)
    if obstacle:
        log.warning("phases is on, and jobs do not share memory in phases: %s", obstacle)
    return not obstacle


def boundary_ns(settings: Settings) -> int:
    """Return the time for which the device stands still between two segments of a job in a round."""
    return _GPU_BOUNDARY_NS if _is_gpu(settings) else 0


def _obstacle(settings: Settings, *, shared: bool) -> str:
    """Return why regions cannot pass from job to job, or an empty text.

    Without shared regions a trainer would have to allocate and free memory several times in each iteration, by slow
    calls of the driver.
    """
    if settings.strict:
        return "strict is on, so every byte has one owner all the time"
    if _is_gpu(settings) and not shared:
        return "each trainer allocates its own regions of the GPU, so no region can pass from job to job"
    return ""


def _is_gpu(settings: Settings) -> bool:
    return settings.device.startswith("cuda")
