"""Decides which lines about jobs and devices to print when progress is printed line by line."""

from dataclasses import dataclass, field

from indb_tensile.cli.output import Row
from indb_tensile.job import JobState, Phase

QUIET_S = 30.0  # between two lines about the same job in the same phase and the same tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    text: str
    mark: object
    at_s: float


@dataclass(slots=True, kw_only=True)
class PrintedLines:
    """The last line that was printed about each job and each device."""

    printed: dict[str, _Printed] = field(default_factory=dict)

    def is_news(self, subject: str, text: str, mark: object, now_s: float) -> bool:
        """Return whether to print this line about `subject`, and record it if so.

        A line is printed if its mark is new, or if its text is new and the last line is at least `QUIET_S` old.
        """
        last = self.printed.get(subject)
        if last is not None and last.mark == mark and (last.text == text or now_s < last.at_s + QUIET_S):
            return False
        self.printed[subject] = _Printed(text=text, mark=mark, at_s=now_s)
        return True


def change_key(job: Row) -> tuple[object, ...]:
    """Return the values of a job whose change is printed at once: its state, its phase, and the completed tenths.

    Training and validation alternate in every epoch, so they count as one phase.
    """
    phase = Phase.TRAINING if job["phase"] == Phase.VALIDATING else job["phase"]
    tenths = None if job["percent"] is None or job["state"] != JobState.RUNNING else int(float(job["percent"]) // 10)
    return job["state"], phase, tenths
