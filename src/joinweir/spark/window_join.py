"""`window_join`: streams joined over sliding windows within a budget, DataFrames in and out.

    left  ─ select time, key, tie-breaker, columns ─ mapInArrow pack ─┐
    right ─ select …                               ─ mapInArrow pack ─┴ union ─ group by shard
        ─ transformWithStateInPandas (operator.py) ─ observe the counts ─ mapInArrow unpack

Everything is checked when the function is called; nothing is started and no setting changed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from .. import layout as L
from ..errors import JoinweirError, unknown
from ..policies import Parameters, definition, read_policy
from ..simulation import HAS_NO_USE_FOR_KNOWN, Landmark, Rows, profiles_of, whole_number
from ..state import can_be_informed
from ..units import memory_bytes, time_length
from .operator import OUTPUT, JoinProcessor
from .packets import int64_of
from .shard import metric_names
from .spec import JoinSpec, check_allocation, check_emit, module_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"
CASE_SENSITIVE = "spark.sql.caseSensitive"
MOST_SHARDS = 32  # by default; more are slow to schedule and each has its own fixed costs
MOST_STREAMS = 16
PREFIX = "joinweir_"
INTEGERS = (ByteType, ShortType, IntegerType, LongType)
TIMES = (TimestampType, TimestampNTZType, DateType)


def window_join(
    left: Any,
    right: Any = None,
    *,
    on: Any,
    time: Any,
    within: Any,
    memory: int | str | Sequence[int | str] | None = None,
    max_rows: int | Sequence[int] | None = None,
    allocation: str | None = None,
    policy: str | Parameters = "gdj",
    lateness: Any = "0 seconds",
    closed: str = "left",
    shards: int | None = None,
    accounting: str | None = None,
    emit: str = "matches",
    columns: Sequence[str] | Sequence[Sequence[str] | None] | None = None,
    suffixes: Sequence[str] | None = None,
    name: Any = None,
    seed: int = 0,
    known: Any = None,
) -> Any:
    """Join streams over sliding windows within a memory budget, and report what is lost.

    Parameters
    ----------
    left, right
        DataFrames, all streaming or all batch. For more than two, a list of them as `left`.
    on
        Key: a column name, a list of names, or a list whose members are tuples with one name a
        stream. Rows with a null in the key never match; they are counted.
    time
        Event time: a column name, or a tuple with one a stream. Timestamps, dates or numbers.
    within
        Life of a row: ``"10 minutes"``, a number (seconds beside timestamps, else in the column's
        unit), a tuple with one a stream, or ``jw.landmark("1 day")``. Two rows match if
        ``|l.ts - r.ts| < within``.
    memory, max_rows
        Budget over all streams and shards, in bytes (``"256 MB"``) or rows; a tuple gives it per
        stream. Neither: unbounded.
    allocation
        ``even`` (default), ``rates`` (in proportion to the rows of the first micro-batch) or
        ``unified`` (one pool for all streams).
    policy
        Which row gives way: a name, ``jw.policy(...)``, or ``"gdj:initial_rank=0.2"``.
    lateness
        A row is late if it is behind the largest time that its own stream had in *earlier*
        micro-batches by more than this. Late rows are dropped and counted. A tuple: per stream.
        The result of another `window_join` needs at least the `within` of that.
    closed
        ``left``: rows exactly `within` apart do not match; ``both``: they do.
    shards
        Into how many parts the keys are divided; default ``spark.sql.shuffle.partitions``, at most
        32. Fixed for the life of a checkpoint.
    accounting
        How the exact join's size is found: ``exact``, ``sketch`` (fixed memory, with a standard
        error) or ``off``. Default: ``sketch`` with `memory`, else ``exact``.
    emit
        ``matches``: the joined rows. ``shed``: rows that were lost, with stream, reason and how
        many they had matched. ``both``: both, with a column ``kind`` and a struct a stream.
    columns
        Which columns to carry: names for all streams, or a list with one list of names (None: all)
        a stream. Fewer columns make a cheaper join; nothing is pruned behind it.
    suffixes
        For columns that occur in several streams; default ``_left`` and ``_right``, or ``_1`` ….
    name
        Of the observed metrics: ``joinweir_NAME`` in ``lastProgress["observedMetrics"]``. For batch
        DataFrames it may be a `pyspark.sql.Observation`, whose ``get`` then has the metrics.
    seed
        For everything random.
    known
        What `characterize` found of these streams, or of earlier days of them: history statistics
        start from its frequencies, `lba` and `elba` from its models. Matters at the first start of
        a query only. Its keys are hashed by a small Spark job.

    Returns
    -------
    DataFrame
        Key columns of equal name once, then all other columns.

    Examples
    --------
    >>> joined = window_join(trades, quotes, on="symbol", time="ts", within="10 minutes",
    ...                      memory="256 MB", lateness="30 seconds")  # doctest: +SKIP
    """
    frames, sides = _streams(left, right)
    k = len(frames)
    session = frames[0].sparkSession
    streaming = _same_kind(frames, sides)
    key_names = _key_names(on, k)
    time_names = _per_stream(time, k, "time")
    schemas = [frame.schema for frame in frames]
    for schema, side, keys, when in zip(schemas, sides, key_names, time_names):
        _check_columns(schema, side, [*keys, when])
    key_types = [
        _common_type([schemas[s][key_names[s][i]].dataType for s in range(k)],
                     [key_names[s][i] for s in range(k)], sides)
        for i in range(len(key_names[0]))
    ]  # fmt: skip
    timestamps = _time_kind(schemas, time_names, sides)
    scale = 1_000_000 if timestamps == "float" else 1
    in_ticks = {"timestamps": timestamps == "timestamp", "scale": scale}
    lifetimes, landmark = _windows(within, k, closed, in_ticks)
    late = tuple(
        time_length(_zero(value, in_ticks), "lateness", **in_ticks)
        for value in _per_stream(lateness, k, "lateness")
    )
    chosen = read_policy(policy)
    budget, unit = _budget(memory, max_rows, allocation, k)
    if budget is None:  # nothing ever gives way, so nothing need be ranked
        chosen = read_policy("full")
    accounting = _accounting(accounting, unit if budget else "rows", landmark, k)
    _check_policy(chosen)
    n_shards = _shards(session, shards, streaming)
    check_emit(emit)
    visible = _visible(schemas, sides, key_names, columns)
    exact_key = len(key_types) == 1 and _fits_64_bits(key_types[0])

    selected, payload, hidden, keys, schemas_of_packets = [], [], [], [], []
    shared = [key_names[0][i] for i in range(len(key_types)) if _is_shared(key_names, i)]
    for s, frame in enumerate(frames):
        wanted = visible[s]
        if s > 0 and emit == "matches":
            wanted = [c for c in wanted if c not in shared]
        carried, places = _carried(schemas[s], wanted, key_names[s], key_types, exact_key)
        keys.append(places)
        hidden.append(len(carried) - len(wanted))
        payload.append(
            tuple((c, schemas[s][c].dataType.json(), schemas[s][c].nullable) for c in wanted)
        )
        selected.append(
            _selected(frame, schemas[s], time_names[s], key_names[s], key_types, exact_key, carried)
        )
        schemas_of_packets.append(
            _arrow_schema(selected[s].schema, [c for c, _ in carried], sides[s])
        )
    case_matters = str(session.conf.get(CASE_SENSITIVE, "false")).lower() == "true"
    result, output = _result_schema(
        schemas, sides, payload, hidden, shared, suffixes, emit, str if case_matters else str.lower
    )
    identity = {
        "streams": list(sides),
        "on": [list(names) for names in key_names],
        "key types": [kind.simpleString() for kind in key_types],
        "time": list(time_names),
        "time type": timestamps,
        "within": list(lifetimes) if landmark is None else {"landmark": list(landmark)},
        "shards": n_shards,
    }
    spec = JoinSpec(
        sides=sides,
        lifetimes=lifetimes,
        landmark=landmark,
        lateness=late,
        policy=str(chosen),
        policy_module=module_of(chosen),
        budget=budget,
        unit=unit,
        allocation=allocation or "even",
        accounting=accounting,
        seed=0 if seed == 0 else whole_number(seed, "seed"),
        shards=n_shards,
        emit=emit,
        payload=tuple(payload),
        hidden=tuple(hidden),
        keys=tuple(keys),
        output=tuple(output),
        schemas=tuple(schemas_of_packets),
        identity=identity,
        known=_known(session, known, chosen, sides, key_names, key_types, exact_key, in_ticks),
    )
    observed_as = _observed_as(name, spec, streaming)
    text = spec.to_json()
    packed = None
    for s, frame in enumerate(selected):
        packets = frame.mapInArrow(_packing(text, s), "shard int, packet binary")
        packed = packets if packed is None else packed.union(packets)
    out = packed.groupBy("shard").transformWithStateInPandas(
        statefulProcessor=JoinProcessor(text),
        outputStructType=OUTPUT,
        outputMode="Append",
        timeMode="None",
    )
    observed = out.observe(observed_as, *_observed(spec))
    return (
        observed.where(F.col("packet").isNotNull())
        .select("packet")
        .mapInArrow(_unpacking(text, result.json()), result)
    )


# --- functions that Spark ships by value ----------------------------------------------------------
# They import joinweir inside, so that a worker without it can say so.
def _packing(text: str, side: int):
    def pack_rows(batches):
        try:
            from joinweir.spark.packets import pack
            from joinweir.spark.spec import JoinSpec
        except ImportError as error:
            raise ImportError(
                f"a Spark worker cannot import joinweir ({error}); install it in the workers' "
                "Python, set PYSPARK_PYTHON to one that has it, or ship an environment with "
                "spark.archives"
            ) from error
        yield from pack(JoinSpec.from_json(text), side, batches)

    return pack_rows


def _unpacking(text: str, schema_json: str):
    def unpack_rows(batches):
        import json

        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from joinweir.spark.packets import unpack
        from joinweir.spark.spec import JoinSpec

        schema = to_arrow_schema(StructType.fromJson(json.loads(schema_json)), timezone="UTC")
        yield from unpack(JoinSpec.from_json(text), schema, batches)

    return unpack_rows


# --- reading the call -----------------------------------------------------------------------------
def _streams(left: Any, right: Any) -> tuple[list[Any], tuple[str, ...]]:
    frames = [left, right] if right is not None else left
    if not isinstance(frames, list | tuple) or not 2 <= len(frames) <= MOST_STREAMS:
        raise JoinweirError(
            f"give two DataFrames, or a list of 2 to {MOST_STREAMS} as the first argument"
        )
    for frame in frames:
        if not hasattr(frame, "mapInArrow") or not hasattr(frame, "isStreaming"):
            raise JoinweirError(
                f"window_join takes Spark DataFrames, not {type(frame).__name__}; jw.simulate "
                "joins tables in this process"
            )
    k = len(frames)
    return list(frames), ("left", "right") if k == 2 else tuple(str(i + 1) for i in range(k))


def _same_kind(frames: list[Any], sides: tuple[str, ...]) -> bool:
    streaming = [frame.isStreaming for frame in frames]
    if len(set(streaming)) > 1:
        told = ", ".join(
            f"{side} is {'streaming' if is_stream else 'batch'}"
            for side, is_stream in zip(sides, streaming)
        )
        raise JoinweirError(
            f"window_join joins streams with streams or tables with tables, but {told}; to look up "
            "a stream's rows in a table use joinweir.spark.enrich or Spark's own join"
        )
    return streaming[0]


def _per_stream(value: Any, k: int, name: str) -> list[Any]:
    if isinstance(value, tuple | list):
        if len(value) != k:
            raise JoinweirError(f"{name} has {len(value)} values for {k} streams")
        return list(value)
    return [value] * k


def _key_names(on: Any, k: int) -> list[list[str]]:
    columns = [on] if isinstance(on, str | tuple) else on
    if not isinstance(columns, list) or not columns:
        raise JoinweirError(f"on must be a column name or a list of them, not {on!r}")
    names: list[list[str]] = [[] for _ in range(k)]
    for entry in columns:
        for stream, column in zip(names, _per_stream(entry, k, "on")):
            if not isinstance(column, str):
                raise JoinweirError(f"on must name columns, not {column!r}")
            stream.append(column)
    return names


def _check_columns(schema: StructType, side: str, names: list[Any]) -> None:
    for column in names:
        if not isinstance(column, str):
            raise JoinweirError(f"columns are given by name, not as {column!r}")
        if schema.names.count(column) > 1:
            raise JoinweirError(f"the {side} stream has two columns named {column!r}; rename one")
        if column not in schema.names:
            raise unknown(f"column of the {side} stream", column, schema.names)


def _common_type(kinds: list[DataType], names: list[str], sides: tuple[str, ...]) -> DataType:
    """The type in which keys are compared: the widest, as Spark's own join does."""
    for kind, column, side in zip(kinds, names, sides):
        if isinstance(kind, StringType) and getattr(kind, "collation", "UTF8_BINARY") not in (
            None,
            "UTF8_BINARY",
        ):
            raise JoinweirError(
                f"key column {column!r} of the {side} stream has collation {kind.collation}; "
                "cast it to STRING COLLATE UTF8_BINARY (equal hashes need equal bytes)"
            )
        if isinstance(kind, ArrayType | MapType | StructType) or kind.typeName() == "variant":
            raise JoinweirError(
                f"key column {column!r} of the {side} stream is {kind.simpleString()}; join on its "
                "parts instead"
            )
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if all(isinstance(kind, StringType) for kind in kinds):
        return StringType()
    if all(isinstance(kind, INTEGERS) for kind in kinds):
        return max(kinds, key=lambda kind: INTEGERS.index(type(kind)))
    exact = (*INTEGERS, DecimalType)
    if all(isinstance(kind, (*exact, FloatType, DoubleType)) for kind in kinds):
        if all(isinstance(kind, exact) for kind in kinds):
            as_decimal = [_decimal(kind) for kind in kinds]
            scale = max(kind.scale for kind in as_decimal)
            whole = max(kind.precision - kind.scale for kind in as_decimal)
            if whole + scale <= 38:
                return DecimalType(whole + scale, scale)
            # Spark's join rounds them to 38 digits, and takes different numbers for equal.
            raise JoinweirError(
                f"key columns {' and '.join(map(repr, names))} need {whole + scale} digits to be "
                "compared, more than the 38 of a decimal; cast one"
            )
        return DoubleType()
    told = ", ".join(
        f"{side} {column!r} is {kind.simpleString()}"
        for side, column, kind in zip(sides, names, kinds)
    )
    raise JoinweirError(f"key columns have types that cannot be equal: {told}; cast one")


