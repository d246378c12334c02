"""Lets the ranks of one attempt prove to each other that they know the attempt's secret, once they are connected.

A connection of Gloo asks for no password: whoever reaches a rank's port in the moment when the ranks connect could
take the place of another rank. So each rank sends a random number over each of its connections, and gets back an HMAC
of the two numbers of that connection. Only who knows the secret, which workers alone can read in the catalog, can
compute it. An all-to-all is used because it sends over every connection; a gather passes values on from rank to rank.

The proof is of the moment in which it is made. It does not keep out a relay between two ranks, and what is sent later
is neither encrypted nor signed: ranks listen on private networks only (rank_connection.py).
"""

import hmac
import secrets
from collections.abc import Sequence

import torch

from indb_tensile.errors import RankLostError
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup

_BYTES = 32  # of a random number, and of a SHA-256


def prove_ranks(group: RankGroup, secret: bytes, *, attempt: str) -> None:
    """Prove this rank to all others, and check their proofs. Raises RankLostError if one of them is a stranger."""
    own, others = group.rank(), range(group.size())
    asked = [secrets.token_bytes(_BYTES) for _ in others]
    with while_ranks_answer(group):
        received = _exchanged(group, asked)
        answers = [_proof(secret, attempt, own, rank, received[rank], asked[rank]) for rank in others]
        proofs = _exchanged(group, answers)
    for rank in others:
        if not hmac.compare_digest(proofs[rank], _proof(secret, attempt, rank, own, asked[rank], received[rank])):
            raise RankLostError(
                f"rank {own} of {group.size()} is connected to a stranger in place of rank {rank}",
                detail="What it sent does not show that it knows the secret of this attempt.",
                hint="Find out which program connects to the ports of the ranks, and keep it off their network.",
            )


def _proof(secret: bytes, attempt: str, prover: int, verifier: int, asked: bytes, answered: bytes) -> bytes:
    """Return the answer of one rank to another: `asked` is the verifier's random number, `answered` the prover's."""
    head = f"rank {prover} to rank {verifier} in attempt {attempt}\n".encode()
    return hmac.digest(secret, head + asked + answered, "sha256")


def _exchanged(group: RankGroup, sent: Sequence[bytes]) -> list[bytes]:
    """Send each rank its value, and return what each has sent."""
    sizes = [_BYTES] * group.size()
    out = torch.frombuffer(bytearray(b"".join(sent)), dtype=torch.uint8)
    received = torch.empty(len(out), dtype=torch.uint8)
    group.alltoall_base(received, out, sizes, sizes).wait()
    values = received.numpy().tobytes()
    return [values[place : place + _BYTES] for place in range(0, len(values), _BYTES)]
