"""Columns of Arrow, pandas, polars and dicts, as times and keys."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from joinweir.errors import JoinweirError
from joinweir.tables import (
    FLOAT_TICKS,
    LATEST,
    bytes_per_row,
    column,
    column_names,
    n_rows,
    read_keys,
    read_times,
)

COLUMNS = {"k": [3, 1, 2], "name": ["a", "b", None], "x": [0.5, 1.5, 2.5]}
FORMS = {
    "dict": lambda columns: columns,
    "numpy": lambda columns: {
        name: np.array(values, object if None in values else None)
        for name, values in columns.items()
    },
    "arrow": pa.table,
    "record batch": pa.RecordBatch.from_pydict,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "chunks": lambda columns: pa.concat_tables([pa.table(columns).slice(i, 1) for i in range(3)]),
}


def refuses(function, *arguments, line: str) -> None:
    """The error is exactly this one line."""
    with pytest.raises(JoinweirError, match=f"^{re.escape(line)}$"):
        function(*arguments)


def keys(left, right):
    """Which rows have equal keys, and which have null ones; each side is a column."""
    return match([{"k": left}, {"k": right}], [["k"], ["k"]])


def match(tables, names):
    codes, nulls = read_keys(tables, names, ("left", "right"))
    assert all(c.dtype == np.int64 and n.dtype == np.bool_ for c, n in zip(codes, nulls))
    pairs = [
        (i, j)
        for i, a in enumerate(codes[0].tolist())
        for j, b in enumerate(codes[1].tolist())
        if a == b and not nulls[0][i] and not nulls[1][j]
    ]
    return pairs, [np.flatnonzero(null).tolist() for null in nulls]


def matches(left, right):
    pairs, nulls = keys(left, right)
    assert nulls == [[], []]
    return pairs


# --- tables ----------------------------------------------------------------------------------
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_table_has_the_same_columns(form):
    table = FORMS[form](COLUMNS)
    assert column_names(table) == list(COLUMNS)
    for name, values in COLUMNS.items():
        assert column(table, name, "left").to_pylist() == values
        assert n_rows(table, name, "left") == 3


def test_nan_is_null_in_pandas_only():
    values = [1.0, float("nan")]
    assert column(pd.DataFrame({"x": values}), "x", "left").null_count == 1
    for table in ({"x": np.array(values)}, {"x": values}, pl.DataFrame({"x": values})):
        assert column(table, "x", "left").null_count == 0


def test_an_unknown_column_is_answered_with_the_nearest():
    line = "unknown column of the right stream 'nam'; did you mean 'name'? choices: k, name, x"
    refuses(column, COLUMNS, "nam", "right", line=line)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (5, "int"),
        ([1, 2], "list"),
        (None, "NoneType"),
        (pd.Series([1]), "Series"),
        (pl.DataFrame(COLUMNS).lazy(), "LazyFrame"),
    ],
)
def test_what_is_no_table_is_refused(table, kind):
    line = (
        "a stream must be an Arrow table, a pandas or polars DataFrame, or a dict of arrays, "
        f"not {kind}"
    )
    refuses(column, table, "k", "left", line=line)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, "a"], "Could not convert 'a' with type str: tried to convert to int64"),
        (np.array([1j]), "Unsupported numpy type 15"),
        (np.zeros((2, 2)), "only handle 1-dimensional arrays"),
        ([2**70], "Python int too large to convert to C long"),
        (5, "'int' object is not iterable"),
    ],
)
def test_a_column_that_arrow_cannot_hold_is_refused_in_one_line(values, reason):
    line = f"column 'k' of the left stream: {reason}"
    refuses(column, {"k": values}, "k", "left", line=line)


def test_columns_of_unequal_length_are_refused():
    for other, n in (([1], 1), (5, 1), ([], 0)):
        line = f"the left stream's columns differ in length: 'k' has 2, 'ts' has {n}"
        refuses(n_rows, {"k": [1, 2], "ts": other}, "k", "left", line=line)


def test_bytes_of_a_row_are_those_of_its_arrow_columns():
    # k and x: 8 bytes a row; text: 4 bytes of offset a row, 2 characters, a byte of validity
    assert bytes_per_row(COLUMNS) == (2 * 24 + 12 + 2 + 1) // 3
    assert bytes_per_row({"k": np.zeros(10), "ts": np.zeros(10)}) == 16
    assert bytes_per_row(pa.table({"k": np.arange(1000)}).slice(0, 10)) == 8
    assert bytes_per_row({"k": [], "ts": []}) == 16  # as if numbers


# --- times -----------------------------------------------------------------------------------
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1, -2], [1, -2]),
        (np.array([1, 2], np.int8), [1, 2]),
        (np.array([1, 2], np.uint64), [1, 2]),
        ([], []),
        (pa.chunked_array([[1], [2, 3]]), [1, 2, 3]),
    ],
)
def test_integers_are_ticks(values, ticks):
    read = read_times({"t": values}, "t", "left")
    assert (read.ticks.tolist(), read.timestamps, read.scale) == (ticks, False, 1)
    assert read.ticks.dtype == np.int64


@pytest.mark.parametrize(
    "values",
    [
        [dt.datetime(1970, 1, 2), dt.datetime(1969, 12, 31)],
        [dt.date(1970, 1, 2), dt.date(1969, 12, 31)],
        pa.array([1, -1], pa.date32()),
        pa.array([DAY // 1000, -DAY // 1000], pa.date64()),
        *(pa.array([DAY * u // 10**6, -DAY * u // 10**6], pa.timestamp(unit))
          for unit, u in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))),
        np.array(["1970-01-02", "1969-12-31"], "M8[D]"),
        np.array(["1970-01-02", "1969-12-31"], "M8[ns]"),
        pd.Series(pd.to_datetime(["1970-01-02", "1969-12-31"])),
        pl.Series([dt.datetime(1970, 1, 2), dt.datetime(1969, 12, 31)]),
        pl.Series([dt.date(1970, 1, 2), dt.date(1969, 12, 31)]),
    ],
)  # fmt: skip
def test_timestamps_and_dates_tick_in_microseconds(values):
    read = read_times({"t": values}, "t", "left")
    assert (read.ticks.tolist(), read.timestamps, read.zoned) == ([DAY, -DAY], True, False)


def test_zoned_timestamps_are_instants():
    berlin = pd.Series(pd.to_datetime(["1970-01-02"])).dt.tz_localize("Europe/Berlin")
    for values in (berlin, pa.array([DAY - 3_600_000_000], pa.timestamp("us", "Europe/Berlin"))):
        read = read_times({"t": values}, "t", "left")
        assert (read.ticks.tolist(), read.zoned) == ([DAY - 3_600_000_000], True)


def test_nanoseconds_are_rounded_down_on_both_sides_of_1970():
    values = pa.array([1999, 1, -1, -1001], pa.timestamp("ns"))
    assert read_times({"t": values}, "t", "left").ticks.tolist() == [1, 0, -1, -2]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_tick_in_millionths(kind):
    read = read_times({"t": np.array([0.5, -2], kind)}, "t", "left")
    assert read.ticks.tolist() == [FLOAT_TICKS // 2, -2 * FLOAT_TICKS]
    assert (read.timestamps, read.scale) == (False, FLOAT_TICKS)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([None, 2], "has 1 nulls; drop them"),
        (pd.Series(pd.to_datetime(["1970-01-02", None])), "has 1 nulls; drop them"),
        ([float("nan")], "has NaN, infinite or huge values"),
        ([float("-inf")], "has NaN, infinite or huge values"),
        ([1e30], "has NaN, infinite or huge values"),
        ([LATEST + 1], "has huge values"),
        ([-(2**63)], "has huge values"),
        (["a"], "is string; it must be integer, float, timestamp or date"),
        (
            pa.array([1], pa.time32("s")),
            "is time32[s]; it must be integer, float, timestamp or date",
        ),
        ([True], "is bool; it must be integer, float, timestamp or date"),
    ],
)
def test_unusable_times_are_refused(values, what):
    line = f"time column 't' of the right stream {what}"
    refuses(read_times, {"t": values}, "t", "right", line=line)


@pytest.mark.parametrize(
    "values", [pa.array([2**63 + 1], pa.uint64()), pa.array([2**60], pa.timestamp("s"))]
)
def test_times_that_do_not_fit_are_refused_in_arrows_words(values):
    with pytest.raises(JoinweirError, match=r"^time column 't' of the left stream: [^\n]+$"):
        read_times({"t": values}, "t", "left")


# --- keys --------------------------------------------------------------------------------------
def test_integer_keys_stay_as_they_are():
    codes, nulls = read_keys([{"k": [5, -7]}, {"k": [None, 5]}], [["k"], ["k"]], ("left", "right"))
    assert codes[0].tolist() == [5, -7]
    assert codes[1][1] == 5
    assert [n.tolist() for n in nulls] == [[False, False], [True, False]]


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        (pa.array([1, 2], pa.int32()), [2, 3], [(1, 0)]),
        (np.array([1, 255], np.uint8), np.array([255, -1], np.int16), [(1, 0)]),
        (pa.array([2**63 + 5, 2], pa.uint64()), [2, -(2**63) + 5], [(1, 0)]),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([2**64 - 1, 1], pa.uint64()), [(0, 0)]),
        (["a", "b"], ["b", "c"], [(1, 0)]),
        (["a", "b"], pa.array(["b", "c"], pa.large_string()), [(1, 0)]),
        (["a", "b"], pa.array(["b", "c"], pa.string_view()), [(1, 0)]),
        (["a", "b"], np.array(["b", "c"]), [(1, 0)]),
        (["a", "b"], pa.array(["b", "b"]).dictionary_encode(), [(1, 0), (1, 1)]),
        (pd.Series(["a", "b"], dtype="category"), ["b"], [(1, 0)]),
        (pl.Series(["a", "b"]).cast(pl.Categorical), ["b"], [(1, 0)]),
        (pa.array([5, 6]).dictionary_encode(), [6], [(1, 0)]),
        ([b"a", b"b"], pa.array([b"b"], pa.large_binary()), [(1, 0)]),
        ([b"a", b"b"], pa.array([b"b"], pa.binary(1)), [(1, 0)]),
        ([b"a", b"b"], pa.array([b"b"], pa.binary_view()), [(1, 0)]),
        ([True, False], [False], [(1, 0)]),
        ([dt.date(2020, 1, 1)], [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 1)], [(0, 0)]),
        (pa.array([1], pa.timestamp("s")), pa.array([10**6, 1], pa.timestamp("us")), [(0, 0)]),
        (pa.array([1000, 1001], pa.timestamp("ns")), pa.array([1], pa.timestamp("us")), [(0, 0)]),
        (pa.array([1], pa.timestamp("s", "UTC")), pa.array([1], pa.timestamp("s", "Asia/Tokyo")),
         [(0, 0)]),
        (pa.array([1, 2], pa.decimal128(5, 2)), pa.array([2], pa.decimal128(5, 2)), [(1, 0)]),
        ([], ["a"], []),
        ([], [], []),
    ],
)  # fmt: skip
def test_keys_are_equal_whatever_holds_them(left, right, pairs):
    assert matches(left, right) == pairs


def test_float_keys_compare_as_in_spark():
    left = np.array([1.5, np.nan, -0.0, np.inf])
    right = np.array([np.nan, -np.nan, 0.0, -np.inf, 1.5])
    assert matches(left, right) == [(0, 4), (1, 0), (1, 1), (2, 2)]
    assert matches(left.astype(np.float32), right) == [(0, 4), (1, 0), (1, 1), (2, 2)]
    # Beside floats, integers become floats, and the last digits of large ones are lost.
    assert matches([1, 2], [1.0, 2.5]) == [(0, 0)]
    assert matches([2**53 + 1], [2.0**53]) == [(0, 0)]
    assert matches(pa.array([2**63 + 5, 2], pa.uint64()), [2.5, 2.0]) == [(1, 1)]


def test_null_keys_are_marked_and_match_nothing():
    assert keys([None, "a"], ["a", None]) == ([(1, 0)], [[0], [1]])
    assert keys([None, None], ["a"]) == ([], [[0, 1], []])
    assert keys([None], [None]) == ([], [[0], [0]])
    assert keys(pd.Series([1, None], dtype="Int64"), [1]) == ([(0, 0)], [[1], []])


def test_composite_keys_match_in_all_columns():
    left = {"a": [1, 1, 2, None, 1], "b": ["x", "y", "x", "x", None]}
    right = {"c": [1.0, 2.0, 1.0], "d": ["y", "x", "z"]}
    pairs, nulls = match([left, right], [["a", "b"], ["c", "d"]])
    assert pairs == [(1, 0), (2, 1)]
    assert nulls == [[3, 4], []]


def test_composite_keys_of_many_columns_do_not_overflow():
    """Eight columns of 1,000 values each have 10^24 combinations, more than an int64 holds."""
    rng = np.random.default_rng(1)
    names = [f"c{i}" for i in range(8)]
    left = {name: rng.permutation(1000) for name in names}
    right = {name: values.copy() for name, values in left.items()}
    right["c7"] = np.roll(left["c7"], 1)
    right["c7"][:3] = left["c7"][:3]
    assert match([left, right], [names, names])[0] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [
        (["a"], [0], ("string", "int64")),
        ([b"a"], ["a"], ("binary", "string")),
        ([True], [0], ("bool", "int64")),
        (pa.array([1], pa.decimal128(5, 2)), pa.array([1], pa.decimal128(6, 2)),
         ("decimal128(5, 2)", "decimal128(6, 2)")),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us")),
         ("timestamp[us, tz=UTC]", "timestamp[us]")),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_equal_are_refused(left, right, kinds):
    line = (
        f"key columns have types that cannot be equal: left 'k' is {kinds[0]}, "
        f"right 'k' is {kinds[1]}; cast one"
    )
    refuses(keys, left, right, line=line)


def test_nested_keys_are_refused():
    line = "key column 'k' is struct<x: int64>; nested keys are not supported"
    refuses(keys, [{"x": 1}], [{"x": 1}], line=line)


def test_a_key_that_does_not_fit_the_common_type_is_refused():
    far = pa.array([2**40], pa.timestamp("s"))  # beyond the nanoseconds of the other side
    with pytest.raises(JoinweirError, match=r"^key column 'k' of the left stream: [^\n]+$"):
        keys(far, pa.array([1], pa.timestamp("ns")))
