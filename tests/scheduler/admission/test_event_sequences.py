"""Check that no sequence of events exceeds the budget, loses a job or gets stuck."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Blame, ClaimedJob, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    AssignJob,
    BeginRound,
    CancelJob,
    ClaimNext,
    EndRound,
    EndTrainer,
    FailJob,
    GrantCalibration,
    LeaveRound,
    LendForBatch,
    Order,
    ParkJob,
    PlayPart,
    ReleaseTrainer,
    RequeueJob,
    SendPlans,
    SetGrant,
    SetRoundPool,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.decide import decide
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import (
    Adoption,
    Answered,
    BatchLoan,
    BudgetChange,
    Calibration,
    CancelRequest,
    Capture,
    Claim,
    ClaimLoss,
    Correction,
    Event,
    Exit,
    Failure,
    Finish,
    Holding,
    IdleDevice,
    Measurement,
    Misplacement,
    Parking,
    PauseChange,
    QueueChange,
    RoundLeft,
    SpareReady,
    StepsLeft,
    Tick,
)
from indb_tensile.scheduler.admission.parking import bring_back, set_aside
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    SlowPlannerController,
    graph,
    job,
)

_LINK = Link(out_bytes_per_s=1 << 40, in_bytes_per_s=1 << 40)
_TURNS = Contention(points=((1, 1.0), (2, 2.0)))


class EventSimulation:
    """Simulate the trainers and the queue around `decide()`: carry out its orders, and check the invariants."""

    def __init__(
        self,
        budget: int,
        sizes: list[int],
        data: st.DataObject,
        *,
        slow: bool,
        shifts: bool = False,
        loans: bool = False,
    ) -> None:
        rules: dict[str, Any] = {"spare_trainers": 2, "max_jobs": 4, "phases": not shifts, "moves_trained": True}
        if shifts:
            rules |= {"sharing": Sharing.COMPLETION, "link": _LINK, "first_step_s": 5.0, "contention": _TURNS}
        if loans:
            rules["batch"] = ("t0",)
        self.controller = (SlowPlannerController if slow else FakeController)(budget, **rules)
        self.now_s = 0.0
        self.data = data
        self.sizes = dict(enumerate(sizes, start=1))
        self.queued = list(self.sizes)
        self.outcome_by_job: dict[int, str] = {}
        self.claims = 0
        self.starting: set[TrainerId] = set()
        self.idle: set[TrainerId] = set()
        self.busy: dict[TrainerId, ClaimedJob] = {}
        self.next_message: dict[TrainerId, Event] = {}  # by trainer: the message that it sends next
        self.loan_answers: dict[TrainerId, list[Event]] = {}  # by trainer: what it sends before `next_message`
        self.lent: dict[TrainerId, int] = {}  # by trainer: the number of the loan that it uses
        self.ending: set[TrainerId] = set()
        self.held_bytes: dict[TrainerId, int] = {}  # by trainer: the memory that it holds
        self.granted_bytes: dict[TrainerId, int] = {}
        self.in_flight: dict[TrainerId, int] = {}
        self.outcome_by_claim: dict[int, str] = {}
        self.paused: set[int] = set()
        self.workspaces: dict[int, int] = {}  # by job, in regions: as measured last
        self.corrections: dict[TrainerId, int] = {}  # the number of the last correction
        self.pool_bytes = 0  # of the round
        self.seated = tuple[TrainerId, ...]()  # the trainers of the round
        self.joined: set[TrainerId] = set()  # those that iterate in it
        self.played: set[TrainerId] = set()  # those whose parts the controller plays

    def alive(self) -> set[TrainerId]:
        return self.starting | self.idle | set(self.busy) | self.ending

    def send(self, event: Event) -> None:
        before = self.controller.pool
        answers: list[Event] = []
        orders = self.controller.decide(event)
        assert (self.controller.pool, orders) == decide(before, event, self.controller.planner), "not deterministic"
        for order in orders:
            self.perform(order, answers)
        for answer in answers:
            self.send(answer)

    def perform(self, order: Order, answers: list[Event]) -> None:  # noqa: C901 - a table: one case per kind of order
        match order:
            case SpawnTrainer(trainer=trainer):
                assert trainer not in self.alive()
                self.starting.add(trainer)
            case ClaimNext():
                answers.append(Claim(job=self.claim()))
            case AssignJob(trainer=trainer, job=claimed):
                self.idle.remove(trainer)
                self.busy[trainer] = claimed
                self.next_message[trainer] = self.capture(trainer)
            case SetGrant(trainer=trainer, grant_bytes=grant_bytes):
                assert grant_bytes % REGION == 0
                held_bytes = self.held_bytes.get(trainer, 0)
                assert grant_bytes >= self.granted_bytes.get(trainer, 0) or trainer not in self.lent
                self.granted_bytes[trainer] = grant_bytes
                self.held_bytes[trainer] = max(held_bytes, grant_bytes)
                if grant_bytes > held_bytes:
                    self.check_budget()
                elif self.data.draw(st.booleans(), label="empty at once"):
                    answers.append(self.give_memory_back(trainer))
            case GrantCalibration(trainer=trainer, grant_bytes=grant_bytes):
                assert self.granted_bytes[trainer] == grant_bytes
                self.next_message[trainer] = self.calibration(trainer, grant_bytes)
            case SendPlans(trainer=trainer, generation=generation, grant_bytes=grant_bytes, round=number):
                assert order.correction == self.corrections.get(trainer, 0), "a plan for old workspaces"
                assert (number is None) == (not self.seated), "a plan of no round in a round, or the reverse"
                assert trainer not in self.in_flight, "two generations in flight"
                assert grant_bytes <= self.granted_bytes[trainer]
                self.in_flight[trainer] = generation
                self.next_message[trainer] = Adoption(trainer=trainer, generation=generation)
            case ParkJob(trainer=trainer, number=number, in_memory=in_memory, elsewhere=elsewhere):
                self.next_message.pop(trainer, None)  # the order to leave a round comes first
                assert trainer not in self.next_message
                self.next_message[trainer] = Parking(trainer=trainer, number=number, host_bytes=5)
                if not in_memory or (elsewhere and self.data.draw(st.booleans(), label="goes elsewhere")):
                    fault = Fault(sqlstate="53200", message="no room")
                    self.next_message[trainer] = Failure(trainer=trainer, fault=fault, retry=True, blame=Blame.NOBODY)
            case LendForBatch(trainer=trainer, number=number, size_bytes=size_bytes):
                self.lend(trainer, number, size_bytes)
            case EndTrainer(trainer=trainer):
                assert trainer in self.alive()
                self.ending.add(trainer)
            case ReleaseTrainer(trainer=trainer):
                self.held_bytes.pop(trainer, None)
                self.granted_bytes.pop(trainer, None)
            case FailJob(job=number, claim=claim):
                self.end_job(number, claim, "failed")
            case CancelJob(job=number, claim=claim):
                self.end_job(number, claim, "cancelled")
            case RequeueJob(job=number, claim=claim):
                self.record_outcome(claim, "requeued")
                self.queued.append(number)
            case _:
                self.perform_of_a_round(order)

    def perform_of_a_round(self, order: Order) -> None:
        match order:
            case BeginRound(trainers=trainers):
                assert not self.seated
                assert self.pool_bytes == 0
                self.seated = trainers
            case SetRoundPool(size_bytes=size_bytes):
                assert size_bytes % REGION == 0
                self.pool_bytes = size_bytes
                self.check_budget()
            case PlayPart(trainer=trainer):
                assert trainer in self.seated
                self.played.add(trainer)
            case LeaveRound(trainer=trainer, number=number):
                assert trainer in self.joined
                assert trainer not in self.next_message
                self.next_message[trainer] = RoundLeft(trainer=trainer, number=number)
            case EndRound():
                assert not self.joined, "a round ended while a member iterates"
                self.seated, self.played = (), set()
            case _:
                pass

    def lend(self, trainer: TrainerId, number: int, size_bytes: int) -> None:
        """Use the loan, refuse it, or give it back."""
        assert trainer in self.busy
        assert trainer not in self.in_flight
        assert not self.seated
        assert trainer not in self.next_message, "an order to lend after one to park"
        refuses = size_bytes and self.data.draw(st.booleans(), label="refuses the loan")
        if size_bytes and not refuses:
            assert trainer not in self.lent
            self.lent[trainer] = number
        else:
            answer = BatchLoan(trainer=trainer, number=number, size_bytes=0)
            self.loan_answers.setdefault(trainer, []).append(answer)

    def with_messages(self) -> set[TrainerId]:
        """Return the trainers that have something to send."""
        return {*self.next_message, *self.loan_answers}

    def check_budget(self) -> None:
        held_bytes = sum(self.held_bytes.values())
        assert held_bytes + self.pool_bytes <= self.controller.pool.budget_bytes, "grants exceed the budget"

    def give_memory_back(self, trainer: TrainerId) -> Holding:
        """Let the trainer give back the memory above its grant."""
        self.held_bytes[trainer] = self.granted_bytes[trainer]
        return Holding(trainer=trainer, held_bytes=self.granted_bytes[trainer])

    def claim(self) -> ClaimedJob | None:
        number = next((n for n in self.queued if n not in self.paused), None)
        if number is None:
            return None
        self.claims += 1
        self.queued.remove(number)
        return job(number, claim=self.claims)

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

    def capture(self, trainer: TrainerId) -> Capture:
        size = self.sizes[self.busy[trainer].job]
        unknown = self.data.draw(st.integers(0, 1), label="unknown operators")
        graphs = (self.graph(trainer),)
        steps = self.data.draw(st.sampled_from((1.0, 1e10, 1e12)), label="steps")
        return Capture(trainer=trainer, graphs=graphs, latency_ns=((100,) * size,), unknown=unknown, steps=steps)

    def graph(self, trainer: TrainerId) -> StepGraph:
        """Return the graph of the trainer's job, with the workspace that was measured last."""
        number = self.busy[trainer].job
        return graph(self.sizes[number], self.sizes[number], self.workspaces.get(number, 0))

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

    def calibration(self, trainer: TrainerId, grant_bytes: int) -> Calibration:
        size = self.sizes[self.busy[trainer].job]
        needs_bytes = self.data.draw(st.integers(1, size), label="calibration needs") * REGION
        return Calibration(
            trainer=trainer,
            graphs=(self.graph(trainer),),
            latency_ns=((100,) * size,),
            overflow_bytes=max(0, needs_bytes - grant_bytes),
        )

    def record_outcome(self, claim: int, outcome: str) -> None:
        assert claim not in self.outcome_by_claim, f"{outcome} after {self.outcome_by_claim[claim]}"
        self.outcome_by_claim[claim] = outcome

    def end_job(self, number: int, claim: int, outcome: str) -> None:
        self.record_outcome(claim, outcome)
        assert number not in self.outcome_by_job
        self.outcome_by_job[number] = outcome

    def exit_trainer(self, trainer: TrainerId, code: int = -9) -> None:
        for group in (self.starting, self.idle, self.ending, self.joined):
            group.discard(trainer)
        for table in (self.busy, self.next_message, self.in_flight, self.loan_answers, self.lent):
            table.pop(trainer, None)
        self.send(Exit(trainer=trainer, code=code))

    def send_next_message(self, trainer: TrainerId) -> None:
        """Send the trainer's next message of the protocol."""
        if trainer in self.loan_answers:
            answer = self.loan_answers[trainer].pop(0)
            self.loan_answers = {key: answers for key, answers in self.loan_answers.items() if answers}
            self.lent.pop(trainer, None)
            self.send(answer)
            return
        self.lent.pop(trainer, None)  # it adopts or parks
        event = self.next_message.pop(trainer)
        self.joined.discard(trainer)  # it adopts, leaves or parks at the end of an iteration
        if isinstance(event, Adoption):
            del self.in_flight[trainer]
            member = self.controller.pool.of_trainer(trainer)
            if member is not None and member.plan is not None and member.plan.part is not None and self.seated:
                self.joined.add(trainer)
        self.send(event)

    def finish_job(self, trainer: TrainerId) -> None:
        claimed = self.busy.pop(trainer)
        self.next_message.pop(trainer, None)
        self.loan_answers.pop(trainer, None)
        if (number := self.lent.pop(trainer, None)) is not None:
            self.send(BatchLoan(trainer=trainer, number=number, size_bytes=0))
        self.joined.discard(trainer)
        leaves_first: bool = self.data.draw(st.booleans(), label="leaves a round before it ends")
        if self.seated and leaves_first:
            self.send(RoundLeft(trainer=trainer, number=self.controller.pool.rounds))
        self.ending.add(trainer)
        self.end_job(claimed.job, claimed.claim, "succeeded")
        closing_ns = self.data.draw(st.sampled_from([None, 0, 10**6, 10**10]), label="closed for")
        self.send(Finish(trainer=trainer, closing_ns=closing_ns))

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
        action = self.data.draw(st.integers(0, 19), label="action")
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
        else:
            self.answer_question()

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
    simulation = EventSimulation(budget, sizes, data, slow=slow, shifts=shifts, loans=loans)
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
