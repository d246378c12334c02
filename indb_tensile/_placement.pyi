"""Placing blocks of memory (native/placement/bindings.cpp): the binding of `scheduler/memory/tensor_placement.py`.

A block lives at moments first .. stop - 1 of a cycle; `stop` exceeds `cycle` if the block lives
on past the end. `fit` returns the blocks' offsets (best fit if `best`, else first fit). `search` returns whether it
decided, and the offsets: empty if it is undecided or placement is impossible.
"""

def fit(
    first: list[int], stop: list[int], size: list[int], cycle: int, order: list[int], best: bool
) -> list[int]: ...
def search(
    first: list[int], stop: list[int], size: list[int], cycle: int, capacity: int, steps: int
) -> tuple[bool, list[int]]: ...
