"""A training that is prepared: its network, its encoded rows, its settings, and what is reported of the table."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from indb_tensile.job import Task
from indb_tensile.learning.batches.length_buckets import LengthBuckets
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.image_faults import SkippedRows
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.forecasting.forecast_table import ForecastRows
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.reports.report_facts import Fact
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.learning.training.earlystop import EarlyStop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A job that is ready to be captured and trained.

    `architecture` is resolved (never `auto`). `valid` may have no rows. `held_out` are the test rows as they were
    read, on which another version of the model can be evaluated. `unlabeled_rows` is the number of rows without a
    target, which take no part. `membership` is the rule that gives the part of each row. `report` is the data report.
    `chosen` names the values of `settings` and `early_stop` that were not requested but chosen for the number of
    rows. `forecast` are the series that a forecast learns from. `init_from` is the version that the weights are from,
    or None. `auto_reason` says why `auto` stands for the network; it is empty if the request names one. `network` is
    the registered network that the architecture begins with. `skipped` are the rows that were left out since an image
    cannot be read. `inputs` are the figures of the training rows' inputs; a forecast, whose inputs are windows of
    series, has none. `buckets` are the lengths of texts that are batched apart; None if batches have one length.
    """

    module: nn.Module
    loss: nn.Module
    train: Part
    valid: Part
    test: Part
    preprocessor: Preprocessor
    data_digest: str
    settings: TrainingSettings
    early_stop: EarlyStop
    metric: str
    architecture: dict[str, Any]
    outputs: int
    input_shape: tuple[int, ...]
    task: Task
    held_out: Columns
    unlabeled_rows: int
    membership: dict[str, Any]
    report: tuple[Fact, ...]
    chosen: tuple[str, ...] = ()
    init_from: Mapping[str, Any] | None = None
    auto_reason: str = ""
    forecast: ForecastRows | None = None
    network: RegisteredNetwork | None = None
    skipped: tuple[SkippedRows, ...] = ()
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    buckets: LengthBuckets | None = None

    def finish_decoding(self, alive: Callable[[], None] = lambda: None) -> None:
        """Wait until all images are decoded, and call `alive` meanwhile. Raises DataError for a broken image."""
        if self.train.images is not None:
            self.train.images.decoding.finish(alive)

    def close(self) -> None:
        """End the decoding of images that is still going on. Only rows that are decoded can be read from then on."""
        if self.train.images is not None:
            self.train.images.decoding.close()

    def decoding_paused(self) -> AbstractContextManager[None]:
        """In this context, decode only the images that a caller waits for."""
        return nullcontext() if self.train.images is None else self.train.images.decoding.paused()
