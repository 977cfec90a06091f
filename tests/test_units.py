"""Durations and amounts of memory as people write them."""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from joinweir.errors import JoinweirError, unknown
from joinweir.units import LONGEST, duration_us, memory_bytes, time_length


def refuses(function, *arguments, line: str, **options) -> None:
    """The error is exactly this one line."""
    with pytest.raises(JoinweirError, match=f"^{re.escape(line)}$"):
        function(*arguments, **options)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("10 minutes", 600_000_000),
        ("1 hour 30 s", 3_630_000_000),
        ("1h30m", 5_400_000_000),
        ("1.5s", 1_500_000),
        (".5 s", 500_000),
        ("INTERVAL 2 days", 172_800_000_000),
        ("  3   Minutes ", 180_000_000),
        ("1 week 1 w", 1_209_600_000_000),
        ("2 hours", 7_200_000_000),
        ("2 mins 3 secs", 123_000_000),
        ("5 ms", 5_000),
        ("5 milliseconds", 5_000),
        ("7us", 7),
        ("7 microseconds", 7),
        ("0 s", 0),
    ],
)
def test_durations_are_read_in_microseconds(text, microseconds):
    assert duration_us(text) == microseconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "10", "minutes", "-5 s", "1e3 s", "5 lightyears", "1 hour, 3 s", "interval", "5 s x"],
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    refuses(duration_us, text, line=f"cannot read {text!r} as a duration; write e.g. '10 minutes'")


@pytest.mark.parametrize(
    ("amount", "n"),
    [
        (4096, 4096),
        (np.int64(5), 5),
        ("4096", 4096),
        ("1 b", 1),
        ("1KB", 1024),
        ("1 kib", 1024),
        ("1k", 1024),
        ("256 MB", 256 * 2**20),
        ("1.5 MiB", 3 * 2**19),
        (" 10  G ", 10 * 2**30),
        ("1tb", 2**40),
    ],
)
def test_amounts_of_memory_are_powers_of_1024_as_in_spark(amount, n):
    assert memory_bytes(amount) == n


@pytest.mark.parametrize("amount", ["MB", "5 XB", "1e6", "-1", "", "1 MB 2 KB"])
def test_what_is_no_memory_is_refused_with_an_example(amount):
    refuses(memory_bytes, amount, line=f"cannot read {amount!r} as memory; write e.g. '256 MB'")


@pytest.mark.parametrize("amount", [True, 1.5, None, [1]])
def test_memory_of_another_type_is_refused(amount):
    line = f"memory must be bytes or a text such as '256 MB', not {amount!r}"
    refuses(memory_bytes, amount, line=line)


@pytest.mark.parametrize("amount", [0, -1, "0", "0.1", 2**51, "9999 TB"])
def test_memory_of_nothing_or_of_more_than_there_is_is_refused(amount):
    with pytest.raises(
        JoinweirError, match=r"^memory must be from 1 byte to 1,024 TB, not [^\n]+$"
    ):
        memory_bytes(amount)


@pytest.mark.parametrize(
    ("value", "ticks"),
    [
        ("2 s", 2_000_000),
        (2, 2_000_000),  # a bare number beside timestamps is seconds
        (0.1, 100_000),
        (1.001, 1_001_000),  # 1.001 * 1e6 is 1000999.9999999999 in floats
        (Fraction(1, 3), 333_333),
        (np.float64(4), 4_000_000),
        (dt.timedelta(minutes=1), 60_000_000),
        (pd.Timedelta("1 s"), 1_000_000),
        (np.timedelta64(3, "ms"), 3_000),
        (0, 0),
    ],
)
def test_lengths_beside_timestamps_are_microseconds(value, ticks):
    assert time_length(value, "within", timestamps=True) == ticks


@pytest.mark.parametrize(
    ("value", "scale", "ticks"),
    [
        (7, 1, 7),
        (7.0, 1, 7),
        ("7", 1, 7),
        (np.int32(7), 1, 7),
        (0.25, 1000, 250),
        ("2", 1000, 2000),
    ],
)
def test_lengths_beside_plain_numbers_are_in_their_unit(value, scale, ticks):
    assert time_length(value, "within", timestamps=False, scale=scale) == ticks


@pytest.mark.parametrize("value", ["5 s", "abc", dt.timedelta(seconds=2), np.timedelta64(1, "s")])
def test_a_duration_beside_plain_numbers_is_refused_with_the_fix(value):
    line = (
        f"within={value!r} is a duration, but the time column holds plain numbers;"
        " give within as a number in the same unit"
    )
    refuses(time_length, value, "within", timestamps=False, line=line)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("value", [True, None, [5], {}])
def test_lengths_of_another_type_are_refused(value, timestamps):
    line = f"lateness must be a duration or a number, not {value!r}"
    refuses(time_length, value, "lateness", timestamps=timestamps, line=line)


@pytest.mark.parametrize(
    ("value", "timestamps"),
    [
        (-1, True),
        (-1, False),
        (5.5, False),
        (float("nan"), True),
        ("nan", False),
        (dt.timedelta(microseconds=-1), True),
    ],
)
def test_negative_and_broken_lengths_are_refused(value, timestamps):
    line = f"within must be a whole number >= 0 of time units, not {value!r}"
    refuses(time_length, value, "within", timestamps=timestamps, line=line)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("value", [float("inf"), 1e300, 10**400, LONGEST + 1])
def test_lengths_that_would_overflow_are_refused(value, timestamps):
    line = f"within={value!r} is too long"
    refuses(time_length, value, "within", timestamps=timestamps, line=line)
    refuses(time_length, "9999999999 weeks", "within", timestamps=True,
            line="within='9999999999 weeks' is too long")  # fmt: skip


def test_an_unknown_name_is_answered_with_the_nearest_and_all_choices():
    told = "unknown order 'evict'; did you mean 'evict_first'? choices: evict_first, other"
    assert str(unknown("order", "evict", ["evict_first", "other"])) == told
    assert str(unknown("order", 5, ["a", "b"])) == "unknown order 5; choices: a, b"