def _decimal(kind: DataType) -> DecimalType:
    if isinstance(kind, DecimalType):
        return kind
    return DecimalType({ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}[type(kind)], 0)


def _fits_64_bits(kind: DataType) -> bool:
    return isinstance(kind, (*INTEGERS, BooleanType, *TIMES))


def _time_kind(schemas, names: list[str], sides: tuple[str, ...]) -> str:
    kinds = []
    for schema, column, side in zip(schemas, names, sides):
        kind = schema[column].dataType
        if isinstance(kind, TimestampType | DateType | TimestampNTZType):
            kinds.append("timestamp")
        elif isinstance(kind, INTEGERS):
            kinds.append("integer")
        elif isinstance(kind, FloatType | DoubleType):
            kinds.append("float")
        else:
            raise JoinweirError(
                f"time column {column!r} of the {side} stream is {kind.simpleString()}; it must be "
                "timestamp, date, integer or float"
            )
    zoned = {
        isinstance(schema[column].dataType, TimestampType)
        for schema, column in zip(schemas, names)
        if not isinstance(schema[column].dataType, (*INTEGERS, FloatType, DoubleType))
    }
    if len(set(kinds)) > 1 or len(zoned) > 1:
        told = ", ".join(
            f"{side} {column!r} is {schema[column].dataType.simpleString()}"
            for schema, column, side in zip(schemas, names, sides)
        )
        raise JoinweirError(f"time columns are of different kinds: {told}; cast one")
    return kinds[0]


