"""Check that no sequence of events exceeds the budget, loses a job or gets stuck."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import (
    Answered,
    BudgetChange,
    CancelRequest,
    ClaimLoss,
    Correction,
    IdleDevice,
    Measurement,
    Misplacement,
    PauseChange,
    QueueChange,
    RanksChange,
    SpareReady,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.parking import bring_back, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, TrainerId
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from tests.scheduler.admission.fake_controller import REGION, SlowPlannerController
from tests.scheduler.admission.simulated_trainers import SimulatedTrainers


class EventSimulation(SimulatedTrainers):
    """Sends random events, and lets every job run to its end."""

    def pause(self, paused: set[int]) -> None:
        """Let the owners pause exactly these jobs. The next heartbeat reports those that this controller has."""
        self.paused = paused
        held = {m.job.job for m in self.controller.pool.members}
        self.send(PauseChange(paused=frozenset(JobId(number) for number in held & paused)))
        self.send(QueueChange())

    def set_aside(self, numbers: set[int]) -> None:
        """Let the division of the memory set exactly these jobs aside."""
        decision = Decision(self.controller.pool, self.controller.planner)
        for member in decision.pool.members:
            (set_aside if member.job.job in numbers else bring_back)(decision, member)
        self.controller.pool = decision.pool
        self.send(Tick())

    def outgrow(self, trainer: TrainerId) -> None:
        """Let an operator of the trainer's job need a larger workspace."""
        number = self.busy[trainer].job
        workspace = self.workspaces.get(number, 0) + self.data.draw(st.integers(1, 10), label="more")
        self.workspaces[number] = workspace
        self.corrections[trainer] = self.corrections.get(trainer, 0) + 1
        operator = OutgrownOperator(signature="op0", name="op0", planned_bytes=0, measured_bytes=workspace * REGION)
        self.send(
            Correction(
                trainer=trainer,
                number=self.corrections[trainer],
                graphs=(self.graph(trainer),),
                outgrown=(operator,),
            )
        )

    def lose_claim(self, number: int) -> None:
        """Let another worker rescue the job: the job is queued again and no longer claimed by this controller."""
        members = [
            m
            for m in self.controller.pool.members
            if m.job.job == number and m.job.claim not in self.outcome_by_claim
        ]
        if members and members[-1].outcome is None:
            self.record_outcome(members[-1].job.claim, "lost")
            self.send(ClaimLoss(claim=members[-1].job.claim))
            self.queued.append(number)
            self.send(QueueChange())

    def take_random_action(self) -> None:  # noqa: C901 - a table: one case per kind of action
        action = self.data.draw(st.integers(0, 20), label="action")
        numbers = st.sampled_from(sorted(self.sizes))
        if action == 0:
            self.send(Tick())
        elif action in (1, 2) and self.starting:
            trainer = self.draw_trainer(self.starting)
            self.starting.remove(trainer)
            self.idle.add(trainer)
            self.send(SpareReady(trainer=trainer))
        elif action in (3, 4, 5) and self.with_messages():
            self.send_next_message(self.draw_trainer(self.with_messages()))
        elif action == 6 and (running := self.trainers_under_plan()):
            self.finish_job(self.draw_trainer(running))
        elif action == 7 and self.alive():
            self.exit_trainer(self.draw_trainer(self.alive()))
        elif action == 8:
            self.send(CancelRequest(job=JobId(self.data.draw(numbers))))
        elif action == 9:
            self.lose_claim(self.data.draw(numbers))
        elif action == 10:
            self.send(BudgetChange(budget_bytes=self.data.draw(st.integers(1, 20)) * REGION + 7))
        elif action == 11 and (running := self.trainers_under_plan()):
            self.send_measurement(self.draw_trainer(running))
        elif action == 12 and self.held_bytes:
            self.send(self.give_memory_back(self.draw_trainer(self.held_bytes)))
        elif action == 13:
            self.pause(self.data.draw(st.sets(numbers), label="paused"))
        elif action == 14:
            self.set_aside(self.data.draw(st.sets(numbers), label="set aside"))
        elif action == 15 and (running := self.trainers_under_plan()):
            self.send_progress(self.draw_trainer(running))
        elif action == 16 and (running := self.trainers_under_plan()):
            self.outgrow(self.draw_trainer(running))
        elif action == 17 and (running := self.trainers_under_plan()):
            trainer = self.draw_trainer(running)
            generation = self.data.draw(st.integers(1, 3), label="misplaced")
            self.send(Misplacement(trainer=trainer, generation=generation, block_bytes=REGION))
        elif action == 18:
            idle_bytes = self.data.draw(st.sampled_from([None, 5 * REGION, 30 * REGION]), label="idle device")
            for _ in range(3):
                self.send(IdleDevice(budget_bytes=idle_bytes))
        elif action == 19:
            self.hear_ranks(self.data.draw(numbers))
        else:
            self.answer_question()

    def hear_ranks(self, number: int) -> None:
        """Let other ranks of the job have published steps, also such as do not go with this rank's."""
        members = [m for m in self.controller.pool.members if m.job.job == number]
        times = st.integers(1, 5000)
        steps = []
        for rank in self.data.draw(st.sets(st.integers(0, 2)), label="ranks that have published"):
            events = self.data.draw(st.sampled_from([(), (), (0, -1)]))
            work_ns = tuple(self.data.draw(times) for _ in range(len(events) + 1))
            yields = self.data.draw(st.booleans())
            exchange_ns = (self.data.draw(times),) * (len(events) // 2)
            step = PublishedStep(events=events, work_ns=work_ns, exchange_ns=exchange_ns, least_ns=1, yields=yields)
            steps.append((rank, step))
        if members:
            self.send(RanksChange(claim=members[-1].job.claim, steps=tuple(steps)))

    def send_progress(self, trainer: TrainerId) -> None:
        """Report that the job has few of its steps left, or many, and let a second pass."""
        left = self.data.draw(st.sampled_from([1e9, 1e8, 1e6, 1.0]), label="steps left")
        startup_ns = self.data.draw(st.sampled_from([None, 0, 10**6, 10**10]), label="started up for")
        self.send(StepsLeft(trainer=trainer, steps_left=left, startup_ns=startup_ns))
        self.now_s += 1.0
        self.send(Tick(now_s=self.now_s, time_of_day="12:00:00 UTC"))

    def send_measurement(self, trainer: TrainerId) -> None:
        size = self.sizes[self.busy[trainer].job]
        latency_ns = self.data.draw(st.integers(10, 1000))
        self.send(
            Measurement(
                trainer=trainer,
                generation=1,
                latency_ns=(latency_ns,) * size,
                iteration_ns=1,
                step_ns=self.data.draw(st.integers(0, 2000), label="step"),
                stall_ns=0,
                peak_bytes=1,
                last=self.data.draw(st.booleans(), label="last"),
            )
        )

    def answer_question(self) -> bool:
        """Let the planner answer its question. Return whether it had one."""
        if not isinstance(self.controller, SlowPlannerController) or self.controller.question is None:
            return False
        self.controller.compute_answer()
        self.send(Answered())
        return True

    def trainers_under_plan(self) -> set[TrainerId]:
        """Return the trainers that follow a plan. Only they can finish."""
        return {
            m.trainer
            for m in self.controller.pool.members
            if m.trainer in self.busy
            and m.stage in (JobStage.RUNNING, JobStage.PARKING)
            and m.adopted
            and not m.parked
            and m.trainer not in self.ending
        }

    def draw_trainer(self, trainers: Any) -> TrainerId:
        trainer: TrainerId = self.data.draw(st.sampled_from(sorted(trainers)))
        return trainer

    def run_to_completion(self) -> None:
        """Let every job run to its end, and fail if one cannot end."""
        self.send(BudgetChange(budget_bytes=20 * REGION))
        self.set_aside(set())
        self.pause(set())
        for _ in range(3000):
            if len(self.outcome_by_job) == len(self.sizes) and not self.controller.pool.members:
                return
            if self.ending:
                self.exit_trainer(min(self.ending), 0)
            elif self.answer_question():
                pass
            elif self.with_messages():
                self.send_next_message(min(self.with_messages()))
            elif self.starting:
                trainer = min(self.starting)
                self.starting.remove(trainer)
                self.idle.add(trainer)
                self.send(SpareReady(trainer=trainer))
            elif running := self.trainers_under_plan():
                self.finish_job(min(running))
            else:
                for holder in sorted(self.held_bytes):
                    self.send(self.give_memory_back(holder))
                self.send(Tick())
        pytest.fail(f"stuck: {self.controller.pool}")


@given(st.data())
def test_no_sequence_of_events_exceeds_the_budget_loses_a_job_or_gets_stuck(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6), label="sizes")
    slow = data.draw(st.booleans(), label="a planner that takes its time")
    budget = data.draw(st.integers(1, 20), label="budget")
    shifts = data.draw(st.booleans(), label="jobs change places")
    loans = data.draw(st.booleans(), label="memory is lent for next batches")
    planned_slowdown = (
        data.draw(st.sampled_from([None, 1.5, 6.0]), label="plans of half the memory") if shifts else None
    )
    ranks = data.draw(st.frozensets(st.integers(1, len(sizes))), label="ranks of jobs for several devices")
    simulation = EventSimulation(
        budget, sizes, data, slow=slow, shifts=shifts, loans=loans, planned_slowdown=planned_slowdown, ranks=ranks
    )
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        simulation.take_random_action()
    simulation.run_to_completion()
    known_jobs = (
        set(simulation.outcome_by_job)
        | set(simulation.queued)
        | {m.job.job for m in simulation.controller.pool.members}
    )
    assert known_jobs == set(simulation.sizes)
    assert sum(simulation.held_bytes.values()) == simulation.pool_bytes == 0
    assert simulation.controller.pool.round is None
