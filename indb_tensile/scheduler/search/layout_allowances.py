"""How many layouts of a graph's operators the search for the first plan may take, in all and in each of its steps.

The work of the search is the number of operators that it lays out, so a layout of a large graph counts as many of a
small one. Small graphs are allowed nearly the same work, and tiny ones less. The work of larger graphs falls
smoothly, because the parts of the search that are made in Python take time, too. first_plan.py says what each step
searches.

Unless a constant's comment names a measurement, the value was chosen by hand and no measurement is recorded.
"""

# Operators laid out for a small graph's first plan: half a second to a second of CPU time. Measured over ten budgets
# of the ten captured networks: iterations are 0.2 % longer than with five times the work, 10 % at the worst point.
_ALLOWED_WORK = 8_500_000
# The number of operators at which half of that work is allowed. Orders and outlines, which are made in Python, then
# take as long as the search. A larger value gives large graphs better plans later.
_HALF_AT = 5_000
# A small graph's allowance is divided into this many rations: one for each kind of local search and its improvement.
_RATIONS = 7
# A ration never exceeds `_ALWAYS` layouts plus `_EACH` for each operator. This bounds the allowance of tiny graphs;
# lower values make their search shorter.
_ALWAYS, _EACH = 400, 24
# Swapping while the lanes are idle may take 1/2 of a ration in each round.
_IDLE_PART = 2
# Each order with a later update may take 1/2 of the allowance on graphs so small that their allowance takes far less
# than a second, and 1/8 on others. Measured on VGG-16: a first plan takes 0.3 to 0.7 s in place of 0.2 to 0.3.
_DELAY_PART, _LEAST_DELAY_PART = 2, 8
# The search in orders in which recomputations hold tensors may take 1/4 of the allowance. Measured on DenseNet-121 at
# eight budgets: with 1/8, plans take up to 0.9 % longer; with all of it, they take up to 0.4 % less and 0.2 s more.
_HOLD_PART = 4


def layout_allowance(operators: int, work: float = 1) -> int:
    """Return how many layouts the first plan of a graph with this many operators may take after the sweeps."""
    return min(_affordable(operators, work), round(work * _RATIONS * (_ALWAYS + _EACH * operators)))


def layout_ration(operators: int, work: float = 1) -> int:
    """Return the layouts of one kind of local search and its improvement."""
    return layout_allowance(operators, work) // _RATIONS


def idle_allowance(operators: int, work: float = 1) -> int:
    """Return how many layouts a round of swapping while the lanes are idle may take."""
    return layout_allowance(operators, work) // (_RATIONS * _IDLE_PART)


def delay_allowance(operators: int, work: float = 1) -> int:
    """Return how many layouts the search in each order with a later update may take."""
    allowance = layout_allowance(operators, work)
    rest = min(allowance, _affordable(operators, work) - allowance)
    return max(rest // _DELAY_PART, allowance // _LEAST_DELAY_PART)


def hold_allowance(operators: int, work: float = 1) -> int:
    """Return how many layouts the search in orders in which recomputations hold tensors may take."""
    return layout_allowance(operators, work) // _HOLD_PART


def _affordable(operators: int, work: float) -> int:
    return round(work * _ALLOWED_WORK / (1 + operators / _HALF_AT)) // operators
