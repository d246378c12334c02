"""`tensile bench`: every claimed figure, one command each."""

import os
import subprocess
import sys
from collections.abc import Sequence

import click

from indb_tensile.bench.ending import end_when_told

NOUNS = {
    "policies": "Compare all policies on known networks: memory saved, overhead, planning time, and who leads.",
    "multi": "Compare all policies on several jobs at once: one to four equal ones, and five different ones.",
    "batch": "Compare all policies on known networks at batches of 4 to 64.",
    "speed": "Measure planning time against operators and jobs, from nothing and again.",
    "capture": "Measure how long capturing a step takes by its operators, and how much of that is torch's tracing.",
    "placement": "Measure offline allocation: bytes over the load bound, and how long it takes.",
    "step": "Compare a planned step with PyTorch's own ways to save memory, at the same peaks, by running them.",
    "maxbatch": "Find the largest batch that fits, planned and by eager PyTorch, simulated or executed.",
    "exact": "Run all networks under all policies, and compare results bit for bit with unplanned ones.",
    "forecast": "Compare foretold and measured iterations on the emulated device.",
    "together": "Compare foretold and measured iterations of several jobs on the emulated device.",
    "predictor": "Judge foretold operator latencies on networks left out of the predictor's training.",
    "defaults": "Train known tables without settings, and compare quality and time with boosting and a linear model.",
    "enqueue": "Measure how long tensile_train takes, and a job from commit to first step.",
    "reading": "Compare a job, from its commit to the first step, with a plain script on the same table, and memory.",
    "queue": "Measure how fast workers empty the queue, and that no job is claimed twice.",
    "checkpoints": "Compare checkpoints in files and in the catalog: seconds, WAL, and the space that stays behind.",
    "predict": "Measure predictions from SQL, one row and many.",
    "cpu": "Compare a training without a GPU with a plain script, and the memory of planned and unplanned ones.",
    "start": "Measure how long trainers and the service take until ready, forked and started anew, and their memory.",
    "soak": "Kill trainers at random moments: no region of the device lost, shared or left with a dead owner.",
    "chaos": "Disturb jobs of several owners by kills, full disks, lost connections, clocks and locks: none is lost.",
}

# These need a server: the one that --dsn names, or else a private one that is made for the run.
SERVED = ("queue", "checkpoints", "reading", "start", "cpu")
_SAID = ("--dsn", "-h", "--help")


@click.group()
def bench() -> None:
    """Measure what is claimed of this package; each benchmark has a --help of its own and prints --json."""


def _add(noun: str, text: str) -> None:
    @bench.command(noun, help=text, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: Sequence[str]) -> None:
        sys.stdout.flush()
        command = [sys.executable, "-m", "indb_tensile.bench", noun, *arguments]
        if noun in SERVED and not any(argument.startswith(_SAID) for argument in arguments):
            from indb_tensile.cluster import passing  # the others need no driver of PostgreSQL

            end_when_told()
            with passing() as cluster:
                command += ["--dsn", cluster.dsn(database="postgres")]
                sys.exit(subprocess.run(command, check=False).returncode)
        # Another program in this process: benchmarks import torch, which no command does.
        os.execv(sys.executable, command)  # noqa: S606


for _noun, _text in NOUNS.items():
    _add(_noun, _text)
