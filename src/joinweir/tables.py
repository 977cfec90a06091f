"""Tables as people have them, turned into what the engine takes: times and keys as int64.

Arrow, pandas, polars and dicts of arrays are read column by column through Arrow; rows are never
touched one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import JoinweirError, unknown

FLOAT_TICKS = 1_000_000  # ticks per unit of a time column of floats
BINARY = ("binary", "large_binary", "binary_view", "fixed_size_binary")
LATEST = 2**61  # times stay within ±LATEST, so that the end of a row's life is an int64 as well


@dataclass(frozen=True)
class Times:
    """A stream's times in ticks."""

    ticks: np.ndarray  # int64
    timestamps: bool  # ticks are microseconds of a date or timestamp
    scale: int  # ticks per unit of a plain number
    zoned: bool = False  # instants, not the face of some clock


def per_stream(value: Any, k: int, name: str) -> list[Any]:
    """One value for each of k streams, from one for all or a sequence of k.

    >>> per_stream("ts", 2, "time"), per_stream(("a", "b"), 2, "time")
    (['ts', 'ts'], ['a', 'b'])
    """
    if isinstance(value, tuple | list):
        if len(value) != k:
            raise JoinweirError(f"{name} has {len(value)} values for {k} streams")
        return list(value)
    return [value] * k


def key_names(key: Any, k: int, name: str = "on") -> list[list[str]]:
    """The key columns of each of k streams.

    `key` is a column's name, a list of them (composite), or one whose members are tuples with one
    name a stream.

    >>> key_names(["a", ("b", "c")], 2)
    [['a', 'b'], ['a', 'c']]
    """
    columns = [key] if isinstance(key, str | tuple) else key
    if not isinstance(columns, list) or not columns:
        raise JoinweirError(f"{name} must be a column name or a list of them, not {key!r}")
    names: list[list[str]] = [[] for _ in range(k)]
    for entry in columns:
        for stream, column_name in zip(names, per_stream(entry, k, name)):
            if not isinstance(column_name, str):
                raise JoinweirError(f"{name} must name columns, not {column_name!r}")
            stream.append(column_name)
    return names


