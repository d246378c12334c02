"""Compare the planned steps of a job, under plans that save nothing and that save much, with the eager loop."""

from collections.abc import Sequence

from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan


def assert_every_plan_gives_eagers_bits(job: Job, steps: Sequence[CapturedStep]) -> None:
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    plans = [
        (LIVENESS,) * len(steps),
        tuple(random_plan(step.graph, 1, share=1.0) for step in steps),
        tuple(random_rewritten_plan(step.graph, 2) for step in steps),
    ]
    for chosen in plans:
        state = job.state()
        runner = Runner(MemoryDevice(), state, tuple(steps))
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job)) == expected_seen, chosen
        assert state_bits(state.export()) == expected, chosen
        runner.close()
