"""Check checkpoint files: written completely or not at all, unreadable for other users, inside their folder."""

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.stored_checkpoints import digest_of
from indb_tensile.errors import StorageError
from indb_tensile.job import JobId

INSTALLATION = UUID(int=7)
JOB = JobId(3)


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles(tmp_path / "state", INSTALLATION, "host.example")


def names(files: CheckpointFiles) -> list[str]:
    return sorted(path.name for path in files.directory.iterdir())


def test_checkpoint_is_read_back_and_only_its_user_may_read_it(files: CheckpointFiles) -> None:
    digest = files.write(JOB, [b"state"]).digest
    assert digest == digest_of(b"state")
    assert files.read(JOB, digest, 5) == b"state"
    assert names(files) == [f"job-3-{digest}.ckpt"]
    assert stat.S_IMODE((files.directory / names(files)[0]).stat().st_mode) == 0o600
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.directory.parent.stat().st_mode) == 0o700


def test_previous_checkpoint_stays_until_it_is_removed(files: CheckpointFiles) -> None:
    old, new = files.write(JOB, [b"old"]).digest, files.write(JOB, [b"new"]).digest
    other = files.write(JobId(4), [b"old"]).digest
    assert files.read(JOB, old, 3) == b"old"
    files.keep_only(JOB, new)
    assert names(files) == sorted([f"job-3-{new}.ckpt", f"job-4-{other}.ckpt"])


def test_missing_truncated_or_changed_file_is_not_loaded(files: CheckpointFiles) -> None:
    digest = files.write(JOB, [b"state"]).digest
    path = files.directory / names(files)[0]
    path.write_bytes(b"stat")
    with pytest.raises(StorageError, match="has 4 bytes, not 5"):
        files.read(JOB, digest, 5)
    path.write_bytes(b"wrong")
    with pytest.raises(StorageError, match="is damaged: its SHA-256 digest does not match"):
        files.read(JOB, digest, 5)
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        files.read(JOB, digest, 5)
    target = files.directory / "elsewhere"
    target.write_bytes(b"state")
    path.symlink_to(target)
    with pytest.raises(StorageError, match="cannot be read"):
        files.read(JOB, digest, 5)


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "a" * 63, "A" * 64, "a" * 64 + "/"])
def test_digest_that_is_no_digest_is_refused_as_a_file_name(files: CheckpointFiles, digest: str) -> None:
    with pytest.raises(StorageError, match="do not form the name"):
        files.read(JOB, digest, 5)


def test_stale_files_are_removed_and_valid_or_recent_files_stay(files: CheckpointFiles) -> None:
    valid, ended, fresh = (files.write(JobId(n), [b"%d" % n]).digest for n in (1, 2, 3))
    unfinished = files.directory / "new-job-9-x"
    unfinished.write_bytes(b"half")
    (files.directory / "README").write_bytes(b"a user's own file")
    for path in files.directory.iterdir():
        if fresh not in path.name:
            os.utime(path, (1, 1))
    assert files.remove_stale(frozenset({(1, valid)})) == 2
    assert names(files) == sorted(["README", f"job-1-{valid}.ckpt", f"job-3-{fresh}.ckpt"])
    assert ended not in "".join(names(files))


def test_hosts_that_share_a_directory_do_not_remove_each_others_files(files: CheckpointFiles, tmp_path: Path) -> None:
    digest = files.write(JOB, [b"state"]).digest
    os.utime(files.directory / names(files)[0], (1, 1))
    other = CheckpointFiles(tmp_path / "state", INSTALLATION, "../host.example/..")
    other.keep_only(JOB, other.write(JOB, [b"other"]).digest)
    assert other.directory.parent == files.directory.parent
    assert other.remove_stale(frozenset()) == 0
    assert files.read(JOB, digest, 5) == b"state"


def test_missing_folder_has_no_stale_files(files: CheckpointFiles) -> None:
    assert files.remove_stale(frozenset()) == 0


def test_directory_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StorageError, match="the checkpoint of job 3 cannot be written to") as caught:
        CheckpointFiles(tmp_path / "state", INSTALLATION, "host.example").write(JOB, [b"state"])
    assert "TENSILE_STATE_DIR" in caught.value.hint


_WRITE_WITHOUT_SPACE = """
import resource, signal, sys
from pathlib import Path
from uuid import UUID
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.errors import StorageError
from indb_tensile.job import JobId
files = CheckpointFiles(Path(sys.argv[1]), UUID(int=7), "host")
previous = files.write(JobId(3), [b"kept"]).digest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    files.write(JobId(3), [bytes(8192)])
except StorageError as error:
    print(error.sqlstate, files.read(JobId(3), previous, 4), len(list(files.directory.iterdir())))
"""


def test_failed_write_leaves_only_the_previous_checkpoint(tmp_path: Path) -> None:
    assert resource.RLIMIT_FSIZE  # a limit on the size of files takes the place of a full disk
    completed = subprocess.run(
        [sys.executable, "-c", _WRITE_WITHOUT_SPACE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "53100 b'kept' 1\n"
