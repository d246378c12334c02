"""The rival of `tensile bench read`: a data scientist's plain script, from a table to a trained network.

    python -m indb_tensile.bench.harness.trainings.plain_reading EPOCHS DSN TABLE TARGET FEATURE …

The script reads by COPY in binary format, decodes the rows with numpy (pandas would take longer), splits, scales with
scikit-learn, and trains a small network on tensors in memory, on one thread. It prints a line of JSON: the seconds
from its process's begin to the first step, the seconds of an epoch with its validation, and its peak memory.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import psycopg
import torch
from psycopg import sql
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

_BATCH_ROWS = 1024
_HEADER_BYTES = 19
_TRAILER_BYTES = 2


def main() -> None:
    """Read, prepare, train, and print the figures. The table has columns of float8 without NULLs."""
    imports_s = _age_s()
    epochs, dsn, table, target, *features = sys.argv[1:]
    torch.set_num_threads(1)
    x, y = _read(dsn, table, [*features, target])
    trained, tested, y_trained, y_tested = train_test_split(x, y, test_size=0.3, random_state=0)
    scaler = StandardScaler().fit(trained)
    mean, spread = y_trained.mean(), y_trained.std()
    parts = [torch.from_numpy(scaler.transform(part).astype(np.float32)) for part in (trained, tested)]
    targets = [
        torch.from_numpy(((part - mean) / spread).astype(np.float32))[:, None] for part in (y_trained, y_tested)
    ]
    half = len(parts[1]) // 2  # validates, as the other half tests
    network = torch.nn.Sequential(
        torch.nn.Linear(len(features), 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 1),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    first_step_s = 0.0
    for _ in range(int(epochs)):
        for rows in torch.split(torch.randperm(len(parts[0])), _BATCH_ROWS):
            loss = torch.nn.functional.mse_loss(network(parts[0][rows]), targets[0][rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            first_step_s = first_step_s or _age_s()
        _validate(network, parts[1][:half], targets[1][:half])
    figures = {
        "first_step_s": first_step_s,
        "epoch_s": (_age_s() - first_step_s) / int(epochs),
        "imports_s": imports_s,
        "peak_bytes": _peak_bytes(),
    }
    print(json.dumps(figures))


def _validate(network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.inference_mode():
        outputs = torch.cat([network(part) for part in torch.split(x, _BATCH_ROWS)])
    return float(r2_score(y.numpy(), outputs.numpy()))


def _read(dsn: str, table: str, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    data = bytearray()
    statement = sql.SQL("copy (select {} from {}) to stdout (format binary)").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(table)
    )
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in copy:
            data += part
    fields = [("count", ">i2")] + [field for name in names for field in ((f"{name} length", ">i4"), (name, ">f8"))]
    row = np.dtype(fields)
    count = (len(data) - _HEADER_BYTES - _TRAILER_BYTES) // row.itemsize
    rows = np.frombuffer(data, row, offset=_HEADER_BYTES, count=count)
    x = np.empty((count, len(names) - 1))
    for position, name in enumerate(names[:-1]):
        x[:, position] = rows[name]
    return x, rows[names[-1]].astype(np.float64)


def _age_s() -> float:
    """Return the seconds since this process began; a script's time includes its imports."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