def column_names(table: Any) -> list[str]:
    """Names of a table's columns."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        return table.schema.names
    names = None
    if isinstance(table, Mapping):
        names = table
    elif not hasattr(table, "collect"):  # a lazy frame of polars or Spark has no arrays yet
        names = getattr(table, "columns", None)  # pandas, polars
    if names is not None:
        return [name for name in names if isinstance(name, str)]
    raise JoinweirError(
        "a stream must be an Arrow table, a pandas or polars DataFrame, or a dict of arrays, "
        f"not {type(table).__name__}"
    )


def column(table: Any, name: str, what: str) -> pa.ChunkedArray:
    """A column as Arrow; `what` says which stream it is, for the error."""
    names = column_names(table)
    if name not in names:
        raise unknown(f"column of the {what} stream", name, names)
    values = table[name] if not isinstance(table, pa.RecordBatch) else table.column(name)
    if hasattr(values, "to_arrow"):  # polars
        values = values.to_arrow()
    if not isinstance(values, pa.ChunkedArray | pa.Array):
        try:
            values = pa.array(values, from_pandas=hasattr(values, "iloc"))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _unreadable(f"column {name!r}", what, error) from None
    return pa.chunked_array([values]) if isinstance(values, pa.Array) else values


def _unreadable(which: str, what: str, error: Exception) -> JoinweirError:
    reason = str(error).splitlines()[0]
    return JoinweirError(f"{which} of the {what} stream: {reason}")


FILE_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


def file_kind(path: str | Path) -> str:
    """Whether a file, or a directory of them, is ``parquet``, ``csv`` or ``json``, by its name.

    >>> file_kind("trades.csv.gz"), file_kind("part-0.jsonl")
    ('csv', 'json')
    """
    path = Path(path)
    if not path.exists() and not path.suffix:
        raise JoinweirError(f"{path}: no such file")
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if FILE_KINDS.keys() & set(inner.suffixes):
                return file_kind(inner)
        raise JoinweirError(f"{path}: a directory without Parquet, CSV or JSON files")
    for suffix in reversed(path.suffixes):
        if suffix.lower() in FILE_KINDS:
            return FILE_KINDS[suffix.lower()]
    raise JoinweirError(
        f"{path}: not a kind of file that is known; its name should end in {', '.join(FILE_KINDS)}"
    )


def open_file(path: str | Path, names: Sequence[str]) -> Any:
    """A Parquet, CSV or JSON file (an object a line), or a directory of them, not read yet.

    It has the columns that are named, or there is an error.
    """
    import pyarrow.dataset as ds  # takes pandas with it, which `import joinweir` must not

    kind = file_kind(path)
    if not Path(path).exists():
        raise JoinweirError(f"{path}: no such file")
    with _readable(path, kind):
        data = ds.dataset(str(path), format=kind, partitioning="hive")
    for name in names:
        if name not in data.schema.names:
            raise unknown(f"column of {path}", name, data.schema.names)
    return data


def read_file(path: str | Path, names: Sequence[str]) -> pa.Table:
    """Some columns of a Parquet, CSV or JSON file (an object a line), or a directory of them."""
    data = open_file(path, names)
    with _readable(path, file_kind(path)):
        return data.to_table(columns=list(dict.fromkeys(names)))


@contextlib.contextmanager
def _readable(path: str | Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2]  # what Arrow did comes first
        raise JoinweirError(f"{path}: not readable as {kind}: {reason}") from None


def n_rows(table: Any, name: str, what: str) -> int:
    """How many rows a table has; its columns must agree."""
    n = len(column(table, name, what))
    if isinstance(table, Mapping):
        for other, values in table.items():
            length = len(values) if hasattr(values, "__len__") else 1
            if length != n:
                raise JoinweirError(
                    f"the {what} stream's columns differ in length: {name!r} has {n}, "
                    f"{other!r} has {length}"
                )
    return n


def bytes_per_row(table: Any) -> int:
    """Mean bytes of a row's columns as Arrow holds them."""
    names = column_names(table)
    n = len(column(table, names[0], "")) if names else 0
    total = sum(column(table, name, "").nbytes for name in names)
    return -(-total // n) if n else 8 * len(names)


def read_times(table: Any, name: str, what: str) -> Times:
    """A time column in ticks: integers as they are, timestamps and dates in µs, floats scaled."""
    values = column(table, name, what)
    if values.null_count:
        raise JoinweirError(
            f"time column {name!r} of the {what} stream has {values.null_count} nulls; drop them"
        )
    kind = values.type
    if pa.types.is_null(kind) and not len(values):
        values = values.cast(kind := pa.int64())
    try:
        if pa.types.is_integer(kind):
            times = Times(_numpy(pc.cast(values, pa.int64())), False, 1)
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            zoned = getattr(kind, "tz", None) is not None
            times = Times(_microseconds(values), True, 1_000_000, zoned)
        elif pa.types.is_floating(kind):
            plain = _numpy(pc.cast(values, pa.float64())) * FLOAT_TICKS
            if not (np.abs(plain) <= LATEST).all():  # NaN is not, either
                raise JoinweirError(
                    f"time column {name!r} of the {what} stream has NaN, infinite or huge values"
                )
            times = Times(np.rint(plain).astype(np.int64), False, FLOAT_TICKS)
        else:
            raise JoinweirError(
                f"time column {name!r} of the {what} stream is {kind}; it must be integer, float, "
                "timestamp or date"
            )
    except pa.ArrowException as error:
        raise _unreadable(f"time column {name!r}", what, error) from None
    if times.ticks.size and max(-int(times.ticks.min()), int(times.ticks.max())) > LATEST:
        raise JoinweirError(f"time column {name!r} of the {what} stream has huge values")
    return times


def read_importance(table: Any, name: str, what: str) -> np.ndarray:
    """A column of importances: finite numbers above 0, one a row."""
    values = column(table, name, what)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise JoinweirError(
            f"importance column {name!r} of the {what} stream must hold numbers, not {kind}"
        )
    found = _numpy(values.cast(pa.float64(), safe=False))  # null becomes NaN
    bad = np.flatnonzero(~((found > 0) & (found < np.inf)))
    if bad.size:
        row = int(bad[0])
        given = values[row].as_py()
        given = "null" if given is None else given
        raise JoinweirError(
            f"importance column {name!r} of the {what} stream must be finite and above 0; "
            f"row {row} has {given}"
        )
    return found


def _microseconds(values: pa.ChunkedArray) -> np.ndarray:
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return _numpy(pc.cast(values, pa.int64())) // 1000
    micros = pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)))
    return _numpy(pc.cast(micros, pa.int64()))


