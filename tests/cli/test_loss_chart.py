"""The chart of losses is drawn to scale, and its lines differ without colours."""

import math

from indb_tensile.cli.loss_chart import loss_chart


def drawn(lines: dict[str, list[tuple[int, float | None]]], width: int = 60) -> list[str]:
    return [text.plain.rstrip() for text in loss_chart(lines, width)]


def test_both_losses_are_drawn_with_their_range_and_epochs() -> None:
    chart = drawn({"loss": [(1, 12.0), (2, 6.0), (3, 0.0)], "valid_loss": [(1, 12.0), (2, 9.0), (3, 8.0)]})
    assert chart == [
        "         12 │◉",
        "            │",
        "            │ ○",
        "            │  ○",
        "            │",
        "            │ •",
        "            │",
        "            │",
        "            │",
        "            │",
        "            │",
        "          0 │  •",
        "      epoch  1 3",
        "             • loss   ○ valid_loss",
    ]


def test_many_epochs_fit_the_width_and_the_last_value_of_a_column_is_shown() -> None:
    chart = drawn({"loss": [(epoch, 1.0 / epoch) for epoch in range(1, 1001)]}, width=53)
    assert {len(line) for line in chart[:12] if line.endswith("•")} <= set(range(53 + 1))
    assert chart[12] == "      epoch  1" + " " * 35 + "1000"
    assert chart[-1].endswith("• loss")


def test_values_that_are_not_finite_are_left_out() -> None:
    assert drawn({"loss": [(1, math.nan), (2, None)], "valid_loss": []}) == []
    assert drawn({"loss": [(1, 2.0), (2, math.inf)]})[11] == "          2 │•"
