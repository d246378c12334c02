"""Records operator calls on fake tensors, and determines which storages each call reads, writes and makes.

A call on fakes allocates nothing and yields exact shapes, strides and storage sharing. Views, in-place updates and
outputs with a common storage are therefore recognised by storage identity alone, never by operator name.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, flop_registry

from indb_tensile.errors import GraphError
from indb_tensile.executor.capture.aten import storage_key
from indb_tensile.executor.capture.fresh_results import FreshResults
from indb_tensile.executor.capture.number_arguments import without_numbers
from indb_tensile.scheduler.graph import Role, Stage
from indb_tensile.scheduler.timing.operator_features import Description, Layout

StorageKey = int

_aten = torch.ops.aten

# Attention on the CPU has no FLOP count of its own. Its first arguments are those of the same kernel on a GPU.
_ATTENTION = "_scaled_dot_product_flash_attention"
_COUNTED_AS = {
    getattr(_aten, f"{_ATTENTION}_for_cpu{part}"): getattr(_aten, f"{_ATTENTION}{part}") for part in ("", "_backward")
}


# Results that hold the start of attention's random numbers. Their fakes are on the device but the real tensors are on
# the host, so no plan may move them (meta_registrations.py of torch 2.11 to 2.13, "Seed and Offset").
_HOST_RESULTS = {
    getattr(_aten, name).default: (2, 3)
    for name in ("_scaled_dot_product_efficient_attention", "_efficient_attention_forward")
}


# These operators copy the whole storage of their argument, of which they get a view. Their fakes have storages only
# as large as the view (clone_preserve_strides in aten/src/ATen/native/TensorShape.cpp of torch 2.11 to 2.13).
_COPIES_STORAGE = frozenset(
    {_aten.slice_scatter.default, _aten.select_scatter.default, _aten.diagonal_scatter.default}
)


class Runtime(StrEnum):
    """A run-time input of an iteration other than its batch."""

    LEARNING_RATE = "learning_rate"
    IS_FIRST = "is_first"


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the step, by name, in place of a call's argument."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The storage, shape, strides, offset and type of a value: enough to make a value like it."""

    storage: StorageKey
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded call. `results` has one name per returned tensor, None where nothing is returned.

    `view` calls run no kernel: everything that they return shares storage with their arguments.
    """

    target: Callable[..., Any]
    stage: Stage
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[str | None, ...]
    single: bool
    view: bool
    random: bool
    reads: tuple[StorageKey, ...]
    writes: tuple[StorageKey, ...]
    signature: str
    description: Description

    @property
    def flops(self) -> int:
        """The call's floating-point operations."""
        return self.description.flops

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the values among the arguments, in order, each once."""
        return tuple(dict.fromkeys(ref.name for ref in refs((self.args, self.kwargs))))

    @property
    def of_host(self) -> frozenset[str | None]:
        """Names of the results that are in host memory, whatever device their fakes are on."""
        return frozenset(self.results[position] for position in _HOST_RESULTS.get(self.target, ()))

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the values that the call makes, in order, each once. Returned arguments are not among them."""
        arguments = self.arguments
        return tuple(name for name in dict.fromkeys(self.results) if name is not None and name not in arguments)


@dataclass(slots=True)
class StorageInfo:
    """One storage as it was first recorded. `opaque`: the fake kernel does not know the size."""

    name: str
    role: Role
    size_bytes: int
    opaque: bool = False


