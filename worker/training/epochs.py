"""Trains the epochs of one job: batches, validation, early stopping, checkpoints, and changes of plans."""

import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from indb_tensile.catalog.jobs import Progress
from indb_tensile.device.round_member import RoundMember, Seat
from indb_tensile.executor.capture.optimizer import AVERAGE, state_name
from indb_tensile.executor.ranks.state_gathering import StateGathering
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import STEPS_NAME, State, restore_rng_state, rng_state
from indb_tensile.job import Phase
from indb_tensile.learning.batches.batch_order import batch_plan, batches, ordered_batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import BatchShapes, TrainingSources, ordered_sources
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.models.artifacts import Checkpoint, CheckpointView
from indb_tensile.learning.networks.architectures import stored_names
from indb_tensile.learning.networks.hyperparams import learning_rate
from indb_tensile.learning.networks.tensorstream import TensorSpec
from indb_tensile.learning.training.earlystop import EarlyStop
from indb_tensile.learning.training.plateau import Plateau
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.messages import TrainerLink
from indb_tensile.scheduler.timing.recorded_iterations import PauseKind

from ..captured_steps import CapturedSteps
from .best_weights import BestWeights
from .checkpoint_retry import CheckpointRetry
from .checkpointing import Checkpointing
from .controller_orders import ControllerOrders
from .divergence import require_finite
from .inbox import Inbox
from .latency_reports import LatencyReports
from .losses import Losses
from .memory_corrections import MemoryCorrections
from .progress_writer import PROGRESS_S, ProgressWriter
from .publication import Trained
from .remaining import EVALUATION_SHARE, Position, Remaining, Work
from .step_duration import StepDuration
from .trace_recording import TraceRecording
from .trial_rungs import EpochFigures, TrialRungs, published_figures

log = logging.getLogger("trainer")


