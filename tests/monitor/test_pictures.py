"""Pictures have every move of the plan and every value of the curves, and no name of a user becomes markup."""

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from indb_tensile.monitor.learning_picture import learning_picture
from indb_tensile.monitor.plan_picture import PlannedStep, plan_picture
from indb_tensile.monitor.svg_drawing import Theme, nice_ticks
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.plan import Execution, Plan, Swap

P, A = TensorId(0), TensorId(1)
HOSTILE = "<script>alert('x')</script>&\x00\x07\ud800"
SWAP = Swap(tensor=P, out_after=OpIndex(0), free_at=OpIndex(1), in_at=OpIndex(2), needed_by=OpIndex(3))
AGAIN = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 1, 2))


def step(plan: Plan, *, limit_bytes: int | None = None) -> PlannedStep:
    def operator(name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
        return Operator(name=name, signature=name, stage=stage, reads=reads, writes=writes, workspace_bytes=7)

    graph = StepGraph(
        tensors=(
            Tensor(id=P, name=HOSTILE, size_bytes=2048, role=Role.PARAMETER),
            Tensor(id=A, name="a", size_bytes=1024, role=Role.ACTIVATION),
        ),
        operators=(
            operator("first", Stage.FORWARD, (P,), ()),
            operator("make", Stage.FORWARD, (), (A,)),
            operator("last", Stage.BACKWARD, (P, A), ()),
        ),
    )
    return PlannedStep(
        title=f"Plan of {HOSTILE}", graph=graph, latency_ns=(900, 0, 700), plan=plan, limit_bytes=limit_bytes
    )


def notes(svg: str) -> list[str]:
    """Return the notes of the shapes. The document must be well-formed, and have no script and no link."""
    root = ElementTree.fromstring(svg)
    tags = {element.tag.partition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "polygon", "polyline", "text"}
    return [element.text or "" for element in root.iterfind(".//*/{*}title")]


def test_a_picture_marks_each_copy_and_each_recomputation_and_shows_the_limit() -> None:
    plan = Plan(policy="test", executions=AGAIN, swaps=(SWAP,))
    shown = notes(plan_picture(step(plan, limit_bytes=3000)))
    moves = sorted(note.rpartition(": ")[2] for note in shown if ": " in note and not note.endswith(("B", "kB")))
    assert moves == ["copy to the device", "copy to the host", "made again"]
    assert "budget 2.9 kB" in shown
    kinds = {note.partition(":")[0] for note in shown if ": at most" in note}
    assert kinds == {"parameters", "activations and gradients", "workspaces"}
    plain = plan_picture(step(LIVENESS, limit_bytes=10**9))
    assert not any("copy" in note or "again" in note for note in notes(plain))
    assert "above the picture" in plain


def test_a_step_whose_operators_access_no_tensor_has_a_picture_of_empty_memory() -> None:
    idle = Operator(name="idle", signature="idle", stage=Stage.FORWARD, reads=(), writes=())
    graph = StepGraph(tensors=(), operators=(idle,))
    empty = PlannedStep(title="empty", graph=graph, latency_ns=(900,), plan=LIVENESS)
    svg = plan_picture(empty)
    assert notes(svg) == []
    assert "At most 0 B are on the device" in svg


@pytest.mark.parametrize("theme", Theme)
def test_a_theme_has_fixed_colours_or_follows_the_system(theme: Theme) -> None:
    svg = plan_picture(step(LIVENESS), theme)
    assert ("prefers-color-scheme: dark" in svg) == (theme is Theme.AUTO)
    paper = {Theme.LIGHT: "#ffffff", Theme.DARK: "#1b212a", Theme.AUTO: "#ffffff"}[theme]
    assert f'fill="{paper}"' in svg.partition("/>")[0]


def test_curves_have_a_panel_for_each_axis_and_leave_out_what_is_no_number() -> None:
    epochs: list[dict[str, Any]] = [
        {"epoch": 1, "loss": 2.0, "valid_loss": None, "learning_rate": 0.1, "metrics": {HOSTILE: 0.5}},
        {"epoch": 2, "loss": math.inf, "valid_loss": None, "learning_rate": 0.05, "metrics": {HOSTILE: None}},
        {"epoch": 3, "loss": 1.0, "valid_loss": None, "learning_rate": 0.025, "metrics": {HOSTILE: 0.75}},
    ]
    svg = learning_picture("Job 1", epochs)
    assert set(notes(svg)) == {
        "training",
        "learning rate",
        HOSTILE.translate({0: None, 7: None}).replace("\ud800", "?"),
    }
    assert "training 1" in svg
    assert "validation 1" not in svg
    short = learning_picture("Job 1", epochs[:1])
    assert notes(short).count("training") == 2  # one point is a dot
    assert learning_picture("Job 1", []).startswith("<svg")


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert nice_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert nice_ticks(-3, 7) == [-2, 0, 2, 4, 6]
    assert nice_ticks(5, 5) == [5]
