"""Values in PostgreSQL's binary form, as the numbers and texts that PostgreSQL's own casts make of them.

A cast in the statement that reads a table would be resolved, and might run a function, as the role that reads. So
values travel in their binary form (each type's send function, backend/utils/adt) and are converted here:
`numeric_floats` is `numeric::float8`, but refuses no value, and a function of `TEXT_FORMS` is `::text` of its type,
with the server's default settings (`IntervalStyle` postgres, `bytea_output` hex). Tests compare each with the
server's own casts.
"""

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.columns import Mask

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

_HEADER_BYTES = 8  # digits, weight, sign, display scale: 16 bits each; then base-10000 digits of 16 bits
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_MOST_DIGITS = 5  # of base 10000 whose value may fit 64 bits
_LARGEST_FIRST = 921  # the first of five digits up to which it does fit
_EXACT = 2**53  # up to here every integer is a double
_LARGEST_POWER = 22  # 10**22 is the largest power of ten that is a double
_POWERS = 10.0 ** np.arange(_LARGEST_POWER + 1)
_STRIPPED_ZEROS = 3  # decimal zeros that the last base-10000 digit may end with


def numeric_floats(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions) -> Floats:
    """`numeric` values that begin at `starts`, correctly rounded: beyond a double infinite, too small for one zero.

    PostgreSQL's own cast refuses both. A value that is not finite is missing, here as in a prediction.
    """
    values = np.zeros(len(starts))
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        words = data[starts[chosen, None] + np.arange(length)].view(">u2").astype(np.int64)
        values[chosen] = _of_one_length(words)
    return values


def _of_one_length(words: npt.NDArray[np.int64]) -> Floats:
    """`words` has a row for each value: the four of the header, then the digits."""
    weight = np.where(words[:, 1] < 1 << 15, words[:, 1], words[:, 1] - (1 << 16))
    sign, digits = words[:, 2], words[:, 4:]
    count = digits.shape[1]
    values = np.zeros(len(words))
    values[sign == _NAN] = np.nan
    values[sign == _INFINITY] = np.inf
    values[sign == _MINUS_INFINITY] = -np.inf
    left = (sign == 0) | (sign == _NEGATIVE) if count else np.zeros(len(words), np.bool_)
    if 0 < count <= _MOST_DIGITS:
        exact, at = _exact(digits, weight)
        at &= left
        values[at] = np.where(sign[at] == _NEGATIVE, -exact[at], exact[at])
        left &= ~at
    for row in np.flatnonzero(left).tolist():
        text = "".join(f"{digit:04d}" for digit in digits[row].tolist())
        value = float(f"{text}e{4 * (int(weight[row]) - count + 1)}")
        values[row] = -value if sign[row] == _NEGATIVE else value
    return values


