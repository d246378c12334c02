"""Trains epochs on texts by captured steps on the processor, as a job does without other jobs, and times them."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from indb_tensile.device.device import REGION_BYTES, CpuDevice
from indb_tensile.device.ledger import Ledger
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training, with_host_uploads
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.learning.batches.batch_order import batch_plan, batches, example_batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import TrainingSources
from indb_tensile.learning.networks.hyperparams import learning_rate
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.scheduler.memory.peak import LIVENESS

_MOST_BYTES = 1 << 34  # on the account of a device whose memory is the host's, which allocates nothing in advance


class TextEpochs:
    """A training whose captured steps follow the plan liveness, with the optimizer AdamW, the default."""

    def __init__(self, prepared: Prepared, device: CpuDevice) -> None:
        self.prepared = prepared
        settings = prepared.settings
        optimizer = OptimizerSettings(kind="adamw", weight_decay=settings.weight_decay)
        examples = example_batches(prepared.train, settings, prepared.buckets)
        captured = tuple(
            with_host_uploads(capture_training(prepared.module, prepared.loss, x, y, optimizer)) for x, y in examples
        )
        self.steps = calibrate(captured, unknown_signatures(captured, {}), {}, _MOST_BYTES).steps
        self._state = State.create(prepared.module, optimizer)
        self._runner = Runner(device, self._state, self.steps)
        self._sources = TrainingSources(part=prepared.train, settings=settings, buckets=prepared.buckets)
        self._epoch = 0
        self._runner.adopt((LIVENESS,) * len(self.steps), 1)

    def train(self) -> float:
        """Train one more epoch, and return its seconds."""
        prepared, settings, epoch = self.prepared, self.prepared.settings, self._epoch
        per_epoch = batch_plan(prepared.train.rows, settings).steps
        orders = batches(prepared.train, epoch, settings, prepared.buckets)
        started_s = time.perf_counter()
        with BatchPrefetcher(self._runner) as feed:
            sources = self._sources.of_epoch(epoch)
            with closing(feed.batches(self._sources.parts_of, orders, sources)) as loaded:
                for step, (_, (x, y)) in enumerate(loaded, epoch * per_epoch):
                    self._runner.train(x, y, learning_rate(settings, step, settings.epochs * per_epoch))
        self._epoch += 1
        return time.perf_counter() - started_s

    def finish(self) -> None:
        """Free the device, and load what was learned into the module."""
        self._runner.close()
        names = self.prepared.module.state_dict()
        self.prepared.module.load_state_dict(self._state.export(tuple(names)))


@contextmanager
def text_epochs(prepared: Prepared) -> Iterator[TextEpochs]:
    """Yield the training on a device whose memory is the host's."""
    with Ledger.create(_MOST_BYTES, REGION_BYTES, 1, 1) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, _MOST_BYTES)
        with CpuDevice(ledger.fd, slot, epoch, 1 << 30, tempfile.gettempdir()) as device, torch.random.fork_rng([]):
            torch.manual_seed(prepared.settings.seed)
            yield TextEpochs(prepared, device)