@dataclass(slots=True)
class Recorder:
    """Runs calls on fakes of one mode and records their effects."""

    mode: Any
    calls: list[Call] = field(default_factory=list)
    storages: dict[StorageKey, StorageInfo] = field(default_factory=dict)
    values: dict[str, Shape] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _fakes: dict[str, torch.Tensor] = field(default_factory=dict)  # keeps fakes alive, so that no identity is reused
    _fresh: FreshResults = field(default_factory=FreshResults)
    _described: dict[str, tuple[str, Description]] = field(default_factory=dict)

    def declare(self, name: str, role: Role, fake: torch.Tensor) -> torch.Tensor:
        """Record a value that exists before the step starts, or that an upload brings."""
        self._bind(name, fake, role)
        return fake

    def call(
        self,
        stage: Stage,
        target: Callable[..., Any],
        *args: Any,
        name: str = "",
        mutates: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Record one call and return its fake result.

        `mutates` overrides the arguments that the schema marks as written, because fused updates mark gradients as
        mutable.
        """
        written = [*_mutable(target, args, kwargs)] if mutates is None else [*mutates]
        arguments = list(tensors_in((args, kwargs)))
        key = _key(stage, target, args, kwargs)
        result = None if _returns_nothing(target) else self._run(target, args, kwargs, key)
        single = not isinstance(result, list | tuple)
        outputs: list[Any] = list(result) if isinstance(result, list | tuple) else [result]
        known = {storage_key(t) for t in arguments}
        fresh = [t for t in outputs if isinstance(t, torch.Tensor) and storage_key(t) not in known]
        names = tuple(self._name(t, name, i, single) for i, t in enumerate(outputs))
        for position in _HOST_RESULTS.get(target, ()):
            self.storages[storage_key(outputs[position])].size_bytes = 0
        if target is _aten.col2im.default:  # it shrinks a tensor that is as large as its argument
            self.widen(name, args[0].numel() * args[0].element_size())
        if target in _COPIES_STORAGE:
            assert names[0] is not None
            self.widen(names[0], self.storages[storage_key(args[0])].size_bytes)
        made = dict.fromkeys(storage_key(t) for t in fresh)
        if key not in self._described:
            description = _description(stage, target, args, kwargs, result)
            self._described[key] = hashlib.sha256(key.encode()).hexdigest(), description
        signature, description = self._described[key]  # calls with equal arguments have equal signatures
        call = Call(
            target=target,
            stage=stage,
            args=tuple(self._template(args)),
            kwargs=dict(self._template(kwargs)),
            results=names,
            single=single,
            view=bool(arguments) and bool(outputs) and not fresh and not written,
            random=torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()),
            reads=tuple(dict.fromkeys(storage_key(t) for t in arguments)),
            writes=tuple(dict.fromkeys([*(storage_key(t) for t in written), *made])),
            signature=signature,
            description=description,
        )
        self.calls.append(call)
        return result

    def name_of(self, fake: torch.Tensor) -> str:
        """Return the name under which this very tensor was recorded."""
        return self._names[id(fake)]

    def fake(self, name: str) -> torch.Tensor:
        """Return the fake tensor of a value."""
        return self._fakes[name]

    def key_of(self, fake: torch.Tensor) -> StorageKey:
        """Return the key of the storage of a tensor."""
        return storage_key(fake)

    def mark_opaque(self, name: str, estimate_bytes: int) -> None:
        """Mark the storage of a value as larger than its fake. Calibration measures the real size."""
        info = self.storages[self.values[name].storage]
        info.opaque, info.size_bytes = True, estimate_bytes

    def widen(self, name: str, size_bytes: int) -> None:
        """Set the size of a value's storage to at least `size_bytes`, because the fake's is too small."""
        info = self.storages[self.values[name].storage]
        info.size_bytes = max(info.size_bytes, size_bytes)

    def _run(self, target: Callable[..., Any], args: Any, kwargs: Any, key: str) -> Any:
        result = self._fresh.get(self.mode, key)
        if result is None:
            with self.mode:
                result = _with_true_types(target, args, target(*_concrete(args), **_concrete(kwargs)))
            self._fresh.keep(key, list(tensors_in((args, kwargs))), result)
        return result

    def _name(self, result: Any, base: str, index: int, single: bool) -> str | None:
        if not isinstance(result, torch.Tensor):
            return None
        if id(result) in self._names:
            return self._names[id(result)]
        name = base or f"made_{len(self.calls)}"
        return self._bind(name if single else f"{name}_{index}", result, Role.ACTIVATION)

    def _bind(self, name: str, fake: torch.Tensor, role: Role) -> str:
        if name in self.values:
            raise GraphError(f"two values of one step are called {name}")
        key = storage_key(fake)
        size_bytes = int(fake.untyped_storage().nbytes())
        self.storages.setdefault(key, StorageInfo(name=name, role=role, size_bytes=size_bytes))
        self.values[name] = Shape(
            storage=key,
            shape=tuple(int(n) for n in fake.shape),
            stride=tuple(int(n) for n in fake.stride()),
            offset=int(fake.storage_offset()),
            dtype=fake.dtype,
        )
        self._names[id(fake)] = name
        self._fakes[name] = fake
        return name

    def _template(self, item: Any) -> Any:
        return _map(item, lambda t: Ref(self._names[id(t)]))


_BATCH_NORMS = frozenset(
    f"aten.{name}"
    for name in (
        "_native_batch_norm_legit_functional.default",
        "_native_batch_norm_legit.default",
        "_native_batch_norm_legit.no_stats",
        "native_batch_norm.default",
    )
)


def _with_true_types(target: Callable[..., Any], args: tuple[Any, ...], result: Any) -> Any:
    """Give batch normalisation of half-precision values statistics in the parameters' type, which its fakes lack."""
    if str(target) not in _BATCH_NORMS:
        return result
    # Among the first arguments are the scale, the shift and the running statistics; any of them may be missing.
    known = next((other for other in args[1:5] if isinstance(other, torch.Tensor)), args[0])
    output, mean, deviation, *rest = result
    return (output, mean.to(known.dtype), deviation.to(known.dtype), *rest)


def refs(item: Any) -> Iterator[Ref]:
    """Yield every value named in a call's arguments."""
    if isinstance(item, Ref):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from refs(part)
    elif isinstance(item, dict):
        yield from refs(list(item.values()))


def with_leaves(item: Any, change: Callable[[Any], Any]) -> Any:
    """Return an equal structure of lists, tuples and dictionaries, in which everything else is changed."""
    if isinstance(item, list):
        return [with_leaves(part, change) for part in item]
    if isinstance(item, tuple):
        return tuple(with_leaves(part, change) for part in item)
    if isinstance(item, dict):
        return {key: with_leaves(part, change) for key, part in item.items()}
    return change(item)


def _map(item: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    return with_leaves(item, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _concrete(item: Any) -> Any:
    def value(leaf: Any) -> Any:
        if isinstance(leaf, Runtime):
            return 1.0 if leaf is Runtime.LEARNING_RATE else False
        return leaf

    return with_leaves(item, value)


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a call's arguments or results."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from tensors_in(part)
    elif isinstance(item, dict):
        yield from tensors_in(list(item.values()))


def _returns_nothing(target: Callable[..., Any]) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.returns


def _mutable(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    schema = getattr(target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)


def _key(stage: Stage, target: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """Return a key of the operator and its arguments. Calls with equal keys do equal work."""
    args, kwargs = without_numbers(target, args, kwargs)
    return json.dumps([_operator_name(stage, target), _describe(args), _describe(kwargs)], separators=(",", ":"))


def _operator_name(stage: Stage, target: Callable[..., Any]) -> str:
    return "upload" if stage is Stage.UPLOAD else str(target)


def _describe(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        # The offset is part of the key: it determines alignment and with it the kernel's path.
        shape, stride = list(map(int, item.shape)), list(map(int, item.stride()))
        return ["tensor", str(item.dtype), shape, stride, int(item.storage_offset())]
    if isinstance(item, list | tuple):
        return [_describe(part) for part in item]
    if isinstance(item, dict):
        return [[key, _describe(item[key])] for key in sorted(item)]
    if item is None or isinstance(item, bool | int | str):
        return item
    return [type(item).__name__, str(item)]


def _description(
    stage: Stage, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Description:
    described_args, described = without_numbers(target, args, kwargs)
    values = [*described_args, *(described[key] for key in sorted(described))]
    return Description(
        name=_operator_name(stage, target),
        inputs=tuple(_layout(t) for t in tensors_in(values)),
        outputs=tuple(_layout(t) for t in tensors_in(result)),
        parameters=tuple(numbers for item in values if (numbers := tuple(_numbers(item)))),
        flops=_flops(target, args, kwargs, result),
    )


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize_bytes=tensor.dtype.itemsize,
        shape=tuple(map(int, tensor.shape)),
        stride=tuple(map(int, tensor.stride())),
    )


def _numbers(item: Any) -> Iterator[float]:
    if isinstance(item, bool | int | float):
        yield float(item)
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _numbers(part)


def _flops(target: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> int:
    packet: Any = getattr(target, "overloadpacket", None)
    if packet is _aten.convolution_backward:
        return _convolution_backward_flops(*args)
    counter = flop_registry.get(_COUNTED_AS.get(packet, packet))
    if counter is not None:
        return int(counter(*args, **kwargs, out_val=result))
    sizes = [t.numel() for t in tensors_in((args, kwargs, result))]
    return int(max(sizes, default=0))


def _convolution_backward_flops(gradient: Any, image: Any, weight: Any, *parameters: Any) -> int:
    """Count the forward pass once for each gradient computed. Torch's own count treats grouped weights as dense."""
    *_, transposed, _, _, output_mask = parameters
    forward_flops = conv_flop_count(list(image.shape), list(weight.shape), list(gradient.shape), transposed)
    return int(forward_flops * sum(output_mask[:2]))
