"""Trains a network on images with a plain PyTorch loop, from batches that a second thread gathers as in a job."""

from collections.abc import Callable
from contextlib import closing

import torch

from indb_tensile.learning.batches.batch_order import batch_plan, batches, ordered_batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import TrainingSources, ordered_sources
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks.hyperparams import learning_rate
from indb_tensile.learning.training.prepared_training import Prepared

_EVALUATED_ROWS = 500


def train(prepared: Prepared, feed: BatchPrefetcher, stepped: Callable[[], None] = lambda: None) -> int:
    """Train in place as a job's loop does, and load the best epoch's weights. Returns the epochs taken.

    `stepped` is called after each step. Without early stopping the weights are those of the last epoch.
    """
    module, settings, early_stop = prepared.module, prepared.settings, prepared.early_stop
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    per_epoch = batch_plan(prepared.train.rows, settings).steps
    sources = TrainingSources(part=prepared.train, settings=settings)
    best: dict[str, torch.Tensor] = {}
    epoch = 0
    while epoch < settings.epochs and not early_stop.stopped:
        module.train()
        example = prepared.train.example, prepared.train.y
        orders = batches(prepared.train, epoch, settings)
        with closing(feed.batches(example, orders, sources.of_epoch(epoch))) as loaded:
            for step, (_, (x, y)) in enumerate(loaded):
                rate = learning_rate(settings, epoch * per_epoch + step, settings.epochs * per_epoch)
                optimizer.param_groups[0]["lr"] = rate
                loss = prepared.loss(module(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                stepped()
        evaluated = outputs(prepared, prepared.valid, feed)
        early_stop = early_stop.observe(epoch, float(prepared.loss(evaluated, prepared.valid.y)))
        if early_stop.best_epoch == epoch:
            best = {name: value.clone() for name, value in module.state_dict().items()}
        epoch += 1
    if early_stop.patience is not None:
        module.load_state_dict(best)
    return epoch


def outputs(prepared: Prepared, part: Part, feed: BatchPrefetcher) -> torch.Tensor:
    """Return the network's outputs for the rows of a part, in order."""
    prepared.module.eval()
    orders = ordered_batches(part, _EVALUATED_ROWS)
    with (
        torch.inference_mode(),
        closing(feed.batches((part.example, part.y), orders, ordered_sources(part))) as loaded,
    ):
        return torch.cat([prepared.module(x) for _, (x, _) in loaded])
