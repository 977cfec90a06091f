"""Rows on their way through Spark: many of them in one binary value.

A *packet* is a small header and Arrow IPC streams. `pack` turns rows of one stream into packets for
the shards, `unpack` turns packets of results back into rows. Between them Spark shuffles a few
large values instead of many rows, and the operator never meets a pandas row.

Every pack task sends every shard at least one packet, if only to tell the largest time it saw: a
shard without rows would not be called at all, and all shards must agree on what is late.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import JoinweirError, StateError
from ..layout import REASONS
from ..tables import FLOAT_TICKS, LATEST
from .spec import JoinSpec, shard_ids

FLUSH_BYTES = 16 << 20  # of gathered input; packets are this over the number of shards
RESULT_BYTES = 32 << 20  # of result rows in one batch for the JVM
TIME, KEY, TIE, FIRST_COLUMN = range(4)  # columns of rows on their way to a shard
LATE, NULL_KEY, NULL_TIME = (len(REASONS) + i for i in range(3))
ALL_REASONS = (*REASONS, "late", "null key", "null time")
NO_TIME = -(2**63)

_IN = struct.Struct("<4sHHqqqqQQ")  # magic, side, -, largest time, rows, null keys, null times, …
_OUT = struct.Struct("<4sHHQ")
_MATCHES, _SHED = b"JWm1", b"JWs1"
_ROWS = b"JWr1"


# --- Arrow --------------------------------------------------------------------------------------
def to_ipc(batch: pa.RecordBatch) -> pa.Buffer:
    """A self-describing Arrow stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def from_ipc(buffer: pa.Buffer | memoryview | bytes) -> pa.RecordBatch:
    """The batch of `to_ipc`; it shares the buffer's memory."""
    try:
        return pa.ipc.open_stream(buffer).read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise StateError(f"stored rows cannot be read: {error}") from None


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    whole = table.to_batches()
    if len(whole) > 1:
        raise JoinweirError(
            "a text or binary column has more than 2 GB in one shard and micro-batch; use more "
            "shards, or smaller micro-batches"
        )
    return whole[0] if whole else pa.RecordBatch.from_arrays(_empty(schema), schema=schema)


def _empty(schema: pa.Schema) -> list[pa.Array]:
    return [pa.array([], field.type) for field in schema]