def read_keys(
    tables: Sequence[Any], names: Sequence[Sequence[str]], labels: Sequence[str]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Keys of several streams as int64, equal iff all key columns are; and where they are null.

    `names` has the key columns of each stream. Integers stay as they are; anything else, and
    composite keys, become codes. NaN equals NaN and -0.0 equals 0.0, as in Spark's joins.
    """
    lengths = [len(column(t, n[0], label)) for t, n, label in zip(tables, names, labels)]
    null = np.zeros(sum(lengths), np.bool_)
    codes: np.ndarray | None = None
    span = 1
    for position in range(len(names[0])):
        called = [n[position] for n in names]
        parts = [column(t, name, label) for t, name, label in zip(tables, called, labels)]
        kind = _common_type(parts, called, labels)
        chunks = []
        for part, name, label in zip(parts, called, labels):
            try:  # as in Spark, a large integer beside floats may lose its last digits
                chunks += pc.cast(part, kind, safe=not pa.types.is_floating(kind)).chunks
            except pa.ArrowException as error:
                raise _unreadable(f"key column {name!r}", label, error) from None
        whole = pa.chunked_array(chunks, kind)
        null |= _numpy(pc.is_null(whole))
        single = len(names[0]) == 1
        if single and pa.types.is_integer(kind):
            codes = _numpy(pc.fill_null(pc.cast(whole, pa.int64(), safe=False), 0))
            break
        if pa.types.is_floating(kind):
            whole = pc.add(whole, pa.scalar(0.0, kind))  # -0.0 + 0.0 = 0.0
            # NaN has many bit patterns
            whole = pc.if_else(pc.is_nan(whole), pa.scalar(float("nan"), kind), whole)
        encoded = whole.combine_chunks().dictionary_encode(null_encoding="mask")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        values = _numpy(pc.fill_null(encoded.indices, 0)).astype(np.int64)
        size = max(1, len(encoded.dictionary))
        if codes is None:
            codes, span = values, size
        else:
            if span > 2**62 // size:
                codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
                span = int(codes.max(initial=0)) + 1
            codes, span = codes * size + values, span * size
    bounds = np.cumsum(lengths)[:-1]
    return np.split(codes, bounds), np.split(null, bounds)


def _common_type(parts: list[pa.ChunkedArray], names: list[str], labels: Sequence[str]):
    kinds = [part.type for part in parts]
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    real = [kind for kind in kinds if not pa.types.is_null(kind)] or [pa.int64()]
    families = {_family(kind) for kind in real}
    if len(families) > 1:
        told = ", ".join(f"{lab} {n!r} is {k}" for lab, n, k in zip(labels, names, kinds))
        raise JoinweirError(f"key columns have types that cannot be equal: {told}; cast one")
    family = families.pop()
    if family == "nested":
        raise JoinweirError(f"key column {names[0]!r} is {real[0]}; nested keys are not supported")
    if family == "number":
        if any(pa.types.is_floating(kind) for kind in real):
            return pa.float64()
        if any(pa.types.is_uint64(kind) for kind in real):
            same = all(pa.types.is_uint64(kind) for kind in real)
            return pa.uint64() if same else pa.decimal128(20)
        return pa.int64()
    if family in ("time", "time with zone"):
        fine = any(pa.types.is_timestamp(kind) and kind.unit == "ns" for kind in real)
        return pa.timestamp("ns" if fine else "us", getattr(real[0], "tz", None))
    return {"text": pa.large_string(), "bytes": pa.large_binary()}.get(family, real[0])


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if str(kind).split("[")[0] in BINARY:
        return "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time with zone" if getattr(kind, "tz", None) else "time"
    return "nested" if pa.types.is_nested(kind) else str(kind)


def _numpy(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.ChunkedArray):  # combining nothing gives nothing
        values = pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
    return values.to_numpy(zero_copy_only=False)
