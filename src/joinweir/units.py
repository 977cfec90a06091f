"""Amounts as people write them: ``"10 minutes"`` and ``"256 MB"``."""

from __future__ import annotations

import datetime as dt
import math
import re
from numbers import Integral, Real

import numpy as np

from .errors import JoinweirError

_MICROSECONDS = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}
# Decimal and binary prefixes both mean powers of 1024, as Spark's own byte strings do.
_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": 1024**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix in ("", "b", "ib")
}
LONGEST = 2**60  # ticks; 36,000 years of microseconds
_TERM = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+)\s*")


def duration_us(text: str) -> int:
    """Microseconds in an interval such as ``"10 minutes"`` or ``"1 hour 30 s"``.

    >>> duration_us("10 minutes"), duration_us("1 hour 30 s"), duration_us("1.5s")
    (600000000, 3630000000, 1500000)
    """
    original, text, total, at = text, text.strip().lower(), 0.0, 0
    text = text.removeprefix("interval ")
    while at < len(text):
        term = _TERM.match(text, at)
        unit = term and (term[2] if term[2] in _MICROSECONDS else term[2].removesuffix("s"))
        if not term or unit not in _MICROSECONDS:
            total = math.nan
            break
        total += float(term[1]) * _MICROSECONDS[unit]
        at = term.end()
    if not text or math.isnan(total):
        raise JoinweirError(f"cannot read {original!r} as a duration; write e.g. '10 minutes'")
    return round(total)


def memory_bytes(amount: int | str) -> int:
    """Bytes in an amount of memory such as ``"256 MB"``; a whole number is bytes already.

    >>> memory_bytes("1 KB"), memory_bytes("1.5 MiB"), memory_bytes(4096)
    (1024, 1572864, 4096)
    """
    if isinstance(amount, bool) or not isinstance(amount, str | Integral):
        raise JoinweirError(f"memory must be bytes or a text such as '256 MB', not {amount!r}")
    if isinstance(amount, str):
        term = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", amount.lower())
        if not term or term[2] not in _BYTES:
            raise JoinweirError(f"cannot read {amount!r} as memory; write e.g. '256 MB'")
        amount = float(term[1]) * _BYTES[term[2]]
    if not 1 <= amount <= 2**50:
        raise JoinweirError(f"memory must be from 1 byte to 1,024 TB, not {amount} bytes")
    return int(amount)


def time_length(value: object, name: str, *, timestamps: bool, scale: int = 1) -> int:
    """A length of time in ticks of the time column.

    Timestamps tick in µs: a text is a duration, a bare number is seconds. A column of plain numbers
    has `scale` ticks a unit.

    >>> time_length("2 s", "within", timestamps=True), time_length(7, "within", timestamps=False)
    (2000000, 7)
    """
    given = value
    if isinstance(value, np.timedelta64):
        value = value.astype("m8[us]").item()
    if timestamps and isinstance(value, dt.timedelta):
        ticks = value // dt.timedelta(microseconds=1)
    elif timestamps and isinstance(value, str):
        ticks = duration_us(value)
    else:
        if isinstance(value, str | dt.timedelta):
            try:
                value = float(value)
            except (TypeError, ValueError):
                raise JoinweirError(
                    f"{name}={given!r} is a duration, but the time column holds plain numbers;"
                    f" give {name} as a number in the same unit"
                ) from None
        if isinstance(value, bool) or not isinstance(value, Real):
            raise JoinweirError(f"{name} must be a duration or a number, not {given!r}")
        ticks = value * (1_000_000 if timestamps else scale)
        if abs(ticks) < LONGEST and (timestamps or scale > 1):
            ticks = round(ticks)
    if ticks > LONGEST:
        raise JoinweirError(f"{name}={given!r} is too long")
    if not ticks >= 0 or ticks != int(ticks):
        raise JoinweirError(f"{name} must be a whole number >= 0 of time units, not {given!r}")
    return int(ticks)