def _zero(value: Any, in_ticks: dict[str, Any]) -> Any:
    """The default lateness is for any kind of time."""
    return 0 if value == "0 seconds" and not in_ticks["timestamps"] else value


def _windows(within: Any, k: int, closed: str, in_ticks: dict[str, Any]):
    if closed not in ("left", "both"):
        raise unknown("closed", closed, ("left", "both"))
    if isinstance(within, Rows):
        raise JoinweirError(
            "a window of rows cannot be divided over shards; give within as a duration"
        )
    if isinstance(within, Landmark):
        every = time_length(within.every, "landmark", **in_ticks)
        if every < 1:
            raise JoinweirError(f"landmark({within.every!r}) must be longer than nothing")
        return (every,) * k, (every, time_length(within.origin, "landmark origin", **in_ticks))
    lengths = [time_length(v, "within", **in_ticks) for v in _per_stream(within, k, "within")]
    if any(length + (closed == "both") < 1 for length in lengths):
        raise JoinweirError(f"within must be more than 0, not {within!r}")
    return tuple(length + (closed == "both") for length in lengths), None


def _budget(memory: Any, max_rows: Any, allocation: str | None, k: int):
    check_allocation(allocation)
    if memory is not None and max_rows is not None:
        raise JoinweirError("give max_rows or memory, not both")
    given = max_rows if max_rows is not None else memory
    if given is None:
        if allocation is not None:
            raise JoinweirError("allocation needs max_rows or memory to allocate")
        return None, "rows"
    per_stream = isinstance(given, tuple | list)
    if per_stream and allocation is not None:
        raise JoinweirError("allocation does not go with a budget per stream")
    unit = "rows" if memory is None else "bytes"
    amounts = _per_stream(given, k, "max_rows" if memory is None else "memory")
    if not per_stream:
        amounts = amounts[:1]
    if memory is None:
        return tuple(whole_number(value, "max_rows") for value in amounts), unit
    return tuple(memory_bytes(value) for value in amounts), unit


