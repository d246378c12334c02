"""`tensile bench` runs the benchmarks, one command for each claimed figure."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from indb_tensile.bench.harness.processes.process_exit import exit_on_sigterm

NOUNS = {
    "policies": "Compare all policies on known networks: saved memory, overhead, planning time, the best policy.",
    "multi": "Compare all policies on several jobs at once: one to four equal jobs, and five different jobs.",
    "batch": "Compare all policies on known networks at batches of 4 to 64.",
    "speed": "Measure planning time by the number of operators and jobs, for first and repeated planning.",
    "bound": "Compare the least memory of our plans at an overhead with the proven bound of every plan.",
    "capture": "Measure the time to capture a step by the number of operators, and the part of torch's tracing.",
    "placement": "Measure offline allocation: bytes above the load bound, and the time it takes.",
    "step": "Run a planned step and PyTorch's own methods to save memory, and compare them at the same peaks.",
    "maxbatch": "Find the largest batch that fits, with a plan and in eager PyTorch, simulated or executed.",
    "exact": "Run all networks under all policies, and compare results bit for bit with unplanned ones.",
    "feed": "Measure how long an iteration waits for its batch, with and without uploading the next one ahead.",
    "forecast": "Compare predicted and measured iteration times on the emulated device.",
    "together": "Compare predicted and measured iteration times of several jobs on the emulated device.",
    "ranks": "Compare one training on several processes with DistributedDataParallel: time, bits, traffic, memory.",
    "scaling": "Estimate how a training scales to hundreds of ranks, beside published measurements; simulated.",
    "share": "Compare ways to share a device between jobs: turns, first fit, plans. Checks peaks and results.",
    "trace": "Simulate admission on jobs of a published trace, against known schedulers of deep learning.",
    "controllers": "Simulate several controllers on one catalog: makespan, and waits of jobs of several devices.",
    "predictor": "Measure the errors of predicted operator latencies on networks outside the training data.",
    "defaults": "Train on known tables with defaults; compare quality and time with boosting and a linear model.",
    "quality": "Compare the quality of models on a fixed list of real tables with boosting and other networks.",
    "text": "Compare networks that read texts as tokens with TF-IDF and logistic regression on Debian's packages.",
    "pretrained": "Measure the memory of training a network's head, LoRA and all of it, and train on few labels.",
    "images": "Compare networks that read images of bytea with plain PyTorch and scikit-learn on digits of MNIST.",
    "photos": "Compare a training that decodes photographs beside its steps with decoding them before, or anew.",
    "series": "Compare forecasts of real series with exponential smoothing by statsmodels and naive forecasts.",
    "anomalies": "Compare the anomalies that the default finds with those of scikit-learn's isolation forest.",
    "pairs": "Rank what Debian's packages depend on by two towers, beside rankings by popularity.",
    "enqueue": "Measure the time of tensile_train, and of a job from its commit to its first step.",
    "read": "Compare reading and epochs of a job, in memory and in a quarter of it, with a plain script's.",
    "search": "Compare a search that ends trials early with training all of them to their end, one by one.",
    "queue": "Measure how fast workers claim the jobs of a queue, and check that no job is claimed twice.",
    "checkpoints": "Compare checkpoints in files and in the catalog: time, WAL, and disk space that stays in use.",
    "page": "Measure what tensile web costs: memory after a day of samples, answers, processors for many pages.",
    "watching": "Measure how much open pages and the record of a device slow down a training, in turns.",
    "grid": "Compare a GridSearchCV of scikit-learn whose candidates share a device with turns and first fit.",
    "predict": "Compare predictions of whole tables with a client that copies all rows, and with single calls.",
    "cpu": "Compare a training without a GPU with a plain script, and the memory with and without plans.",
    "start": "Measure start time and memory of trainers and of the service, forked and started as new processes.",
    "soak": "Kill trainers at random moments; check that no region is lost, shared or owned by a dead process.",
    "chaos": "Disturb jobs by kills, full disks, lost connections, clock steps and locks; check that no job is lost.",
}

# These benchmarks need a server: the one that --dsn names, or else a private one that is created for the run.
SERVED = (
    "queue",
    "checkpoints",
    "page",
    "read",
    "predict",
    "search",
    "start",
    "cpu",
    "share",
    "watching",
    "grid",
    "controllers",
)
_INTERRUPTED_S = 30.0  # for which a benchmark may take to end after an interrupt, before it is told once more
_WITHOUT_SERVER = ("--dsn", "-h", "--help")  # with these options no server is created


@click.group()
def bench() -> None:
    """Measure the claimed figures of this package. Each benchmark has its own --help and prints JSON with --json."""


def _add(noun: str, text: str) -> None:
    @bench.command(noun, help=text, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: Sequence[str]) -> None:
        sys.stdout.flush()
        command = [sys.executable, "-m", "indb_tensile.bench", noun, *arguments]
        if noun in SERVED and not any(argument.startswith(_WITHOUT_SERVER) for argument in arguments):
            from indb_tensile.cluster import temporary_cluster  # other benchmarks need no PostgreSQL driver

            exit_on_sigterm()
            with temporary_cluster() as cluster:
                sys.exit(finish([*command, "--dsn", cluster.dsn(database="postgres")]))
        # Replaces this process, because benchmarks import torch, and commands do not.
        os.execv(sys.executable, command)  # noqa: S606


def finish(command: Sequence[str]) -> int:
    """Run the benchmark and return its exit code. If this process is told to end, the benchmark is told as well.

    Then this waits until the benchmark has ended the controllers that it started. They need the server until then,
    and nobody else would end them.
    """
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:  # mostly a Ctrl-C, which the benchmark has got, too: a second signal would disturb it
        with suppress(subprocess.TimeoutExpired):
            process.wait(_INTERRUPTED_S)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


for _noun, _text in NOUNS.items():
    _add(_noun, _text)
