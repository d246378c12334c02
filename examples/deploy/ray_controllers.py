"""Runs controllers as actors of a Ray cluster, each with one GPU, until this program is interrupted.

    python examples/deploy/ray_controllers.py --controllers 2 \
        --dsn "host=database.example dbname=app user=tensile_worker sslmode=verify-full"

The package is installed on every node. If a node is lost, Ray starts its controller again on another one, and its
jobs continue from their checkpoints, which are stored in the database.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ray


class ControllerProcess:
    """One controller on the node of this actor, with the GPU that Ray shows to the actor alone."""

    def __init__(self, dsn: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="tensile-")
        settings = {"TENSILE_STATE_DIR": self._directory.name, "TENSILE_CHECKPOINT_STORE": "catalog"}
        command = [str(Path(sys.executable).with_name("tensile")), "controller", "--dsn", dsn]
        self._process = subprocess.Popen(command, env=settings | os.environ)

    def wait(self) -> int:
        """Return the exit code of the controller once it has ended."""
        return self._process.wait()

    def stop(self) -> int:
        """Let the controller save its jobs and return them to the queue. Returns its exit code."""
        self._process.terminate()
        code = self._process.wait()
        self._directory.cleanup()
        return code


def main() -> None:
    """Start the actors, and stop their controllers when this program gets SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dsn", required=True, help="the database, as the role tensile_worker")
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=1, help="GPUs of each controller; 0 for the processor")
    parser.add_argument("--cpus", type=float, default=2)
    options = parser.parse_args()
    ray.init()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # after ray.init, which sets another handler
    actor = ray.remote(
        num_gpus=options.gpus,
        num_cpus=options.cpus,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=2,  # so that `stop` can be called while `wait` waits
    )(ControllerProcess)
    controllers = [actor.remote(options.dsn) for _ in range(options.controllers)]
    try:
        ray.get([controller.wait.remote() for controller in controllers])
    except KeyboardInterrupt:
        ray.get([controller.stop.remote() for controller in controllers])


if __name__ == "__main__":
    main()