def _accounting(accounting: str | None, unit: str, landmark: Any, k: int) -> str:
    if accounting is None:
        return "sketch" if unit == "bytes" and landmark is None and k == 2 else "exact"
    if accounting not in L.ACCOUNTINGS:
        raise unknown("accounting", accounting, L.ACCOUNTINGS)
    if accounting == "sketch" and (landmark is not None or k > 2):
        what = "a sliding window" if landmark is not None else "two streams"
        raise JoinweirError(f"accounting='sketch' needs {what}; use 'exact' or 'off'")
    return accounting


def _check_policy(chosen: Parameters) -> None:
    if chosen.needs_whole_input():
        raise JoinweirError(
            f"policy {str(chosen)!r} needs the whole input beforehand; it works in jw.simulate only"
        )
    if definition(chosen.name).weighs:
        raise JoinweirError(
            f"policy {str(chosen)!r} ranks rows by importance, which window_join does not carry; "
            "use it in jw.simulate, or choose another policy here"
        )


def _shards(session: Any, shards: int | None, streaming: bool) -> int:
    provider = session.conf.get(PROVIDER, "")
    if provider != ROCKSDB and "RocksDB" not in (provider or ""):
        raise JoinweirError(
            f"window_join needs Spark's RocksDB state store: set {PROVIDER} to {ROCKSDB} before "
            "the query starts"
        )
    partitions = int(session.conf.get(PARTITIONS, "200"))
    if shards is None:
        shards = min(partitions, MOST_SHARDS)
    shards = whole_number(shards, "shards")
    if shards > 4096:
        raise JoinweirError(f"shards must be at most 4096, not {shards}")
    if streaming and partitions > 2 * shards:
        warnings.warn(
            f"{PARTITIONS} is {partitions}, and window_join uses {shards} shards: each of the other"
            f" {partitions - shards} partitions costs a task and a state store in every micro-batch"
            f"; set {PARTITIONS} to {shards}, or to the number of cores, before the first start",
            stacklevel=3,
        )
    elif streaming and partitions < shards:
        warnings.warn(
            f"{shards} shards share {partitions} partitions; set {PARTITIONS} to {shards} before "
            "the first start to run them in parallel",
            stacklevel=3,
        )
    return shards


