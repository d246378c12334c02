"""Hypothesis strategies for JSON values."""

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, 2**64, 10**19]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\x00", "1e400", "NaN", "infinity", "2020-13-45", "x" * 5000]),
)

VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "y", ""]), inner, max_size=4)
    ),
    max_leaves=12,
)
