"""In strict mode plans work as usual, and a read of a released tensor kills the process with a message."""

import re
import signal

from tests.device.preloaded import run


def test_a_process_that_reads_a_tensor_that_is_away_dies_of_sigsegv_with_a_message() -> None:
    done = run("tests.executor.run.strict_process")
    output = done.stdout.splitlines()
    assert output[:2] == ["as in eager: True True"] * 2, done.stderr
    assert (output[2].split()[0], len(output)) == ("reads", 3)
    assert done.returncode == -signal.SIGSEGV
    message = r"job 7: memory that is away was touched: byte \d+ of the planned block, where \S.* of "
    assert re.search(message + r"\d+ bytes lay until position \d+ of the program, at its byte \d+", done.stderr)
