"""Check schedules: their jobs as ids or positions, and the gates of one job."""

from indb_tensile.scheduler.timing.schedule import Gate, Schedule


def test_schedule_translates_between_job_ids_and_positions() -> None:
    by_position = Schedule(jobs=(2, 0), iterations=(1, 3), gates=(_gate(0, 0, 1),), budget_bytes=9)
    by_id = Schedule(jobs=(30, 10), iterations=(1, 3), gates=(_gate(0, 0, 1),), budget_bytes=9)
    assert by_position.called((10, 20, 30)) == by_id
    assert by_id.among((10, 20, 30)) == by_position


def test_gates_of_a_job_are_grouped_by_iteration_and_operator() -> None:
    gates = (_gate(0, 0, 1), _gate(0, 1, 1), _gate(1, 0, 2), _gate(1, 0, 2, 7))
    schedule = Schedule(jobs=(5, 6), iterations=(2, 1), gates=gates, budget_bytes=9)
    assert schedule.of(0) == {(0, 1): gates[:1], (1, 1): gates[1:2]}
    assert schedule.of(1) == {(0, 2): gates[2:]}


def _gate(job: int, iteration: int, operator: int, after_operator: int = 0) -> Gate:
    return Gate(
        job=job,
        iteration=iteration,
        operator=operator,
        after_job=1 - job,
        after_iteration=0,
        after_operator=after_operator,
    )
