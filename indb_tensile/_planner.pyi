"""Types of the native search over one step graph's choices (native/planner)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.int64]
_Ns = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.uint8]
_Indices = npt.NDArray[np.int32]

class Manner:
    def __init__(
        self,
        *,
        drops: bool = True,
        lane_price: float = 0.0,
        tried: int = 6,
        together: int = 1,
        careful: bool = False,
        surprise: float = 0.1,
    ) -> None: ...

class Search:
    def __init__(
        self,
        *,
        size_bytes: _Bytes,
        persistent: _Flags,
        out_ns: _Ns,
        in_ns: _Ns,
        latency_ns: _Ns,
        workspace_bytes: _Bytes,
        upload: _Flags,
        repeatable: _Flags,
        offset: _Indices,
        access: _Indices,
        writes: _Flags,
    ) -> None: ...
    def clear(self) -> None: ...
    def exhaust(self) -> None: ...
    def lower(self, limit_bytes: int, manner: Manner, most: int) -> bool: ...
    def press(self, limit_bytes: int, most: int) -> bool: ...
    def prune(self, limit_bytes: int, most: int) -> None: ...
    def improve(self, limit_bytes: int, manner: Manner, most: int, seed: int) -> int: ...
    def retime(self, *, latency_ns: _Ns, out_ns: _Ns, in_ns: _Ns) -> None: ...
    def adopt(
        self, *, order: _Indices, moves: Sequence[tuple[int, int, int, int, int, bool]]
    ) -> tuple[int, int] | None: ...
    def uncover(self) -> None: ...
    def choose(self, choices: Sequence[tuple[int, int, int]]) -> None: ...
    @property
    def choices(self) -> list[tuple[int, int, int]]: ...
    @property
    def lane_ns(self) -> int: ...
    @property
    def layouts(self) -> int: ...
    @property
    def order(self) -> list[int]: ...
    @property
    def moves(self) -> list[tuple[int, int, int, int, int, bool]]: ...
    @property
    def load_bytes(self) -> list[int]: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def iteration_ns(self) -> int: ...
    @property
    def stall_ns(self) -> int: ...