def _visible(schemas, sides, key_names, columns) -> list[list[str]]:
    """The columns that a user sees of each stream."""
    k = len(schemas)
    if columns is None:
        columns = [None] * k
    elif not isinstance(columns, list | tuple):
        raise JoinweirError(f"columns must be a list of names, not {columns!r}")
    elif all(isinstance(column, str) for column in columns):
        known = {column for schema in schemas for column in schema.names}
        for column in columns:
            if column not in known:
                raise unknown("column", column, sorted(known))
        columns = [[c for c in columns if c in schema.names] for schema in schemas]
    elif len(columns) != k:
        raise JoinweirError(f"columns has {len(columns)} lists for {k} streams")
    visible = []
    for schema, side, keys, wanted in zip(schemas, sides, key_names, columns):
        if not isinstance(wanted, list | tuple | None):
            raise JoinweirError(
                f"columns must have a list of names for each stream, not {wanted!r}"
            )
        wanted = list(schema.names if wanted is None else wanted)
        _check_columns(schema, side, wanted)
        visible.append([c for c in schema.names if c in wanted or c in keys])
    return visible


def _is_shared(key_names: list[list[str]], i: int) -> bool:
    return len({names[i] for names in key_names}) == 1


def _carried(schema, wanted, keys, key_types, exact_key):
    """(column, type to cast to or None) of a packet, and where in it the key stands.

    Key columns that are not wanted, or are compared in another type, stand first: columns that are
    added later then leave the others where they are.
    """
    front: list[tuple[str, DataType | None]] = []
    places: list[int | str] = []
    if not exact_key:
        for column, kind in zip(keys, key_types):
            if column in wanted and schema[column].dataType == kind:
                places.append(column)
            else:
                places.append(len(front))
                front.append((column, kind))
    carried = [*front, *((column, None) for column in wanted)]
    found = tuple(
        place if isinstance(place, int) else len(front) + wanted.index(place) for place in places
    )
    return carried, found


