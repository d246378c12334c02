"""Check how many cores other programs are measured to keep busy while jobs train."""

from dataclasses import replace

import pytest

from indb_tensile.controller.core_use import CoreUse
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool, RunningSet
from indb_tensile.scheduler.completion.contention import of_cores
from tests.scheduler.admission.fake_controller import job


class _Machine:
    """Processor times that a test sets: of everything, and of each process."""

    def __init__(self) -> None:
        self.busy_s, self.trainers_s = 100.0, {7: 10.0, 8: 20.0}

    def passes(self, others_s: float, *trainers_s: float) -> None:
        for pid, used_s in zip(self.trainers_s, trainers_s, strict=False):
            self.trainers_s[pid] += used_s
        self.busy_s += others_s + sum(trainers_s)

    def use(self, known: float | None = None) -> CoreUse:
        return CoreUse(known, read_busy_s=lambda: self.busy_s, read_trainer_s=self.trainers_s.get)


def _member(number: int, stage: JobStage) -> Member:
    return Member(job=job(number), stage=stage)


def _pool(*jobs: int, cores: int = 2) -> Pool:
    """Return a pool in which these jobs train."""
    members = tuple(_member(number, JobStage.RUNNING) for number in jobs)
    return Pool(
        budget_bytes=100 << 20,
        region_bytes=1 << 20,
        contention=replace(of_cores(2, 1), cores=cores),
        members=members,
        running_set=RunningSet(jobs=tuple(map(JobId, jobs))),
    )


def test_what_others_use_beside_two_trainings_is_what_trainers_do_not() -> None:
    machine, pool = _Machine(), _pool(1, 2)
    use = machine.use()
    assert use.measure(pool, (7, 8), 0.0) is None, "nothing has been measured"
    machine.passes(0.1, 0.95, 0.95)
    assert use.measure(pool, (7, 8), 1.0) == pytest.approx(0.1)
    machine.passes(0.3, 1.8, 1.8)
    assert use.measure(pool, (7, 8), 3.0) == pytest.approx(0.4 / 3), "the mean over the time"


@pytest.mark.parametrize("change", ["prepares", "plans", "divides", "closes", "other jobs"])
def test_seconds_in_which_anything_but_training_goes_on_do_not_count(change: str) -> None:
    machine, pool = _Machine(), _pool(1, 2)
    changed = {
        "prepares": replace(pool, members=(*pool.members, _member(3, JobStage.CAPTURING))),
        "plans": replace(pool, asked=True),
        "divides": replace(pool, due=PlanReason.START),
        "closes": replace(pool, members=(*pool.members, _member(3, JobStage.CLOSING))),
        "other jobs": _pool(1, 3),
    }
    use = machine.use(0.05)
    assert use.measure(pool, (7, 8), 0.0) == pytest.approx(0.05)
    machine.passes(1.0, 0.5, 0.5)
    assert use.measure(changed[change], (7, 8), 1.0) == pytest.approx(0.05)
    machine.passes(1.0, 0.5, 0.5)
    assert use.measure(pool, (7, 8), 2.0) == pytest.approx(0.05), "the time since the change does not count either"
    machine.passes(0.05, 0.9, 0.9)
    assert use.measure(pool, (7, 8), 3.0) == pytest.approx(0.05)


def test_a_new_trainer_counts_whole_and_what_an_earlier_controller_knew_counts_for_ten_seconds() -> None:
    machine, pool = _Machine(), _pool(1)
    use = machine.use(0.2)
    assert use.measure(pool, (7,), 0.0) == pytest.approx(0.2)
    machine.trainers_s[9] = 0.5
    machine.busy_s += 0.5 + 0.6
    assert use.measure(pool, (7, 9), 10.0) == pytest.approx((2.0 + 0.6) / 20)


def test_older_seconds_count_less() -> None:
    machine, pool = _Machine(), _pool(1)
    use = machine.use()
    use.measure(pool, (7,), 0.0)
    machine.passes(60.0)
    assert use.measure(pool, (7,), 60.0) == pytest.approx(1.0)
    for second in range(60):
        machine.passes(0.0)
        taken = use.measure(pool, (7,), 61.0 + second)
    assert taken == pytest.approx((60 / 61) ** 60, rel=1e-6)


def test_nothing_is_known_without_cores_or_without_the_time_of_a_trainer() -> None:
    machine = _Machine()
    assert machine.use(0.5).measure(_pool(1, cores=0), (7,), 0.0) is None
    use, pool = machine.use(), _pool(1)
    use.measure(pool, (7, 99), 0.0)
    machine.passes(1.0)
    assert use.measure(pool, (7, 99), 1.0) is None
