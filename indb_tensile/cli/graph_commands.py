"""`tensile graph` writes step graphs to files and reads them, so that they can be planned without their network."""

import importlib
import sys
from pathlib import Path

import click

from indb_tensile.cli.output import Row, show_one
from indb_tensile.cli.plan_command import read_file
from indb_tensile.cli.shared_options import json_option
from indb_tensile.scheduler.document import Document, write_document
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, vanilla_peak
from indb_tensile.scheduler.timing import machines

# The module is imported by name, and only when a network is captured, because it imports torch, which no other
# command may import.
_NETWORKS = "indb_tensile.bench.harness.networks.known_networks"


@click.group()
def graph() -> None:
    """Write and read step graphs as JSON files, which `tensile plan --graph` plans."""


@graph.command("export")
@click.argument("name")
@click.option("--batch", type=click.IntRange(1), help="rows of one step; by default the network's own")
@click.option(
    "--machine",
    default=machines.REFERENCE.name,
    show_default=True,
    help="the machine of the operator latencies; none: no latencies",
)
@click.option("--output", metavar="FILE", help="the file to write; by default stdout")
def export_graph(name: str, batch: int | None, machine: str, output: str | None) -> None:
    """Write the training step of the network NAME: vgg16, resnet50, inception_v3, gpt2, bert and others.

    Needs the package's extra `bench`. The first call for a network takes seconds; later calls use a cached graph.
    """
    chosen = None if machine == "none" else machines.machine(machine)
    captured = importlib.import_module(_NETWORKS).graph_of(name, batch)
    latency_ns = None if chosen is None else machines.latencies(captured, chosen)
    text = write_document(Document(name=name, graph=captured, latency_ns=latency_ns))
    if output is None:
        sys.stdout.write(text)
    else:
        Path(output).write_text(text, encoding="utf-8")


@graph.command("import")
@json_option
@click.argument("file")
def import_graph(as_json: bool, file: str) -> None:
    """Read the step graph in FILE (- is stdin), check it, and print its counts and sizes."""
    show_one(_describe(read_file(file)), as_json=as_json)


def _describe(document: Document) -> Row:
    step = document.graph
    return {
        "name": document.name,
        "operators": len(step.operators),
        "tensors": len(step.tensors),
        "random": sum(o.random for o in step.operators),
        "splittable": sum(o.splittable for o in step.operators),
        **{f"{role}_bytes": sum(t.size_bytes for t in step.tensors if t.role is role) for role in Role},
        "largest_workspace_bytes": max(o.workspace_bytes for o in step.operators),
        "vanilla_peak_bytes": vanilla_peak(step),
        "liveness_peak_bytes": liveness_peak(step),
        "floor_bytes": floor(step),
        "gflop": sum(o.flops for o in step.operators) / 1e9,
        "compute_us": None if document.latency_ns is None else sum(document.latency_ns) / 1000,
        "signature": step.signature,
    }
