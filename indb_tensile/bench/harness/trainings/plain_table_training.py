"""The plain script for a default training on a table: read, encode, train with fixed settings, evaluate, save.

    python -m indb_tensile.bench.harness.trainings.plain_table_training DSN TABLE TARGET THREADS SETTINGS FILE

`SETTINGS` is JSON with the network, the loss and the length of a training that our package has done, so that both do
the same work: hidden layers and dropout, members of an ensemble, batch size, epochs that were trained and at most,
rate, and weight decay. After each epoch the script computes loss and accuracy or R² of the validation rows, and it
keeps the weights of the best epoch, as early stopping does. Reading and encoding are those of plain_training.py. The
script prints the seconds of each part as a line of JSON; imports are a part of their own.
"""

import json
import sys
import time
from typing import Any

_BEGAN_S = time.perf_counter()

import numpy as np  # noqa: E402 - the time of the imports is measured
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from indb_tensile.bench.harness.trainings.plain_training import encode_columns, read_columns  # noqa: E402

_HELD_OUT = 0.15  # share of rows for validation, and again for the test, as a default training
_EVALUATED_ROWS = 4096


def main(arguments: list[str]) -> None:
    """Run all parts and print the time of each."""
    dsn, table, target, threads, settings, path = arguments
    torch.set_num_threads(int(threads))
    marks = {"import": time.perf_counter()}
    columns = read_columns(dsn, table)
    marks["read"] = time.perf_counter()
    x, y, outputs = _encode(columns, target, classes=json.loads(settings)["classes"])
    marks["encode"] = time.perf_counter()
    module, score = _train(x, y, outputs, json.loads(settings))
    marks["train"] = time.perf_counter()
    save_file(module.state_dict(), path)
    marks["save"] = time.perf_counter()
    durations, before = {}, _BEGAN_S
    for part, at_s in marks.items():
        durations[part], before = round(at_s - before, 4), at_s
    print(json.dumps(durations | {"score": round(score, 4), "features": x.shape[1]}))


def _encode(columns: dict[str, list[Any]], target: str, *, classes: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return inputs, targets and the number of outputs, of the rows whose target is known."""
    known = [value is not None for value in columns[target]]
    kept = {
        name: [value for value, has in zip(values, known, strict=True) if has] for name, values in columns.items()
    }
    x = encode_columns({name: values for name, values in kept.items() if name not in (target, "id")})
    if classes:
        labels, codes = np.unique(np.array(kept[target]), return_inverse=True)
        return torch.from_numpy(x), torch.from_numpy(codes), len(labels)
    values = np.array(kept[target], np.float64)
    standard = ((values - values.mean()) / values.std()).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(standard)[:, None], 1


class _Ensemble(nn.Module):
    """Networks that learn from the same rows; their outputs are stacked."""

    def __init__(self, members: int, hidden: list[int], dropout: float, inputs: int, outputs: int) -> None:
        super().__init__()
        self.members = nn.ModuleList()
        for _ in range(members):
            layers: list[nn.Module] = []
            width = inputs
            for units in hidden:
                layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)]
                width = units
            self.members.append(nn.Sequential(*layers, nn.Linear(width, outputs)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([member(x) for member in self.members])


def _train(x: torch.Tensor, y: torch.Tensor, outputs: int, own: dict[str, Any]) -> tuple[nn.Module, float]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held_out = int(len(x) * _HELD_OUT)
    test, valid, train = order[:held_out], order[held_out : 2 * held_out], order[2 * held_out :]
    torch.manual_seed(0)
    module = _Ensemble(own["members"], own["hidden"], own["dropout"], x.shape[1], outputs)
    loss_of = nn.CrossEntropyLoss() if own["classes"] else nn.MSELoss()
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=own["learning_rate"], weight_decay=own["weight_decay"], fused=True
    )
    steps = own["most_epochs"] * -(-len(train) // own["batch_size"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    x_train, y_train, best, kept = x[train], y[train], float("inf"), module.state_dict()
    for _ in range(own["epochs"]):
        shuffled = torch.randperm(len(train))
        for rows in torch.split(shuffled, own["batch_size"]):
            goal = y_train[rows]
            loss = sum(loss_of(member, goal) for member in module(x_train[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        valid_loss, _ = _judge(module, x[valid], y[valid], loss_of)
        if own["stops_early"] and valid_loss < best:
            best, kept = valid_loss, {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(kept)
    return module, _judge(module, x[test], y[test], loss_of)[1]


def _judge(module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss_of: nn.Module) -> tuple[float, float]:
    """Return the loss, and the accuracy or R²."""
    module.eval()
    with torch.no_grad():
        parts = [module(part).mean(dim=0) for part in torch.split(x, _EVALUATED_ROWS)]
    module.train()
    predicted = torch.cat(parts)
    loss = float(loss_of(predicted, y))
    if y.dim() == 1:
        return loss, float((predicted.argmax(dim=1) == y).float().mean())
    return loss, 1 - float(((predicted - y) ** 2).mean() / y.var())


if __name__ == "__main__":
    main(sys.argv[1:])