def int64_of(column: pa.Array) -> np.ndarray:
    """Times and keys of at most 64 bits as int64; nulls as 0."""
    kind = column.type
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(_number_type(kind)).cast(kind))
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date64(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _number_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    return pa.int64()


def ticks_of(column: pa.Array) -> np.ndarray:
    """A time column in ticks, as `simulate` counts them: µs of timestamps and dates."""
    kind = column.type
    if pa.types.is_floating(kind):
        filled = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
        scaled = filled.astype(np.float64) * FLOAT_TICKS
        if not (np.abs(scaled) <= LATEST).all():
            raise JoinweirError("the time column has NaN, infinite or huge values; filter them out")
        return np.rint(scaled).astype(np.int64)
    ticks = int64_of(column)
    if pa.types.is_date32(kind):
        ticks = ticks * 86_400_000_000
    if ticks.size and (ticks.min() < -LATEST or ticks.max() > LATEST):
        raise JoinweirError("the time column has values beyond the year ±70,000; filter them out")
    return ticks


def shard_of(key: np.ndarray, shards: int) -> np.ndarray:
    """Number of the shard of each key; another mixing than the engine's own index uses."""
    h = key.view(np.uint64) * np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(29)
    return (h % np.uint64(shards)).astype(np.int64)


# --- rows to shards -------------------------------------------------------------------------------
class Packet(NamedTuple):
    """Rows of one stream for one shard."""

    side: int
    latest: int  # largest time that the task has seen, over all shards; NO_TIME if none
    n_null_key: int
    n_null_time: int
    rows: pa.RecordBatch | None  # time, key, tie-breaker, payload
    aside: pa.RecordBatch | None  # payload of rows without key or time, and why; if wanted


def pack(spec: JoinSpec, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of one stream as packets: columns shard, packet."""
    ids = shard_ids(spec.shards)
    gathered: list[pa.RecordBatch] = []
    size = 0
    latest = NO_TIME
    for batch in batches:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= FLUSH_BYTES:
            packets, latest = _pack(spec, side, gathered, latest, last=False)
            yield _as_rows(ids, packets)
            gathered, size = [], 0
    if gathered or latest != NO_TIME:
        packets, latest = _pack(spec, side, gathered, latest, last=True)
        yield _as_rows(ids, packets)


def _as_rows(ids: list[int], packets: dict[int, bytes]) -> pa.RecordBatch:
    numbers = pa.array([ids[i] for i in packets], pa.int32())
    return pa.RecordBatch.from_arrays(
        [numbers, pa.array(list(packets.values()), pa.binary())], names=["shard", "packet"]
    )


def _pack(spec: JoinSpec, side: int, gathered, latest: int, last: bool):
    """Packets by number of the shard; in the `last` call every shard gets one."""
    shards = spec.shards
    if not gathered:
        return {i: _packet(side, latest, 0, 0, None, None) for i in range(shards)}, latest
    whole = one_batch(gathered, gathered[0].schema)
    time, key, tie = (whole.column(i) for i in (TIME, KEY, TIE))
    null_time = time.is_null().to_numpy(zero_copy_only=False)
    null_key = key.is_null().to_numpy(zero_copy_only=False) & ~null_time
    ticks, keys = ticks_of(time), int64_of(key)
    if not null_time.all():
        latest = max(latest, int(ticks[~null_time].max()))
    number = shard_of(keys, shards) if shards > 1 else np.zeros(keys.size, np.int64)
    whole = pa.RecordBatch.from_arrays(
        [pa.array(ticks), pa.array(keys), tie, *whole.columns[FIRST_COLUMN:]],
        names=["ts", "key", "tie", *whole.schema.names[FIRST_COLUMN:]],
    )
    without = null_time | null_key
    any_without = bool(without.any())
    if any_without:  # spread them, as nobody asks for them by key
        spread = tie.to_numpy(zero_copy_only=False).astype(np.int64)
        number = np.where(without, shard_of(spread, shards), number)
    bins = number * 3 + null_key + 2 * null_time
    if shards > 1 or any_without:
        order = np.argsort(bins.astype(np.int16 if shards < 10_000 else np.int64), kind="stable")
        whole = whole.take(pa.array(order))
        bins = bins[order]
    bounds = np.searchsorted(bins, np.arange(3 * shards + 1))
    packets = {}
    for i in range(shards):
        a, b, c, d = bounds[3 * i : 3 * i + 4].tolist()
        if a == d and not last:
            continue
        aside = None
        if b < d and spec.emit != "matches":
            reason = np.repeat(np.array([NULL_KEY, NULL_TIME], np.int8), [c - b, d - c])
            payload = whole.slice(b, d - b).columns[FIRST_COLUMN:]
            names = whole.schema.names[FIRST_COLUMN:]
            aside = pa.RecordBatch.from_arrays(
                [pa.array(reason), *payload], names=["reason", *names]
            )
        rows = whole.slice(a, b - a) if a < b else None
        packets[i] = _packet(side, latest, c - b, d - c, rows, aside)
    return packets, latest


def _packet(side, latest, n_null_key, n_null_time, rows, aside) -> bytes:
    parts = [b"" if part is None else to_ipc(part) for part in (rows, aside)]
    n = 0 if rows is None else rows.num_rows
    head = _IN.pack(_ROWS, side, 0, latest, n, n_null_key, n_null_time, *(len(p) for p in parts))
    return b"".join([head, *parts])


def read_packet(data: bytes) -> Packet:
    """A packet of `pack`."""
    magic, side, _, latest, _, n_null_key, n_null_time, n_rows, n_aside = _IN.unpack_from(data)
    if magic != _ROWS or len(data) != _IN.size + n_rows + n_aside:
        raise JoinweirError("a packet of rows is damaged or of another joinweir version")
    body = pa.py_buffer(data)
    rows = from_ipc(body.slice(_IN.size, n_rows)) if n_rows else None
    aside = from_ipc(body.slice(_IN.size + n_rows, n_aside)) if n_aside else None
    return Packet(side, latest, n_null_key, n_null_time, rows, aside)


# --- results to rows ------------------------------------------------------------------------------
def matches_packet(rows: list[pa.RecordBatch], index: np.ndarray) -> bytes:
    """Results: the distinct rows of each stream, and which of them go together.

    A row takes part in several results (7 on the mean in the benchmark), so this is a fraction of
    the results themselves; they are written out in `unpack`, next to the JVM.
    """
    numbers = pa.RecordBatch.from_arrays(
        [pa.array(np.ascontiguousarray(column, np.int32)) for column in index],
        names=[f"i{s}" for s in range(len(rows))],
    )
    return _out_packet(_MATCHES, 0, [numbers, *rows])


def shed_packet(side: int, reason: np.ndarray, n_matched: np.ndarray, rows: pa.RecordBatch):
    """Rows of one stream that were shed."""
    told = pa.RecordBatch.from_arrays(
        [pa.array(reason.astype(np.int8)), pa.array(n_matched.astype(np.int64))],
        names=["reason", "n_matched"],
    )
    return _out_packet(_SHED, side, [told, rows])


def _out_packet(magic: bytes, side: int, batches: list[pa.RecordBatch]) -> bytes:
    streams = [to_ipc(batch) for batch in batches]
    heads = [_OUT.pack(magic, side, len(streams) - i, len(part)) for i, part in enumerate(streams)]
    return b"".join(piece for pair in zip(heads, streams) for piece in pair)


def unpack(
    spec: JoinSpec, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Packets of results as rows of this schema."""
    for batch in batches:
        for packet in batch.column(0):
            yield from _rows_of(spec, schema, packet.as_buffer())


def _rows_of(spec: JoinSpec, schema: pa.Schema, packet: pa.Buffer) -> Iterator[pa.RecordBatch]:
    parts, at, left = [], 0, 1
    while left:
        magic, side, left, length = _OUT.unpack_from(packet, at)
        if magic not in (_MATCHES, _SHED):
            raise JoinweirError("a packet of results is damaged or of another joinweir version")
        parts.append(from_ipc(packet.slice(at + _OUT.size, length)))
        at += _OUT.size + length
        left -= 1
    if magic == _SHED:
        yield _shed_rows(spec, schema, side, *parts)
        return
    numbers, rows = parts[0], parts[1:]
    widths = [max(1, part.nbytes // max(1, part.num_rows)) for part in rows]
    step = max(1, RESULT_BYTES // sum(widths))
    for start in range(0, numbers.num_rows, step):
        index = [numbers.column(s).slice(start, step) for s in range(len(rows))]
        index = _same_keys(spec, rows, index)
        if spec.emit == "matches":
            columns = [rows[s].column(c).take(index[s]) for s, c in spec.output]
        else:
            n = len(index[0])
            structs = [_struct(spec, s, rows[s].take(index[s])) for s in range(len(rows))]
            none = pa.nulls(n, pa.string())
            columns = [pa.repeat("match", n), none, none, pa.nulls(n, pa.int64()), *structs]
        yield pa.RecordBatch.from_arrays(columns, names=schema.names)


def _same_keys(spec: JoinSpec, rows, index):
    """Drop pairs whose keys have the same hash but differ (once in 2**64 / pairs)."""
    if not spec.keys[0]:
        return index
    same = None
    for position in range(len(spec.keys[0])):
        first = rows[0].column(spec.keys[0][position]).take(index[0])
        for s in range(1, len(rows)):
            other = rows[s].column(spec.keys[s][position]).take(index[s])
            equal = pc.equal(first, other)
            if pa.types.is_floating(first.type):
                equal = pc.or_(equal, pc.and_(pc.is_nan(first), pc.is_nan(other)))
            same = equal if same is None else pc.and_(same, equal)
    if pc.all(same).as_py() is not False:
        return index
    return [numbers.filter(same) for numbers in index]


def _shed_rows(spec: JoinSpec, schema: pa.Schema, side: int, told, rows) -> pa.RecordBatch:
    n = rows.num_rows
    columns = [pa.repeat("shed", n)] if spec.emit == "both" else []
    columns += [pa.repeat(spec.sides[side], n), pa.array(ALL_REASONS).take(told.column(0))]
    columns.append(told.column(1))
    for s in range(spec.streams):
        kind = schema.field(len(columns)).type
        columns.append(_struct(spec, s, rows) if s == side else pa.nulls(n, kind))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _struct(spec: JoinSpec, side: int, rows: pa.RecordBatch) -> pa.Array:
    names = [name for name, _, _ in spec.payload[side]]
    first = spec.hidden[side]
    return pa.StructArray.from_arrays(rows.columns[first : first + len(names)], names=names)
