"""Converts values from PostgreSQL's binary form to the numbers and texts that PostgreSQL's own casts produce.

A cast in the statement that reads a table could run a function of the table's owner with the rights of the reading
role. So the statement does not cast: values arrive in their binary form (the send function of each type,
backend/utils/adt) and are converted here. `numeric_floats` corresponds to `numeric::float8`, but accepts every value.
Each function of `TEXT_FORMS` corresponds to `::text` of its type with the server's default settings (`IntervalStyle`
postgres, `bytea_output` hex). Tests compare each function with the server's casts.
"""

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.storage.columns import Mask

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

_HEADER_BYTES = 8  # digit count, weight, sign, display scale: 16 bits each; base-10000 digits of 16 bits follow
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_MOST_DIGITS = 5  # base-10000 digits whose value may fit into 64 bits
_LARGEST_FIRST = 921  # a value of five digits fits into 64 bits if its first digit is at most this
_EXACT = 2**53  # every integer up to this bound is exact as a double
_LARGEST_POWER = 22  # 10**22 is the largest power of ten that is exact as a double
_POWERS = 10.0 ** np.arange(_LARGEST_POWER + 1)
_STRIPPED_ZEROS = 3  # the last base-10000 digit may end with this many decimal zeros


def numeric_floats(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions) -> Floats:
    """Return the `numeric` values that begin at `starts`, correctly rounded to float64.

    A value beyond the range of a double becomes infinite, a value too small for a double becomes zero; PostgreSQL's
    own cast raises an error for both. The package treats values that are not finite as missing, here and in a
    prediction.
    """
    values = np.zeros(len(starts))
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        words = data[starts[chosen, None] + np.arange(length)].view(">u2").astype(np.int64)
        values[chosen] = _floats_of_equal_length(words)
    return values


def _floats_of_equal_length(words: npt.NDArray[np.int64]) -> Floats:
    """Convert values of equal length. A row of `words` holds the four header words and the digits of one value."""
    weight = np.where(words[:, 1] < 1 << 15, words[:, 1], words[:, 1] - (1 << 16))
    sign, digits = words[:, 2], words[:, 4:]
    count = digits.shape[1]
    values = np.zeros(len(words))
    values[sign == _NAN] = np.nan
    values[sign == _INFINITY] = np.inf
    values[sign == _MINUS_INFINITY] = -np.inf
    pending = (sign == 0) | (sign == _NEGATIVE) if count else np.zeros(len(words), np.bool_)
    if 0 < count <= _MOST_DIGITS:
        exact_values, is_exact = _exact_values(digits, weight)
        is_exact &= pending
        values[is_exact] = np.where(sign[is_exact] == _NEGATIVE, -exact_values[is_exact], exact_values[is_exact])
        pending &= ~is_exact
    for row in np.flatnonzero(pending).tolist():
        text = "".join(f"{digit:04d}" for digit in digits[row].tolist())
        value = float(f"{text}e{4 * (int(weight[row]) - count + 1)}")
        values[row] = -value if sign[row] == _NEGATIVE else value
    return values


def _exact_values(digits: npt.NDArray[np.int64], weight: npt.NDArray[np.int64]) -> tuple[Floats, Mask]:
    """Return the values without sign, and a mask of those that are correctly rounded (Clinger 1990).

    An integer below 2**53 and a power of ten up to 10**22 are exact as doubles, so one multiplication or division
    rounds only once.
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
    """Decode a text. Raises UnicodeDecodeError for one that only a database in SQL_ASCII stores."""
    return raw.decode()


def _padded(raw: bytes) -> str:
    """Decode `character(n)`, whose text has no trailing blanks."""
    return _utf8(raw).rstrip(" ")


def _char(raw: bytes) -> str:
    """Decode the type "char" before PostgreSQL 16.

    The text is the byte itself, even if the byte is invalid in the server's encoding.
    """
    return "" if raw == b"\0" else raw.decode("utf-8", "replace")


def _char_or_octal(raw: bytes) -> str:
    """Decode the type "char" since PostgreSQL 16, which writes bytes above 127 in octal."""
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
    """Decode `inet` and `cidr`: address family, prefix length, a flag for cidr, and the address bytes.

    The text always includes the prefix length.
    """
    address = raw[4:]
    text = ".".join(map(str, address)) if len(address) == 4 else _ipv6(struct.unpack(">8H", address))
    return f"{text}/{raw[1]}"


def _ipv6(words: tuple[int, ...]) -> str:
    """Return an IPv6 address as inet_net_ntop writes it.

    The first longest run of two or more zeros is shortened, and an embedded IPv4 address is written with dots.
    """
    start, length = _longest_zeros(words)
    dotted = start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    tail = f"{words[6] >> 8}.{words[6] & 255}.{words[7] >> 8}.{words[7] & 255}"
    parts = [f"{word:x}" for word in words[:6]] + [tail] if dotted else [f"{word:x}" for word in words]
    if length < 2:
        return ":".join(parts)
    return f"{':'.join(parts[:start])}::{':'.join(parts[start + length :])}"


def _longest_zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """Return the start and the length of the first longest run of zeros."""
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
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{decimals}"


_INFINITE_INTERVAL = (2**63 - 1, 2**31 - 1, 2**31 - 1)  # since PostgreSQL 17
_MINUS_INFINITE_INTERVAL = (-(2**63), -(2**31), -(2**31))


def _interval(raw: bytes) -> str:
    """Decode an interval as `IntervalStyle` postgres writes it: a field after a negative one has an explicit sign."""
    time_us, days, months = struct.unpack(">qii", raw)
    if (time_us, days, months) in (_INFINITE_INTERVAL, _MINUS_INFINITE_INTERVAL):
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


def _signed(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big", signed=True))


def _log_position(raw: bytes) -> str:
    high, low = struct.unpack(">II", raw)
    return f"{high:X}/{low:X}"


def _jsonb(raw: bytes) -> str:
    """Decode `jsonb`: one byte with a version number, then the text."""
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
    "integer": _signed,
    "oid": _unsigned,
    "xid8": _unsigned,
    "pg_lsn": _log_position,
    "jsonb": _jsonb,
}
