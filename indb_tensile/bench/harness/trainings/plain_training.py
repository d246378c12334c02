"""The plain script that does the work of `tensile_train`: read a table, encode, train, evaluate, save.

    python -m indb_tensile.bench.harness.trainings.plain_training DSN TABLE TARGET THREADS EPOCHS BATCH DIRECTORY

The script reads rows in binary form with Psycopg and numpy. Encoding, split, network, optimizer, schedule and number
of steps are those of a default training, in a plain PyTorch loop. Numbers are standardised, truth values are left as
they are, frequent texts become columns of 0 and 1, and times become a number and their place in year and week. The
script prints the seconds of each part as a line of JSON; imports are a part of their own.
"""

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_BEGAN_S = time.perf_counter()

import numpy as np  # noqa: E402 - the time of the imports is measured
import psycopg  # noqa: E402
import torch  # noqa: E402
from psycopg import sql  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

_CATEGORIES = 32  # categories of a text column, as in a default training
_HELD_OUT = 0.15  # share of rows for validation, and again for the test, as a default training
_DAY_S = 86_400.0
Matrix = Any  # numpy's own types are long here


def main(arguments: list[str]) -> None:
    """Run all parts and print the time of each."""
    dsn, table, target, threads, epochs, batch, directory = arguments
    torch.set_num_threads(int(threads))
    marks = {"import": time.perf_counter()}
    columns = read_columns(dsn, table)
    marks["read"] = time.perf_counter()
    x, y = _encode(columns, target)
    marks["encode"] = time.perf_counter()
    module, score = _train(x, y, int(epochs), int(batch))
    marks["train"] = time.perf_counter()
    save_file(module.state_dict(), Path(directory) / "plain.safetensors")
    marks["save"] = time.perf_counter()
    durations, before = {}, _BEGAN_S
    for part, at_s in marks.items():
        durations[part], before = round(at_s - before, 3), at_s
    print(json.dumps(durations | {"r2": round(score, 4), "features": x.shape[1]}))


def read_columns(dsn: str, table: str) -> dict[str, list[Any]]:
    """Return the values of each column of the table."""
    with psycopg.connect(dsn) as connection, connection.cursor(binary=True) as cursor:
        cursor.execute(sql.SQL("select * from {}").format(sql.Identifier(*table.split("."))))
        names = [column.name for column in cursor.description or ()]
        return dict(zip(names, map(list, zip(*cursor.fetchall(), strict=True)), strict=True))


def _encode(columns: dict[str, list[Any]], target: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = encode_columns({name: values for name, values in columns.items() if name != target})
    y = np.array(columns[target], np.float64)
    return torch.from_numpy(x), torch.from_numpy(((y - y.mean()) / y.std()).astype(np.float32))[:, None]


def encode_columns(columns: dict[str, list[Any]]) -> Matrix:
    """Return the columns as float32 numbers, one row for each of theirs."""
    return np.hstack([_column(values) for values in columns.values()]).astype(np.float32)


def _column(values: list[Any]) -> Matrix:
    known = next(value for value in values if value is not None)
    if isinstance(known, str):
        frequent = sorted(name for name, _ in Counter(v for v in values if v is not None).most_common(_CATEGORIES))
        place = {name: position for position, name in enumerate(frequent)} | {None: len(frequent) + 1}
        hot = np.zeros((len(values), len(frequent) + 2))
        hot[np.arange(len(values)), [place.get(value, len(frequent)) for value in values]] = 1.0
        return hot
    if hasattr(known, "timetuple"):
        return _times(np.array(values, "datetime64[s]").astype(np.float64))
    if isinstance(known, bool):
        return np.array([float("nan") if value is None else value for value in values], np.float64)[:, None]
    numbers = np.array([float("nan") if value is None else float(value) for value in values])
    filled = np.where(np.isnan(numbers), np.nanmean(numbers), numbers)
    return ((filled - filled.mean()) / (filled.std() or 1.0))[:, None]


def _times(seconds: Matrix) -> Matrix:
    year = 2 * math.pi * seconds / (365.25 * _DAY_S)
    week = 2 * math.pi * seconds / (7 * _DAY_S)
    scaled = (seconds - seconds.mean()) / (seconds.std() or 1.0)
    return np.stack([scaled, np.sin(year), np.cos(year), np.sin(week), np.cos(week)], axis=1)


def _train(x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int) -> tuple[nn.Module, float]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held_out = int(len(x) * _HELD_OUT)
    test, valid, train = order[:held_out], order[held_out : 2 * held_out], order[2 * held_out :]
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=1e-2, fused=True)
    steps = epochs * -(-len(train) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    x_train, y_train = x[train], y[train]
    for _ in range(epochs):
        shuffled = torch.randperm(len(train))
        for start in range(0, len(train), batch):
            rows = shuffled[start : start + batch]
            loss = nn.functional.mse_loss(module(x_train[rows]), y_train[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        _score(module, x[valid], y[valid], batch)
    return module, _score(module, x[test], y[test], batch)


def _score(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    module.eval()
    with torch.no_grad():
        predicted = torch.cat([module(x[start : start + batch]) for start in range(0, len(x), batch)])
    module.train()
    return 1 - float(((predicted - y) ** 2).mean() / y.var())


if __name__ == "__main__":
    main(sys.argv[1:])
