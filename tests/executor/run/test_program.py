"""A compiled step is straight-line code that releases where the plan says and moves memory only where it changes."""

import gc
import linecache
import re
from itertools import pairwise

import pytest

from indb_tensile.errors import InvariantError
from indb_tensile.executor.run.program import Program, compile_program
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import OpIndex, Stage, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.timing.job_runs import EventKind, JobRun
from indb_tensile.scheduler.timing.simulate import timeline
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared


def _lines(program: Program) -> list[str]:
    return [line.strip() for line in program.plain_lines[1:]]


def _program(kind: str, plan: Plan) -> Program:
    return compile_program(prepared(kind)[1][0], plan)


def test_a_program_is_one_function_of_straight_line_code() -> None:
    program = _program("cnn", LIVENESS)
    assert not [line for line in _lines(program) if re.match(r"(for|while|with|try|if)\b", line)]
    compile(program.source, "step", "exec")


def test_every_operator_is_called_once_and_in_order() -> None:
    program = _program("cnn", LIVENESS)
    called = [int(match[1]) for line in _lines(program) if (match := re.match(r"(?:[v_0-9, ]+= )?f(\d+)\(", line))]
    second_parts = {k + 1 for k in program.joint}
    assert len(second_parts) == 1
    assert called == [k for k in range(len(program.step.graph.operators)) if k not in second_parts]


def test_uploads_and_operators_have_the_simulators_order() -> None:
    program = _program("mlp", LIVENESS)
    graph = program.step.graph
    run = JobRun(graph=graph, plan=LIVENESS, latency_ns=(1000,) * len(graph.operators))
    link = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
    # A simulated operation begins where the previous one ends. An executed line ends before the next line.
    simulated = [event for event in timeline((run,), link) if event.kind in (EventKind.COMPUTE, EventKind.UPLOAD)]
    assert all(earlier.end_ns <= later.start_ns for earlier, later in pairwise(simulated))
    executed: list[tuple[EventKind, int]] = []
    operator = -1
    for line in _lines(program):
        if called := re.search(r"\bf(\d+)\(", line):
            operator = int(called[1])
            if graph.operators[operator].stage is not Stage.UPLOAD:
                executed.append((EventKind.COMPUTE, operator))
        elif re.fullmatch(r"stall \+= wait\(upload\(.*, '\w+', \d+\)\)", line):
            executed.append((EventKind.UPLOAD, operator))
    assert executed == [(event.kind, event.operator) for event in simulated]
    assert [kind for kind, _ in executed[:3]] == [EventKind.UPLOAD, EventKind.UPLOAD, EventKind.COMPUTE]


def test_the_ledger_moves_once_per_boundary_with_a_change() -> None:
    program = _program("mlp", LIVENESS)
    moves = [line for line in _lines(program) if line.startswith("move(")]
    assert len(moves) == sum(bool(b.freed_bytes or b.taken_bytes) for b in program.timeline.boundaries)


def test_without_release_no_tensor_is_deleted_before_the_end() -> None:
    vanilla, released = _lines(_program("mlp", VANILLA)), _lines(_program("mlp", LIVENESS))
    assert sum(line.startswith("del ") for line in vanilla) == 1
    assert [line for line in vanilla if line.startswith(("del ", "move("))][-2].startswith("del ")
    assert sum(line.startswith("del ") for line in released) > 5


def test_a_swap_becomes_a_copy_out_a_free_a_copy_in_and_two_waits() -> None:
    step = prepared("mlp")[1][0]
    hidden = next(t.id for t in step.graph.tensors if t.name == "relu")
    uses = [k for k, o in enumerate(step.graph.operators) if hidden in (*o.reads, *o.writes)]
    first, last = uses[1], uses[2]
    swap = Swap(
        tensor=TensorId(hidden),
        out_after=OpIndex(first),
        free_at=OpIndex(first + 1),
        in_at=OpIndex(last),
        needed_by=OpIndex(last),
    )
    lines = _lines(compile_program(step, Plan(policy="one", swaps=(swap,))))
    size_bytes = step.graph.tensors[hidden].size_bytes
    about = [line for line in lines if re.search(rf"\b[sh]{hidden}\b|\bt0\b", line) and "del" not in line]
    local = about[0].split("(")[1].split(",")[0]
    assert about == [
        f"s{hidden} = movable({local}, {size_bytes})",
        f"t0 = copy_out(h{hidden}, s{hidden}.data_ptr(), {size_bytes})",
        "stall += wait(t0)",
        f"s{hidden}.resize_(0)",
        f"s{hidden}.resize_({size_bytes})",
        f"t0 = copy_in(s{hidden}.data_ptr(), h{hidden}, {size_bytes})",
        "stall += wait(t0)",
    ]


def test_the_timed_variant_adds_only_clock_readings() -> None:
    program = _program("cnn", LIVENESS)
    clock = re.compile(r"\s*(times|stalls)\[\d+\] = (clock\(\)|stall)|\s*ended\(\)")
    assert tuple(line for line in program.timed_lines if not clock.fullmatch(line)) == program.plain_lines
    assert len(program.timed_lines) - len(program.plain_lines) == 2 * (len(program.step.graph.operators) + 1) + 1


def test_a_plan_against_the_rules_does_not_compile() -> None:
    step = prepared("mlp")[1][0]
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(2), free_at=OpIndex(5), in_at=OpIndex(4), needed_by=OpIndex(6))
    with pytest.raises(InvariantError, match="out of order"):
        compile_program(step, Plan(policy="bad", swaps=(swap,)))


def test_the_source_of_a_program_is_released_with_the_program() -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps)

    def cached_sources() -> int:
        gc.collect()
        return sum(name.startswith("<step program") for name in linecache.cache)

    before = cached_sources()
    runner.adopt((LIVENESS,) * 3, 1)
    with_program = cached_sources()
    for generation in range(2, 5):
        runner.adopt((LIVENESS,) * 3, generation)
    assert with_program > before
    assert cached_sources() == with_program
