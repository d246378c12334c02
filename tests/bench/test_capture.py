"""The benchmark of captures reports the captured operators, and torch's share of the time."""

import json

import pytest

from indb_tensile.bench.commands import capture


@pytest.mark.nightly
def test_a_row_has_the_operators_and_both_times(capsys: pytest.CaptureFixture[str]) -> None:
    capture.main(["--cells", "1", "--rounds", "1", "--json"])
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row.keys() == {"cells", "operators", "captured_s", "traced_s", "ratio"}
    assert (row["cells"], row["operators"]) == (1, 228)
    assert row["captured_s"] > 0
    assert row["traced_s"] > 0


@pytest.mark.nightly
def test_a_row_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    capture.main(["--cells", "1", "--rounds", "1"])
    assert "1 cells     228 operators" in capsys.readouterr().out
