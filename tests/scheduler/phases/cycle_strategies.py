"""A strategy for the loads of jobs over one iteration."""

from hypothesis import strategies as st

from indb_tensile.scheduler.phases.load_cycle import Cycle


@st.composite
def cycles(draw: st.DrawFn) -> Cycle:
    """Draw a short iteration of up to seven operators with arbitrary loads."""
    load_bytes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7))
    duration_ns = draw(st.lists(st.integers(1, 4), min_size=len(load_bytes), max_size=len(load_bytes)))
    idle_bytes = draw(st.integers(0, min(load_bytes)))
    return Cycle(load_bytes=tuple(load_bytes), duration_ns=tuple(duration_ns), idle_bytes=idle_bytes)
