"""Amounts as people write them: ``"10 minutes"`` and ``"256 MB"``."""

from __future__ import annotations

import datetime as dt
import math
import re
from numbers import Integral, Real

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
    if amount < 1:
        raise JoinweirError(f"memory must be at least 1 byte, not {amount}")
    return int(amount)


def time_length(value: object, name: str, *, timestamps: bool) -> int:
    """A length of time in the units of the time column: its ticks, or µs for timestamps."""
    if isinstance(value, dt.timedelta):
        value = f"{value // dt.timedelta(microseconds=1)} us"
    if isinstance(value, str):
        if not timestamps:
            try:
                value = float(value)
            except ValueError:
                raise JoinweirError(
                    f"{name}={value!r} is a duration, but the time column holds plain numbers;"
                    f" give {name} as a number in the same unit"
                ) from None
        else:
            value = duration_us(value)
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise JoinweirError(f"{name} must be a duration or a number, not {value!r}")
    elif timestamps:
        value = value * 1_000_000  # a bare number beside timestamps is seconds
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise JoinweirError(f"{name} must be a whole number >= 0 of time units, not {value!r}")
    return int(value)
