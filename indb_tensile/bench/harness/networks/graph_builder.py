"""Builds synthetic step graphs, so that benchmarks have networks of any size without a capture."""

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId


class GraphBuilder:
    """Collects tensors and operators in execution order. An operator's signature is its name and tensors' sizes."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, name: str, size_bytes: int, role: Role) -> TensorId:
        """Add a tensor and return its id, which is part of its name."""
        tensor_id = TensorId(len(self.tensors))
        self.tensors.append(Tensor(id=tensor_id, name=f"{name} {tensor_id}", size_bytes=size_bytes, role=role))
        return tensor_id

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
        """Add an operator after all others."""
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
        """Add a parameter's fused Adam update, with the two moments."""
        size_bytes = self.tensors[parameter].size_bytes
        state = [self.tensor(f"{self.tensors[parameter].name}.{k}", size_bytes, Role.OPTIMIZER_STATE) for k in (1, 2)]
        touched = (parameter, *state)
        self.operator("adam", Stage.OPTIMIZER, (gradient, *touched), touched, size_bytes // 4, splittable=True)

    def graph(self, signature: str) -> StepGraph:
        """Return the step graph of the collected tensors and operators."""
        return StepGraph(tensors=tuple(self.tensors), operators=tuple(self.operators), signature=signature)