def _quoted(column: str) -> Any:
    return F.col("`" + column.replace("`", "``") + "`")


def _selected(frame, schema, time_name, keys, key_types, exact_key, carried) -> Any:
    """The columns that are packed: time, key in 64 bits, tie-breaker, payload."""
    # Packets come in another order in every run on a cluster. Rows that differ in what is carried
    # must not follow them; of equal ones it cannot be told which came first.
    named = dict.fromkeys([time_name, *keys, *(c for c, _ in carried)])
    hashed = [_comparable(_quoted(c), schema[c].dataType) for c in named]
    payload = [
        (_quoted(c) if kind is None else _quoted(c).cast(kind)).alias(f"c{i}")
        for i, (c, kind) in enumerate(carried)
    ]
    return frame.select(
        _quoted(time_name).alias("ts"),
        _key(keys, key_types, exact_key).alias("key"),
        F.xxhash64(*hashed).alias("tie"),
        *payload,
    )


def _key(names: list[str], kinds: list[DataType], exact_key: bool) -> Any:
    """The key in 64 bits: as it is, or hashed."""
    compared = [_quoted(c).cast(kind) for c, kind in zip(names, kinds)]
    if exact_key:
        return compared[0]
    parts = [_normal(c, kind) for c, kind in zip(compared, kinds)]
    any_null = compared[0].isNull()
    for column in compared[1:]:
        any_null = any_null | column.isNull()
    return F.when(any_null, F.lit(None)).otherwise(F.xxhash64(*parts))


def _known(session, known, policy, sides, key_names, key_types, exact_key, in_ticks) -> tuple:
    """A characterization in the engine's keys and ticks, see `JoinSpec.known`."""
    if known is None or policy.name == "full":
        return ()
    if not can_be_informed(policy):
        raise JoinweirError(HAS_NO_USE_FOR_KNOWN.format(policy=str(policy)))
    told = []
    for profile in profiles_of(known, key_names, sides):
        table = profile.key_table()
        names = list(profile.key_columns)
        listed = session.createDataFrame(table).select(
            _key(names, key_types, exact_key).alias("key"), "count"
        )
        found = listed.where("key IS NOT NULL").toArrow()
        rate = None if profile.rate is None else profile.rate / in_ticks["scale"]
        if rate is not None and in_ticks["timestamps"]:
            rate /= 1_000_000
        told.append(
            (
                int(profile.n_rows),
                int64_of(found["key"].combine_chunks()).tolist(),
                found["count"].to_pylist(),
                list(profile.model_a),
                float(profile.model_b),
                rate,
            )
        )
    return tuple(told)


def _normal(column: Any, kind: DataType) -> Any:
    """Floats that Spark's joins take for equal have equal bits."""
    if not isinstance(kind, FloatType | DoubleType):
        return column
    nan, zero = F.lit(float("nan")).cast(kind), F.lit(0.0).cast(kind)
    return F.when(F.isnan(column), nan).when(column == 0, zero).otherwise(column)


def _comparable(column: Any, kind: DataType) -> Any:
    """A column that `xxhash64` takes: it refuses maps and variants, as text it does not."""
    return column if _hashable(kind) else F.to_json(F.struct(column))


def _hashable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_hashable(f.dataType) for f in kind.fields)
    return not isinstance(kind, MapType) and kind.typeName() != "variant"


def _arrow_schema(schema: StructType, names: list[str], side: str) -> str:
    """Arrow schema of the payload, as the workers will meet it; `names` as the user knows them."""
    fields = schema.fields[3:]
    for field, column in zip(fields, names):
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except Exception:
            raise JoinweirError(
                f"column {column!r} of the {side} stream is {field.dataType.simpleString()}, which "
                "Spark cannot hand to Python through Arrow; cast it, or leave it out with columns="
            ) from None
    return to_arrow_schema(StructType(fields), timezone="UTC").serialize().to_pybytes().hex()


