"""Collects the tensors and operators of a made-up step graph, for networks of any size without a capture."""

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId


class GraphBuilder:
    """Tensors and operators in the order in which they are added; an operator's signature is its name and sizes."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, name: str, size_bytes: int, role: Role) -> TensorId:
        """One more tensor; its id is part of its name."""
        made = TensorId(len(self.tensors))
        self.tensors.append(Tensor(id=made, name=f"{name} {made}", size_bytes=size_bytes, role=role))
        return made

    def operator(
        self,
        name: str,
        stage: Stage,
        reads: tuple[TensorId, ...],
        writes: tuple[TensorId, ...],
        flops: int = 0,
        *,
        splittable: bool = False,
    ) -> None:
        """One more operator, after all others."""
        signature = f"{name} {[self.tensors[t].size_bytes for t in (*reads, *writes)]}"
        self.operators.append(
            Operator(
                name=name,
                signature=signature,
                stage=stage,
                reads=reads,
                writes=writes,
                flops=flops,
                splittable=splittable,
            )
        )

    def adam(self, parameter: TensorId, gradient: TensorId) -> None:
        """A parameter's fused update, with its two moments."""
        size_bytes = self.tensors[parameter].size_bytes
        state = [self.tensor(f"{self.tensors[parameter].name}.{k}", size_bytes, Role.OPTIMIZER_STATE) for k in (1, 2)]
        touched = (parameter, *state)
        self.operator("adam", Stage.OPTIMIZER, (gradient, *touched), touched, size_bytes // 4, splittable=True)

    def graph(self, signature: str) -> StepGraph:
        """What was collected."""
        return StepGraph(tensors=tuple(self.tensors), operators=tuple(self.operators), signature=signature)