@dataclass(kw_only=True)
class EpochLoop:
    """Trains from the job's checkpoint, or from the start, to the last epoch."""

    prepared: Prepared
    state: State
    runner: Runner
    link: TrainerLink
    inbox: Inbox
    progress_writer: ProgressWriter
    steps: CapturedSteps
    checkpointing: Checkpointing
    corrections: MemoryCorrections
    traces: TraceRecording
    epochs_done: int = 0
    steps_done: int = 0  # of the epoch that is being trained
    early_stop: EarlyStop = field(init=False)
    plateau: Plateau = field(default_factory=Plateau)
    join: Callable[[Seat], RoundMember] | None = None  # makes the job a member of a round
    trial: TrialRungs | None = None  # the rungs of a search at which the training is compared with others
    follows: bool = False  # another device leads the job: it saves checkpoints and publishes, and this one does not
    # Gets a function that loads the checkpoint to go on from, and returns the checkpoint: that of all ranks.
    hand_out: Callable[[Callable[[], Checkpoint | None]], Checkpoint | None] = field(default=lambda load: load())
    gathering: StateGathering | None = None  # of a training whose devices divide the optimizer's state
    best_directory: Path | None = None  # directory for a large copy of the best epoch's weights; None: in memory
    _published: EpochFigures = field(default_factory=EpochFigures)
    _feed: BatchPrefetcher = field(init=False)
    _losses: Losses = field(default_factory=Losses)  # of the epoch that is being trained
    _checkpoint_retry: CheckpointRetry = field(init=False)
    _orders: ControllerOrders = field(init=False)
    _best: BestWeights = field(init=False)
    _stored: tuple[str, ...] = field(init=False)  # the parameters and buffers that a version has
    _latency_reports: LatencyReports = field(init=False)
    _validated_s: float = math.inf  # duration of the last validation
    _rows_trained: int = 0
    _seconds_trained: float = 0.0
    _work: Work = field(init=False)
    _remaining: Remaining = field(init=False)
    _step_duration: StepDuration = field(default_factory=StepDuration)
    _done_at: float = 0.0  # when the last step, or the work after the last epoch, ended

    def __post_init__(self) -> None:
        self._feed = BatchPrefetcher(self.runner)
        self.runner.upload_ahead(self._feed.next_batch)
        train = self.prepared.train
        self._sources = TrainingSources(part=train, settings=self.prepared.settings, buckets=self.prepared.buckets)
        self.early_stop = self.prepared.early_stop
        self._stored = stored_names(self.prepared.module)
        weights = self.prepared.module.state_dict()
        self._best = BestWeights({name: weights[name].nbytes for name in self._stored}, self.best_directory)
        self._checkpoint_retry = CheckpointRetry(self.checkpointing, self.progress_writer)
        self._work = work_of(self.prepared, self.steps)
        self._remaining = Remaining(self._work)
        self._latency_reports = LatencyReports(
            runner=self.runner,
            link=self.link,
            steps=self.steps,
            progress_writer=self.progress_writer,
            step_duration=self._step_duration,
        )
        self._orders = ControllerOrders(
            self.runner,
            self.link,
            self.inbox,
            self.progress_writer,
            self._save_checkpoint_now,
            steps_for=self.corrections.steps_for,
            join=self.join,
            pause=self.traces.pause,
        )

    def train(self) -> None:
        """Train all remaining epochs. Epochs before the checkpoint are not trained again."""
        self._resume()
        self.progress_writer.enter(Phase.TRAINING)
        self.progress_writer.signs.begin()
        started = self._done_at = time.monotonic()
        if self.epochs_done and not self.steps_done:
            self._pass_rung()
        with self._feed:
            while not self._ended:
                loss = self._train_epoch()
                with self.traces.pausing(PauseKind.EPOCH):
                    self._close_epoch(loss)
                    self._pass_rung()
        self._latency_reports.report(self.steps_left, trained_s=self._seconds_trained, last=True)
        self.traces.end()
        self._orders.give_loan_back()
        if self.trial is not None:
            self.trial.complete(self.epochs_done, self._published)
        self.corrections.end()
        waiting, taken_s = self._feed.waiting, time.monotonic() - started
        log.info(
            "job %s: waited %.3g s of %.3g for its %d batches, of which %d were uploaded ahead",
            self.progress_writer.job.job,
            waiting.waited_s,
            taken_s,
            waiting.batches,
            self.runner.uploaded_ahead,
        )

    @property
    def steps_left(self) -> float:
        """The training steps that are left until the end of all epochs, with evaluations as fractions of a step."""
        return self._work.steps_left(Position(epochs=self.epochs_done, steps=self.steps_done))

    @property
    def _ended(self) -> bool:
        return self.epochs_done >= self.prepared.settings.epochs or self.early_stop.stopped

    def _pass_rung(self) -> None:
        """At a rung of a search, report what the training has reached. Raises HeldTrialError if it has to wait."""
        if self.trial is not None and not self._ended:
            figures, alive = self._published, self.progress_writer.signs.give
            self.trial.pass_rung(self.epochs_done, figures, self._save_checkpoint_now, alive)

    def trained(self) -> Trained:
        """Return the result to publish.

        With early stopping these are the weights of the best epoch, else those of the last one.
        """
        best_epoch = self.early_stop.best_epoch + 1 if self._best else self.epochs_done
        weights = self._best.read() if self._best else self._weights(self._stored)
        self._best.close()
        return Trained(weights=weights, epochs=self.epochs_done, best_epoch=best_epoch)

    def _train_epoch(self) -> float:
        """Train on all training rows once, or on the rest of them. Returns the mean loss over all of them."""
        prepared, epoch = self.prepared, self.epochs_done
        per_epoch = batch_plan(prepared.train.rows, prepared.settings).steps
        total_steps = per_epoch * prepared.settings.epochs
        losses = self._losses
        every = batches(prepared.train, epoch, prepared.settings, prepared.buckets)
        orders, sources = islice(every, self.steps_done, None), self._sources.of_epoch(epoch)
        with closing(self._feed.batches(self._sources.parts_of, orders, sources)) as loaded:
            for step, (rows, (x, y)) in enumerate(loaded, self.steps_done):
                self.traces.waited(self._feed.waiting.latest_s)
                self._follow_orders()
                started = time.monotonic() - self._feed.waiting.latest_s
                at = epoch * per_epoch + step
                rate = learning_rate(prepared.settings, at, total_steps, self.plateau.reductions)
                losses.add(self.runner.train(x, y, rate), len(rows))
                self.steps_done = step + 1
                self._rows_trained += len(rows)
                self._seconds_trained += time.monotonic() - started
                steps_left = self._work.steps_left(Position(epochs=epoch, steps=step + 1))
                self._step_duration.begin(steps_left)
                self._latency_reports.report(steps_left, trained_s=self._seconds_trained)
                self._remaining.stepped(self._elapsed_s())
                self.progress_writer.signs.steps_left = steps_left
                first_of_all = epoch == 0 and step == 0
                progress = self._progress(step + 1, per_epoch, losses.mean())
                self.progress_writer.report(progress, at_once=first_of_all)
                self.traces.look()
        return losses.mean()

    def _close_epoch(self, loss: float) -> None:
        """Validate, store the best weights, report, and save a checkpoint if one is due."""
        figures: dict[str, float | None] = {"loss": loss, "learning_rate": self._last_rate()}
        if self.prepared.valid.rows:
            if self._validated_s >= PROGRESS_S:  # a shorter validation is not reported as a phase
                self.progress_writer.enter(Phase.VALIDATING)
            started = time.monotonic()
            valid_loss, metrics = self._validate(self.prepared.valid)
            self._validated_s = time.monotonic() - started
            figures |= {"valid_loss": valid_loss, **metrics}
            watched = valid_loss if self.early_stop.metric == "loss" else metrics.get(self.early_stop.metric)
            self._observe(watched)
            own = metrics.get(self.prepared.metric)
            self._published = published_figures(
                self._published, self.early_stop, self.epochs_done, metric=own, valid_loss=valid_loss
            )
            if (patience := self.prepared.settings.decay_patience) is not None:
                self.plateau = self.plateau.observe(valid_loss, patience)
        is_best = self.early_stop.patience is not None and self.early_stop.best_epoch == self.epochs_done
        if is_best and not self.follows:
            self._best.keep(self._weights)
        self.epochs_done += 1
        if not (math.isfinite(loss) or self._best or self.follows):  # further epochs would mend nothing
            weights, rate = self._weights(self._stored), self.prepared.settings.learning_rate
            require_finite(self.prepared.module, weights, epoch=self.epochs_done, learning_rate=rate)
        self.steps_done, self._losses = 0, Losses()
        steps = batch_plan(self.prepared.train.rows, self.prepared.settings).steps
        progress = self._progress(steps, steps, loss, figures)
        self.progress_writer.report(progress, at_once=True)
        self._save_checkpoint()
        self.progress_writer.enter(Phase.TRAINING)
        self._remaining.closed(self._elapsed_s())

    def _last_rate(self) -> float:
        """Return the learning rate of the last step of the epoch that has been trained."""
        settings = self.prepared.settings
        per_epoch = batch_plan(self.prepared.train.rows, settings).steps
        at = (self.epochs_done + 1) * per_epoch - 1
        return learning_rate(settings, at, per_epoch * settings.epochs, self.plateau.reductions)

    def _observe(self, watched: float | None) -> None:
        """Pass the epoch's metric to early stopping.

        After the first epoch, report once if the metric is undefined.
        """
        if watched is None and self.epochs_done == 0:
            undefined = f"{self.early_stop.metric} is not defined on the {self.prepared.valid.rows} validation rows"
            outcome = "so early stopping does not apply, and the last epoch is published"
            self.progress_writer.tell("metric_undefined", {"reason": f"{undefined}, {outcome}"})
        self.early_stop = self.early_stop.observe(self.epochs_done, watched)

    def _validate(self, part: Part) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics on these rows, from the outputs of the evaluation step."""
        outputs = self.outputs(part)
        loss = float(self.prepared.loss(outputs, part.y))
        metrics = evaluate(self.prepared.task, outputs.numpy(), part.targets.numpy(), self.prepared.preprocessor)
        return loss, metrics

    def outputs(self, part: Part) -> torch.Tensor:
        """Return the network's outputs for these rows, in order.

        The evaluation steps have one batch size. A smaller last batch is padded with copies of its first row, and the
        outputs of the copies are dropped. In evaluation mode the rows of a batch do not affect each other.
        """
        size, buckets = self.steps.evaluation_rows, self.prepared.buckets
        buckets = None if buckets is None else buckets.of_part(part)
        orders = ordered_batches(part, size, buckets)
        # An iterator, because the pages of a file are released between its batches.
        padded = (torch.cat([rows, rows[:1].expand(size - len(rows))]) for rows in orders)
        parts_of, sources = BatchShapes(part, buckets), ordered_sources(part, buckets)
        places, parts, remaining = [], [], part.rows
        with closing(self._feed.batches(parts_of, padded, sources)) as loaded:
            for rows, (x, y) in loaded:
                self._follow_orders()
                _, outputs = self.runner.evaluate(x, y)
                places.append(rows[:remaining])
                parts.append(outputs[:remaining])
                remaining -= len(x)
                self.progress_writer.signs.give()
        outputs = torch.cat(parts)
        return outputs if buckets is None else outputs[torch.cat(places).argsort()]

    def _follow_orders(self) -> None:
        """Follow the controller's orders between two iterations, and report memory that was not planned.

        Time in which the job is parked does not count.
        """
        self.corrections.look()
        started = time.monotonic()
        parked_s = self._orders.follow()
        self._step_duration.skip(time.monotonic() - started)
        if self.gathering is not None:
            self.gathering.end_turn()
        self._done_at += parked_s
        if self.trial is not None:
            self.trial.parked_s += parked_s

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

    def _elapsed_s(self) -> float:
        """Return the seconds since the previous call."""
        previous_at, self._done_at = self._done_at, time.monotonic()
        return self._done_at - previous_at

    def _weights(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return copies of these parameters and buffers of the module.

        For an averaged parameter, the copy is of its average, because the averages are validated and published.
        """
        averages = {name: state_name(AVERAGE, name) for name in names}
        stored = {
            name: average_name if average_name in self.state.tensors else name
            for name, average_name in averages.items()
        }
        values = self.state.export(stored.values())
        return {name: values[average_name] for name, average_name in stored.items() if average_name in values}

    def _save_checkpoint(self) -> None:
        """Save a checkpoint if one is due. If that fails, training continues."""
        if self.epochs_done < self.prepared.settings.epochs and not self.follows:
            self._checkpoint_retry.save(self._checkpoint, self.epochs_done)
        if self.gathering is not None:
            self.gathering.end_turn()

    def _save_checkpoint_now(self, for_all_hosts: bool = False) -> bool:
        """Save a checkpoint within the epoch, and return whether that succeeded."""
        return not self.follows and self._checkpoint_retry.save_now(
            self._checkpoint, self.epochs_done, for_all_hosts=for_all_hosts
        )

    def _checkpoint(self) -> CheckpointView:
        """Return a view of the state and the best weights.

        The view reads one tensor at a time while the checkpoint is saved.
        """
        state, best, module = self.state, self._best, set(self.prepared.module.state_dict())
        of_others = {} if self.gathering is None else self.gathering.gather()
        current_tensors = {name: tensor for name, tensor in state.tensors.items() if name not in self._unchanged}
        current_tensors |= {STEPS_NAME: torch.tensor(state.steps), **of_others}
        current_names = {f"{'weights' if name in module else 'optimizer'}/{name}": name for name in current_tensors}
        best_specs = {f"weights/{_BEST}{name}": spec for name, spec in best.specs.items()}
        generator = rng_state(state.device)

        def read(name: str) -> torch.Tensor:
            if name == _RANDOM:
                return generator
            if name in best_specs:
                return best.tensor(name.removeprefix(f"weights/{_BEST}"))
            own_name = current_names[name]
            return of_others[own_name] if own_name in of_others else state.export((own_name,))[own_name]

        specs = {name: TensorSpec.of(current_tensors[own]) for name, own in current_names.items()} | best_specs
        position = {
            "epochs_done": self.epochs_done,
            "early_stop": self.early_stop.to_json(),
            "plateau": self.plateau.to_json(),
            "published": self._published.to_json(),
            "data_digest": self.prepared.data_digest,
        }
        if self.steps_done:
            position |= {"steps_done": self.steps_done, "losses": self._losses.to_json()}
        return CheckpointView(specs=specs | {_RANDOM: TensorSpec.of(generator)}, read=read, position=position)

    def _resume(self) -> None:
        """Resume from a checkpoint if there is one for the same rows.

        If the table has changed since, training starts again: otherwise part of the training would use other rows.
        """
        digest, session = self.prepared.data_digest, self.progress_writer.session
        checkpoint = self.hand_out(lambda: session.waiting(lambda: self.checkpointing.load(digest)))
        if checkpoint is None:
            return
        position = checkpoint.position
        best = {name: tensor for name, tensor in checkpoint.weights.items() if name.startswith(_BEST)}
        current = {name: tensor for name, tensor in checkpoint.weights.items() if name not in best}
        of_others = frozenset[str]() if self.gathering is None else self.gathering.of_others
        loaded = current | checkpoint.optimizer | self._network_weights()
        self.state.load({name: value for name, value in loaded.items() if name not in of_others})
        restore_rng_state(checkpoint.random["torch"], self.state.device)
        if best and not self.follows:
            self._best.keep(lambda names: {name: best[_BEST + name] for name in names})
        self.early_stop = EarlyStop.from_json(position["early_stop"])
        self.plateau = Plateau.from_json(position.get("plateau", {}))
        self._published = EpochFigures(**position.get("published", {}))
        self.epochs_done = int(position["epochs_done"])
        self.steps_done = int(position.get("steps_done", 0))
        if self.steps_done:
            self._losses = Losses.from_json(position["losses"])

    @property
    def _unchanged(self) -> frozenset[str]:
        """The weights of a registered network that training leaves as they are, which no checkpoint has."""
        return frozenset(self.prepared.module.state_dict()).difference(self._stored)

    def _network_weights(self) -> dict[str, torch.Tensor]:
        names = self._unchanged
        exported = self.state.export(names) if names else {}
        return {name: exported[name] for name in names}


_RANDOM = "random/torch"
_BEST = "best/"  # layers are numbered, so no parameter name starts with this


def work_of(prepared: Prepared, steps: CapturedSteps) -> Work:
    """Return the work of the whole training. The latencies say how long an evaluation is, relative to a step."""
    rows = steps.evaluation_rows
    longest_ns, (trained_ns, evaluated_ns) = steps.totals_ns[0], steps.mean_ns(prepared.buckets)
    return Work(
        epochs=prepared.settings.epochs,
        steps=batch_plan(prepared.train.rows, prepared.settings).steps,
        valid_batches=-(-prepared.valid.rows // rows),
        test_batches=-(-prepared.test.rows // rows),
        evaluation_share=evaluated_ns / longest_ns if longest_ns else EVALUATION_SHARE,
        step_share=trained_ns / longest_ns if trained_ns else 1.0,
    )