def _result_schema(schemas, sides, payload, hidden, shared, suffixes, emit, folded):
    """Schema of what `window_join` returns, and from where its columns come.

    Names are the same if `folded` they are: a and A are for Spark, by default.
    """
    k = len(sides)
    if emit != "matches":
        named = sides if k == 2 else tuple(f"stream{side}" for side in sides)
        structs = [
            StructField(side, StructType([schemas[s][c] for c, _, _ in payload[s]]), True)
            for s, side in enumerate(named)
        ]
        kind = [StructField("kind", StringType(), False)] if emit == "both" else []
        told = [
            StructField("stream", StringType(), True),
            StructField("reason", StringType(), True),
            StructField("n_matched", LongType(), True),
        ]
        return StructType([*kind, *told, *structs]), ()
    if suffixes is None:
        suffixes = ("_left", "_right") if k == 2 else tuple(f"_{side}" for side in sides)
    if len(suffixes) != k or not all(isinstance(suffix, str) for suffix in suffixes):
        raise JoinweirError(f"suffixes must be {k} texts, one a stream, not {suffixes!r}")
    fields, output = [], []
    names = [[c for c, _, _ in columns] for columns in payload]
    for column in shared:
        if column in names[0]:
            fields.append(schemas[0][column])
            output.append((0, hidden[0] + names[0].index(column)))
    for s in range(k):
        for i, column in enumerate(names[s]):
            if s == 0 and column in shared:
                continue
            others = {folded(c) for o in range(k) if o != s for c in names[o]}
            source = schemas[s][column]
            called = column + suffixes[s] if folded(column) in others else column
            fields.append(StructField(called, source.dataType, source.nullable, source.metadata))
            output.append((s, hidden[s] + i))
    called = [folded(f.name) for f in fields]
    for field in fields:
        if called.count(folded(field.name)) > 1:
            raise JoinweirError(
                f"two columns of the result would be named {field.name!r}; give other suffixes, or "
                "rename one"
            )
    return StructType(fields), output


# --- metrics ----------------------------------------------------------------------------------
def _observed_as(name: Any, spec: JoinSpec, streaming: bool) -> Any:
    """The metrics' name, or the Observation that takes them."""
    if name is None:
        told = json.dumps([spec.identity, spec.payload])
        return PREFIX + hashlib.sha256(told.encode()).hexdigest()[:8]
    if type(name).__name__ == "Observation":  # classic Spark and Connect have one each
        if streaming:
            raise JoinweirError("an Observation takes no streams; give name as a text")
        return name
    if not isinstance(name, str) or not name:
        raise JoinweirError(f"name must be a text, not {name!r}")
    return PREFIX + name


def _observed(spec: JoinSpec) -> list[Any]:
    """What leaves the query as observed metrics, by the names in docs/monitoring.md."""
    counts, exacts = metric_names(spec.sides)
    sums = {name: F.sum(F.col("counts")[i]) for i, name in enumerate(counts)}
    sums |= {name: F.sum(F.col("exact")[i]) for i, name in enumerate(exacts)}
    for side in spec.sides:
        at = counts.index(f"watermark_{side}")
        latest = F.max(F.col("counts")[at])
        sums[f"watermark_{side}"] = F.when(latest > -(2**63), latest)
        for prefix in ("", "total_"):
            sums[f"{prefix}n_shed_{side}"] = (
                sums[f"{prefix}n_evicted_{side}"] + sums[f"{prefix}n_refused_{side}"]
            )
    for prefix in ("", "total_"):
        exact, out = sums[f"{prefix}n_exact"], sums[f"{prefix}n_out"]
        sums[f"{prefix}recall"] = F.when(exact > 0, out / exact).when(exact.isNotNull(), 1.0)
    sums["total_n_exact_error"] = F.sqrt(sums.pop("total_n_exact_variance"))
    budget = None if spec.budget is None else sum(spec.budget)
    sums["budget"] = F.max(F.lit(budget).cast("bigint"))
    sums["budget_unit"] = F.max(F.lit(spec.unit))
    sums["shards"] = F.count(F.col("counts"))
    return [value.alias(name) for name, value in sums.items()]