def _exact(digits: npt.NDArray[np.int64], weight: npt.NDArray[np.int64]) -> tuple[Floats, Mask]:
    """Values without their sign, and which are correctly rounded (Clinger 1990).

    An integer below 2**53 and a power of ten up to 10**22 are doubles, so one multiplication or division rounds once.
    """
    count = digits.shape[1]
    fits = digits[:, 0] <= _LARGEST_FIRST if count == _MOST_DIGITS else np.ones(len(digits), np.bool_)
    mantissa = np.zeros(len(digits), np.int64)
    for place in range(count):
        mantissa = mantissa * 10_000 + digits[:, place]
    mantissa[~fits] = 0
    power = 4 * (weight - count + 1)
    for _ in range(_STRIPPED_ZEROS):
        shorter = (mantissa >= _EXACT) & (mantissa % 10 == 0)
        mantissa = np.where(shorter, mantissa // 10, mantissa)
        power = power + shorter
    fits &= (mantissa < _EXACT) & (np.abs(power) <= _LARGEST_POWER)
    scale = _POWERS[np.minimum(np.abs(power), _LARGEST_POWER)]
    numbers = mantissa.astype(np.float64)
    return np.where(power < 0, numbers / scale, numbers * scale), fits


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _padded(raw: bytes) -> str:
    """`character(n)`: its text has no trailing blanks."""
    return _utf8(raw).rstrip(" ")


def _char(raw: bytes) -> str:
    """The type "char" before PostgreSQL 16: its text is the byte, valid in the server's encoding or not."""
    return "" if raw == b"\0" else _utf8(raw)


def _char_or_octal(raw: bytes) -> str:
    """The type "char" since PostgreSQL 16."""
    return f"\\{raw[0]:03o}" if raw[0] >= 1 << 7 else _char(raw)


def _uuid(raw: bytes) -> str:
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _bytea(raw: bytes) -> str:
    return f"\\x{raw.hex()}"


def _bits(raw: bytes) -> str:
    (size,) = struct.unpack_from(">i", raw)
    return "".join(f"{byte:08b}" for byte in raw[4:])[:size]


def _colons(raw: bytes) -> str:
    return raw.hex(":")


def _network(raw: bytes) -> str:
    """`inet` and `cidr`: family, bits, whether cidr, bytes of the address; as text always with the bits."""
    address = raw[4:]
    shown = ".".join(map(str, address)) if len(address) == 4 else _ipv6(struct.unpack(">8H", address))
    return f"{shown}/{raw[1]}"


def _ipv6(words: tuple[int, ...]) -> str:
    """As inet_net_ntop writes it: the first longest run of two or more zeros shortened, an IPv4 tail with dots."""
    start, length = _zeros(words)
    dotted = start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    tail = f"{words[6] >> 8}.{words[6] & 255}.{words[7] >> 8}.{words[7] & 255}"
    parts = [f"{word:x}" for word in words[:6]] + [tail] if dotted else [f"{word:x}" for word in words]
    if length < 2:
        return ":".join(parts)
    return f"{':'.join(parts[:start])}::{':'.join(parts[start + length :])}"


def _zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """Where the first longest run of zeros starts, and its length."""
    best, start = (0, 0), 0
    for at, word in enumerate((*words, 1)):
        if word:
            best = max(best, (at - start, -start))
            start = at + 1
    return -best[1], best[0]


def _time(raw: bytes) -> str:
    return _clock(*struct.unpack(">q", raw))


def _time_with_zone(raw: bytes) -> str:
    time_us, west_s = struct.unpack(">qi", raw)
    minutes, second = divmod(abs(west_s), 60)
    hour, minute = divmod(minutes, 60)
    zone = f"{hour:02d}" + (f":{minute:02d}" if minute or second else "") + (f":{second:02d}" if second else "")
    return f"{_clock(time_us)}{'-' if west_s > 0 else '+'}{zone}"


def _clock(time_us: int) -> str:
    seconds, fraction = divmod(time_us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    shown = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{shown}"


_ENDLESS = (2**63 - 1, 2**31 - 1, 2**31 - 1)  # PostgreSQL 17's infinite interval
_ENDLESS_BEFORE = (-(2**63), -(2**31), -(2**31))


def _interval(raw: bytes) -> str:
    """As `IntervalStyle` postgres writes it: a part after a negative one has its sign."""
    time_us, days, months = struct.unpack(">qii", raw)
    if (time_us, days, months) in (_ENDLESS, _ENDLESS_BEFORE):
        return "infinity" if days > 0 else "-infinity"
    years = abs(months) // 12 * (1 if months > 0 else -1)
    parts, after_negative = [], False
    for value, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if value:
            plus = "+" if after_negative and value > 0 else ""
            parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
            after_negative = value < 0
    if time_us or not parts:
        sign = "-" if time_us < 0 else "+" if after_negative else ""
        parts.append(sign + _clock(abs(time_us)))
    return " ".join(parts)


def _unsigned(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big"))


def _log_position(raw: bytes) -> str:
    high, low = struct.unpack(">II", raw)
    return f"{high:X}/{low:X}"


def _jsonb(raw: bytes) -> str:
    """A version number, then the text."""
    return _utf8(raw[1:])


TEXT_FORMS: dict[str, Callable[[bytes], str]] = {
    "": _utf8,
    "bpchar": _padded,
    "char": _char,
    "char_or_octal": _char_or_octal,
    "uuid": _uuid,
    "bytea": _bytea,
    "bit": _bits,
    "varbit": _bits,
    "macaddr": _colons,
    "macaddr8": _colons,
    "inet": _network,
    "cidr": _network,
    "time": _time,
    "timetz": _time_with_zone,
    "interval": _interval,
    "oid": _unsigned,
    "xid8": _unsigned,
    "pg_lsn": _log_position,
    "jsonb": _jsonb,
}
