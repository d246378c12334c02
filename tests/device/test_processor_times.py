"""Processor times are read as Linux writes them."""

import os
import time
from pathlib import Path

import pytest

from indb_tensile.device.processor_times import busy_s, process_s


def test_times_come_from_the_files_of_the_system(tmp_path: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    lines = ["cpu  9 9 9 9 9 9 9 9 9 9", f"cpu0 {second} 20 30 5000 7 1 2 50 0 0", "cpu1 9 9 9 9 9 9 9 9 9 9"]
    (tmp_path / "stat").write_text("\n".join([*lines, "cpu2 47 0 0 1 1 0 0 0 0 0", "intr 5"]), encoding="ascii")
    used_s = busy_s(tmp_path, allowed={0, 2}, usable=2)
    assert used_s == pytest.approx(1 + 100 / second), "of two cores, without the idle time and what a host takes"
    assert busy_s(tmp_path, allowed={0, 2}, usable=1) is None, "a quota leaves fewer cores"
    (tmp_path / "12").mkdir()
    fields = ["S", *["0"] * 10, str(second), str(second // 2), "0", "0"]
    (tmp_path / "12" / "stat").write_text(f"12 (a (b) c) {' '.join(fields)}", encoding="ascii")
    assert process_s(12, tmp_path) == pytest.approx(1.5)
    assert process_s(13, tmp_path) is None


def test_times_of_this_machine_grow_with_what_this_process_computes() -> None:
    before_s = process_s(os.getpid())
    assert before_s is not None
    used_s = time.process_time()
    while time.process_time() < used_s + 0.05:  # some ticks of Linux, which counts in hundredths
        pass
    assert (process_s(os.getpid()) or 0.0) > before_s
