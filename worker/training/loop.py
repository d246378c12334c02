"""The epochs of one job: batches, validation, early stop, checkpoints, and new plans between two iterations."""

import logging
import math
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from indb_tensile.catalog import plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import OpMeasurement
from indb_tensile.errors import InvariantError
from indb_tensile.executor.hardware import trim_heap
from indb_tensile.executor.optimizer import AVERAGE, state_name
from indb_tensile.executor.runner import Runner
from indb_tensile.executor.state import STEPS_NAME, State, restore_rng_state, rng_state
from indb_tensile.job import Phase
from indb_tensile.learning.artifacts import CheckpointView
from indb_tensile.learning.earlystop import EarlyStop
from indb_tensile.learning.evaluation import evaluate
from indb_tensile.learning.feed import Feed
from indb_tensile.learning.hyperparams import learning_rate
from indb_tensile.learning.tensorstream import TensorSpec
from indb_tensile.learning.training import Part, Prepared, batch_plan, batches, ordered_batches
from indb_tensile.link import Adopt, Adopted, Link, Measured

from .best_weights import BestWeights
from .checkpointing import Checkpointing
from .diary import PROGRESS_S, Diary
from .inbox import Inbox
from .keeping import Keeping
from .losses import Losses
from .publication import Trained
from .remaining import EVALUATION_SHARE, Position, Remaining, Work
from .steps import Steps

log = logging.getLogger("trainer")

MEASURED_S = 1.0  # between two reports of latencies
REMEMBERED_S = 10.0  # between two that the catalog keeps


