"""Tables as people have them, turned into what the engine takes: times and keys as int64.

Arrow, pandas, polars and dicts of arrays are read column by column through Arrow; rows are never
touched one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import JoinweirError, unknown

FLOAT_TICKS = 1_000_000  # ticks per unit of a time column of floats


@dataclass(frozen=True)
class Times:
    """A stream's times in ticks."""

    ticks: np.ndarray  # int64
    timestamps: bool  # ticks are microseconds of a date or timestamp
    scale: int  # ticks per unit of a plain number


def column_names(table: Any) -> list[str]:
    """Names of a table's columns."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        return table.schema.names
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if hasattr(table, "columns"):  # pandas, polars
        return [str(name) for name in table.columns]
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
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            reason = str(error).splitlines()[0]
            raise JoinweirError(f"column {name!r} of the {what} stream: {reason}") from None
    return pa.chunked_array([values]) if isinstance(values, pa.Array) else values


def n_rows(table: Any, name: str, what: str) -> int:
    """How many rows a table has; its columns must agree."""
    n = len(column(table, name, what))
    if isinstance(table, Mapping):
        for other in table:
            if len(table[other]) != n:
                raise JoinweirError(
                    f"the {what} stream's columns differ in length: {name!r} has {n}, "
                    f"{other!r} has {len(table[other])}"
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
    if pa.types.is_integer(kind):
        return Times(_numpy(pc.cast(values, pa.int64())), False, 1)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        return Times(_numpy(pc.cast(micros, pa.int64())), True, 1_000_000)
    if pa.types.is_floating(kind):
        plain = _numpy(pc.cast(values, pa.float64()))
        if not np.isfinite(plain).all() or np.abs(plain).max(initial=0) > 9e12:
            raise JoinweirError(
                f"time column {name!r} of the {what} stream has NaN, infinite or huge values"
            )
        return Times(np.rint(plain * FLOAT_TICKS).astype(np.int64), False, FLOAT_TICKS)
    raise JoinweirError(
        f"time column {name!r} of the {what} stream is {kind}; it must be integer, float, "
        "timestamp or date"
    )


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
        parts = [column(t, n[position], label) for t, n, label in zip(tables, names, labels)]
        kind = _common_type(parts, [n[position] for n in names], labels)
        whole = pa.chunked_array(
            [chunk for part in parts for chunk in pc.cast(part, kind).chunks], kind
        )
        null |= _numpy(pc.is_null(whole))
        single = len(names[0]) == 1
        if single and pa.types.is_integer(kind):
            codes = _numpy(pc.fill_null(pc.cast(whole, pa.int64(), safe=False), 0))
            break
        if pa.types.is_floating(kind):
            whole = pc.add(whole, pa.scalar(0.0, kind))  # -0.0 + 0.0 = 0.0
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
    common = {
        "number": pa.float64() if any(pa.types.is_floating(k) for k in real) else pa.int64(),
        "text": pa.large_string(),
        "bytes": pa.large_binary(),
        "time": pa.timestamp("us", getattr(real[0], "tz", None)),
    }
    if any(pa.types.is_uint64(kind) for kind in real):
        return pa.uint64() if all(pa.types.is_uint64(kind) for kind in real) else pa.decimal128(20)
    return common.get(family, real[0])


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    return "nested" if pa.types.is_nested(kind) else str(kind)


def _numpy(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.ChunkedArray):  # combining nothing gives nothing
        values = pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
    return values.to_numpy(zero_copy_only=False)
