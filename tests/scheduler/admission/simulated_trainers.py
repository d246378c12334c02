"""Trainers and a queue that carry out the orders of `decide()`, and check the invariants at each."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from indb_tensile.job import Blame, ClaimedJob, ClaimedRank, ClaimToken
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
from indb_tensile.scheduler.admission.events import (
    Adoption,
    BatchLoan,
    Calibration,
    Capture,
    Claim,
    Departure,
    Event,
    Exit,
    Failure,
    Finish,
    Holding,
    Parking,
    RoundLeft,
)
from indb_tensile.scheduler.admission.pool import Fault, JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    SlowPlannerController,
    graph,
    job,
)

_LINK = Link(out_bytes_per_s=1 << 40, in_bytes_per_s=1 << 40)
_TURNS = Contention(points=((1, 1.0), (2, 2.0)))


class SimulatedTrainers:
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
        planned_slowdown: float | None = None,
        ranks: frozenset[int] = frozenset(),
    ) -> None:
        """`ranks` are the numbers of the jobs that other devices train, too."""
        self.ranks = ranks
        rules: dict[str, Any] = {"spare_trainers": 2, "max_jobs": 4, "phases": not shifts, "moves_trained": True}
        if shifts:
            rules |= {"sharing": Sharing.COMPLETION, "link": _LINK, "first_step_s": 5.0, "contention": _TURNS}
        if loans:
            rules["batch"] = ("t0",)
        planner = HalvingPlanner(planned_slowdown=planned_slowdown, rounds=not shifts, uploads=loans)
        self.controller = (SlowPlannerController if slow else FakeController)(budget, planner, **rules)
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
        claimed = job(number, claim=self.claims)
        if number not in self.ranks:
            return claimed
        return replace(claimed, gang=ClaimedRank(rank=1, ranks=3, attempt_claim=ClaimToken(0)))

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
        if isinstance(event, Finish):
            self.publish(event)
            return
        self.joined.discard(trainer)  # it adopts, leaves or parks at the end of an iteration
        if isinstance(event, Adoption):
            del self.in_flight[trainer]
            member = self.controller.pool.of_trainer(trainer)
            if member is not None and member.plan is not None and member.plan.part is not None and self.seated:
                self.joined.add(trainer)
        self.send(event)

    def finish_job(self, trainer: TrainerId) -> None:
        """Let the trainer publish its job's version, at once or after it has left the device."""
        self.next_message.pop(trainer, None)
        self.loan_answers.pop(trainer, None)
        if (number := self.lent.pop(trainer, None)) is not None:
            self.send(BatchLoan(trainer=trainer, number=number, size_bytes=0))
        self.joined.discard(trainer)
        leaves_first: bool = self.data.draw(st.booleans(), label="leaves a round before it ends")
        if self.seated and leaves_first:
            self.send(RoundLeft(trainer=trainer, number=self.controller.pool.rounds))
        closing_ns = self.data.draw(st.sampled_from([None, 0, 10**6, 10**10]), label="closed for")
        finish = Finish(trainer=trainer, closing_ns=closing_ns)
        if self.data.draw(st.booleans(), label="leaves the device before it publishes"):
            self.in_flight.pop(trainer, None)
            self.next_message[trainer] = finish
            steps_left = self.data.draw(st.sampled_from([None, 0.0, 1.0, 1e9]), label="stopped early")
            self.send(Departure(trainer=trainer, steps_left=steps_left))
            member = self.controller.pool.of_trainer(trainer)
            assert member is not None
            assert (member.stage, member.granted_bytes, member.host_bytes) == (JobStage.CLOSING, 0, 0)
        else:
            self.publish(finish)

    def publish(self, finish: Finish) -> None:
        """End the job. A trainer that was told to end before it has published ends without that."""
        if finish.trainer in self.ending:
            return
        claimed = self.busy.pop(finish.trainer)
        self.ending.add(finish.trainer)
        self.end_job(claimed.job, claimed.claim, "succeeded")
        self.send(finish)