@dataclass(kw_only=True)
class Loop:
    """Trains from the job's checkpoint, or from the start, to the last epoch."""

    prepared: Prepared
    state: State
    runner: Runner
    link: Link
    inbox: Inbox
    diary: Diary
    steps: Steps
    checkpointing: Checkpointing
    epochs_done: int = 0
    early_stop: EarlyStop = field(init=False)
    best_directory: Path | None = None  # where a large copy of the best epoch's weights is kept; None: in memory
    _feed: Feed = field(default_factory=Feed)
    _keeping: Keeping = field(init=False)
    _best: BestWeights = field(init=False)
    _measured_at: float = 0.0
    _remembered_at: float = field(default_factory=time.monotonic)
    _validated_s: float = math.inf  # how long the last validation took
    _rows_trained: int = 0
    _seconds_trained: float = 0.0
    _remaining: Remaining = field(init=False)
    _done_at: float = 0.0  # when the last step, or the last end of an epoch, was over

    def __post_init__(self) -> None:
        self.early_stop = self.prepared.early_stop
        self._best = BestWeights(self.prepared.module.state_dict().keys(), self.best_directory)
        self._keeping = Keeping(self.checkpointing, self.diary)
        self._remaining = Remaining(self._work())

    def go(self) -> None:
        """Every epoch that is left; nothing is trained twice."""
        self._resume()
        self.diary.enter(Phase.TRAINING)
        self.diary.signs.begin()
        started = self._done_at = time.monotonic()
        with self._feed:
            while self.epochs_done < self.prepared.settings.epochs and not self.early_stop.stopped:
                loss = self._train_epoch()
                self._close_epoch(loss)
        waiting, taken_s = self._feed.waiting, time.monotonic() - started
        log.info(
            "job %s: waited %.3g s of %.3g for its %d batches",
            self.diary.job.job,
            waiting.waited_s,
            taken_s,
            waiting.batches,
        )

    def trained(self) -> Trained:
        """What is published: the best epoch's parameters and buffers under early stopping, else the last one's."""
        best_epoch = self.early_stop.best_epoch + 1 if self._best else self.epochs_done
        weights = self._best.read() if self._best else self._weights(self.prepared.module.state_dict())
        self._best.close()
        return Trained(weights=weights, epochs=self.epochs_done, best_epoch=best_epoch)

    def _train_epoch(self) -> float:
        """One pass over the training rows; the mean loss over them."""
        prepared, epoch = self.prepared, self.epochs_done
        per_epoch = batch_plan(prepared.train.rows, prepared.settings).steps
        total_steps = per_epoch * prepared.settings.epochs
        losses = Losses()
        orders = batches(prepared.train, epoch, prepared.settings)
        with closing(self._feed.batches((prepared.train.x, prepared.train.y), orders)) as fed:
            for step, (rows, (x, y)) in enumerate(fed):
                self._follow_plans()
                started = time.monotonic() - self._feed.waiting.latest_s
                rate = learning_rate(prepared.settings, epoch * per_epoch + step, total_steps)
                losses.add(self.runner.train(x, y, rate), len(rows))
                self._rows_trained += len(rows)
                self._seconds_trained += time.monotonic() - started
                self._measure()
                self._remaining.stepped(self._lap())
                first_of_all = epoch == 0 and step == 0
                progress = self._progress(step + 1, per_epoch, losses.mean())
                self.diary.report(progress, at_once=first_of_all)
        return losses.mean()

    def _close_epoch(self, loss: float) -> None:
        """Validate, remember the best, report, and keep a checkpoint when one is due."""
        figures: dict[str, float | None] = {"loss": loss}
        if self.prepared.valid.rows:
            if self._validated_s >= PROGRESS_S:  # a phase that nobody could see is not worth a write at each epoch
                self.diary.enter(Phase.VALIDATING)
            started = time.monotonic()
            valid_loss, metrics = self._validate(self.prepared.valid)
            self._validated_s = time.monotonic() - started
            figures |= {"valid_loss": valid_loss, **metrics}
            watched = valid_loss if self.early_stop.metric == "loss" else metrics.get(self.early_stop.metric)
            self._observe(watched)
        if self.early_stop.patience is not None and self.early_stop.best_epoch == self.epochs_done:
            self._best.keep(self._weights)
        self.epochs_done += 1
        steps = batch_plan(self.prepared.train.rows, self.prepared.settings).steps
        progress = self._progress(steps, steps, loss, figures)
        self.diary.report(progress, at_once=True)
        self._save_checkpoint()
        self.diary.enter(Phase.TRAINING)
        self._remaining.closed(self._lap())

    def _observe(self, watched: float | None) -> None:
        """Let early stopping see the epoch; tell once where its metric says nothing."""
        if watched is None and self.epochs_done == 0:
            undefined = f"{self.early_stop.metric} is not defined on the {self.prepared.valid.rows} validation rows"
            outcome = "so early stopping counts no epoch and the last one is published"
            self.diary.tell("metric_undefined", {"reason": f"{undefined}, {outcome}"})
        self.early_stop = self.early_stop.observe(self.epochs_done, watched)

    def _validate(self, part: Part) -> tuple[float, dict[str, float]]:
        """Mean loss and metrics over these rows, by the evaluation step."""
        outputs = self.outputs(part)
        loss = float(self.prepared.loss(outputs, part.y))
        metrics = evaluate(self.prepared.task, outputs.numpy(), part.y.numpy(), self.prepared.preprocessor)
        return loss, metrics

    def outputs(self, part: Part) -> torch.Tensor:
        """What the network gives for these rows, in order.

        The evaluation step has one batch size: a smaller last batch is filled up with its first row, and what
        comes of that is dropped. Rows do not see each other in evaluation mode.
        """
        size = self.steps.evaluation_rows
        orders = tuple(ordered_batches(part, size))
        filled = (torch.cat([rows, rows[:1].expand(size - len(rows))]) for rows in orders)
        parts = []
        with closing(self._feed.batches((part.x, part.y), filled)) as fed:
            for rows, (_, (x, y)) in zip(orders, fed, strict=True):
                self._follow_plans()
                _, outputs = self.runner.evaluate(x, y)
                parts.append(outputs[: len(rows)])
                self.diary.signs.give()
        return torch.cat(parts)

    def _follow_plans(self) -> None:
        """Adopt what the controller has sent since the last iteration."""
        while (message := self.inbox.poll()) is not None:
            if not isinstance(message, Adopt):
                raise InvariantError(f"the controller sent {type(message).__name__} to a job that trains")
            self.runner.adopt(message.plans, message.generation, message.grant_bytes)
            trim_heap()
            self.link.send(Adopted(job=self.diary.job.job, generation=message.generation))

    def _measure(self) -> None:
        """Tell the controller what iterations take, and now and then the catalog what operators do."""
        now = time.monotonic()
        if now < self._measured_at + MEASURED_S:
            return
        measured = self.runner.measured()
        if measured is None:
            return
        self._measured_at = now
        self.link.send(
            Measured(
                job=self.diary.job.job,
                generation=self.runner.generation,
                latency_ns=measured.latency_ns,
                iteration_ns=measured.iteration_ns,
                stall_ns=measured.stall_ns,
                peak_bytes=measured.peak_bytes,
            )
        )
        if now >= self._remembered_at + REMEMBERED_S:
            self._remembered_at = now
            self._remember(measured.latency_ns, measured.samples)

    def _remember(self, latency_ns: tuple[int, ...], samples: int) -> None:
        operators = self.steps.graphs[0].operators
        rows = [
            OpMeasurement(
                signature=o.signature,
                name=o.name,
                latency_ns=ns,
                workspace_bytes=o.workspace_bytes,
                samples=samples,
            )
            for o, ns in zip(operators, latency_ns, strict=True)
        ]
        self.diary.remember(lambda c: plans.record_latencies(c, self.steps.kind, rows))

    def _progress(
        self, step: int, steps: int, loss: float, figures: dict[str, float | None] | None = None
    ) -> Progress:
        settings, metric = self.prepared.settings, self.prepared.metric
        done = figures is not None
        epoch = self.epochs_done if done else self.epochs_done + 1
        position = Position(epochs=self.epochs_done, steps=0 if done else step)
        earliest = self.early_stop.earliest_end(self.epochs_done)
        rate = self._rows_trained / self._seconds_trained if self._seconds_trained else None
        return Progress(
            epoch=epoch,
            epochs=settings.epochs,
            step=step,
            steps=steps,
            loss=loss,
            valid_loss=figures.get("valid_loss") if figures else None,
            metric_name=metric,
            metric=figures.get(metric) if figures else None,
            samples_per_s=rate,
            eta_s=self._remaining.seconds(position),
            eta_earliest_s=None if earliest is None else self._remaining.seconds(position, epochs=earliest),
            figures=figures or {},
        )

    def _work(self) -> Work:
        prepared, rows = self.prepared, self.steps.evaluation_rows
        trained_ns, evaluated_ns = (sum(ns) for ns in (self.steps.latency_ns[0], self.steps.latency_ns[-1]))
        share = evaluated_ns / trained_ns if trained_ns else EVALUATION_SHARE
        return Work(
            epochs=prepared.settings.epochs,
            steps=batch_plan(prepared.train.rows, prepared.settings).steps,
            valid_batches=-(-prepared.valid.rows // rows),
            test_batches=-(-prepared.test.rows // rows),
            evaluation_share=share,
        )

    def _lap(self) -> float:
        """Seconds since the last step, or the last end of an epoch."""
        before, self._done_at = self._done_at, time.monotonic()
        return self._done_at - before

    def _weights(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Copies of these parameters and buffers of the module.

        Of a parameter that is averaged it is the average: what is validated is what is published.
        """
        averages = {name: state_name(AVERAGE, name) for name in names}
        stored = {name: own if own in self.state.tensors else name for name, own in averages.items()}
        values = self.state.export(stored.values())
        return {name: values[own] for name, own in stored.items() if own in values}

    def _save_checkpoint(self) -> None:
        """Keep a checkpoint if one is due; where that fails, training goes on."""
        if self.epochs_done < self.prepared.settings.epochs:
            self._keeping.save(self._checkpoint, self.epochs_done)

    def _checkpoint(self) -> CheckpointView:
        """The state and the best epoch's weights, read one tensor at a time while they are saved."""
        state, best, module = self.state, self._best, set(self.prepared.module.state_dict())
        live = state.tensors | {STEPS_NAME: torch.tensor(state.steps)}
        present = {f"{'weights' if name in module else 'optimizer'}/{name}": name for name in live}
        kept_specs = {f"weights/{_BEST}{name}": spec for name, spec in best.specs.items()}
        generator = rng_state(state.device)

        def read(name: str) -> torch.Tensor:
            if name == _RANDOM:
                return generator
            if name in kept_specs:
                return best.tensor(name.removeprefix(f"weights/{_BEST}"))
            return state.export((present[name],))[present[name]]

        specs = {name: TensorSpec.of(live[own]) for name, own in present.items()} | kept_specs
        position = {
            "epochs_done": self.epochs_done,
            "early_stop": self.early_stop.to_json(),
            "data_digest": self.prepared.data_digest,
        }
        return CheckpointView(specs=specs | {_RANDOM: TensorSpec.of(generator)}, read=read, position=position)

    def _resume(self) -> None:
        """Go on from a checkpoint where there is one and the rows are still the same.

        Where the table has changed since, half of the training would be on other rows: it starts anew.
        """
        checkpoint = self.diary.session.waiting(lambda: self.checkpointing.load(self.prepared.data_digest))
        if checkpoint is None:
            return
        position = checkpoint.position
        best = {name: tensor for name, tensor in checkpoint.weights.items() if name.startswith(_BEST)}
        present = {name: tensor for name, tensor in checkpoint.weights.items() if name not in best}
        self.state.load(present | checkpoint.optimizer)
        restore_rng_state(checkpoint.random["torch"], self.state.device)
        if best:
            self._best.keep(lambda names: {name: best[_BEST + name] for name in names})
        self.early_stop = EarlyStop.from_json(position["early_stop"])
        self.epochs_done = int(position["epochs_done"])


_RANDOM = "random/torch"
_BEST = "best/"  # no module path begins so: layers are numbered
