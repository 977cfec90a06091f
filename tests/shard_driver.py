"""Runs the shards of a join on Spark in this process: no Spark, state in dicts, files in a folder.

A stream's rows are an Arrow table with columns ts, key, id and text (ts and key may be null; `id`
tells rows apart, and rows that are equal in everything may be processed in any order). `Driver`
cuts nothing by itself: it takes one micro-batch after the other, as Spark hands them over.
"""

from __future__ import annotations

import copy
import dataclasses
import shutil
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa

from joinweir.policies import read_policy
from joinweir.spark.packets import pack, unpack
from joinweir.spark.shard import Shard, metric_names
from joinweir.spark.spec import JoinSpec, module_of, shard_ids

COLUMNS = (
    pa.field("key", pa.int64()),
    pa.field("ts", pa.int64()),
    pa.field("id", pa.int64()),
    pa.field("text", pa.string()),
)
COUNTS = ("n_in", "n_late", "n_null", "n_evicted", "n_refused", "n_expired")


# --- input ----------------------------------------------------------------------------------------
def random_rows(
    rng, n=200, ticks=200, keys=12, nulls=0.05, disorder=0, twins=0.05, text=6
) -> pa.Table:
    """Rows with ties, nulls, and some that are equal in everything, out of order by `disorder`."""
    ts = np.sort(rng.integers(0, ticks, n))
    came = np.argsort(ts + rng.integers(0, disorder + 1, n), kind="stable")
    ts = ts[came]
    key = np.minimum(rng.geometric(0.2, n) - 1, keys - 1) * 7919
    number = np.arange(n)
    for i in np.flatnonzero(rng.random(n) < twins):
        if i:
            ts[i], key[i], number[i] = ts[i - 1], key[i - 1], number[i - 1]
    lengths = rng.integers(0, text + 1, n)
    lengths = lengths[number]
    no_key = (rng.random(n) < nulls)[number]
    no_time = (rng.random(n) < nulls / 2)[number]
    return rows_of(
        [None if gone else int(t) for t, gone in zip(ts, no_time, strict=True)],
        [None if gone else int(x) for x, gone in zip(key, no_key, strict=True)],
        number,
        ["x" * int(length) for length in lengths],
    )


def rows_of(ts, key, number=None, text=None) -> pa.Table:
    """Rows from plain lists."""
    n = len(ts)
    return pa.table(
        {
            "ts": pa.array(ts, pa.int64()),
            "key": pa.array(key, pa.int64()),
            "id": pa.array(np.arange(n) if number is None else number, pa.int64()),
            "text": pa.array(["t"] * n if text is None else text, pa.string()),
        }
    )


def cut(rng, table: pa.Table, n_batches: int) -> list[pa.Table]:
    """The table in so many micro-batches, some of them perhaps empty."""
    at = np.sort(rng.integers(0, table.num_rows + 1, n_batches - 1))
    bounds = [0, *at.tolist(), table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(bounds)]


def cut_by_time(rng, tables: list[pa.Table], n_batches: int) -> list[list[pa.Table]]:
    """Micro-batches of all streams that keep the order (ts, stream, id); tables are sorted."""
    ts = np.concatenate([t.column("ts").to_numpy() for t in tables])
    side = np.repeat(np.arange(len(tables)), [t.num_rows for t in tables])
    number = np.concatenate([t.column("id").to_numpy() for t in tables])
    rank = np.empty(ts.size, np.int64)
    rank[np.lexsort((number, side, ts))] = np.arange(ts.size)
    at = np.sort(rng.integers(0, ts.size + 1, n_batches - 1))
    batch = np.searchsorted(at, rank, side="right")
    return [
        [tables[s].filter(pa.array(batch[side == s] == b)) for s in range(len(tables))]
        for b in range(n_batches)
    ]


# --- the join -------------------------------------------------------------------------------------
def make_spec(
    k=2, *, within=20, landmark=None, closed="left", lateness=0, policy="gdj", budget=None,
    unit="rows", allocation="even", accounting="exact", seed=0, shards=1, emit="matches",
    columns=None, hidden=None, **identity,
) -> JoinSpec:  # fmt: skip
    """A join of k streams; windows, lateness, budget: one for all streams or one a stream."""
    sides = ("left", "right") if k == 2 else tuple(str(i + 1) for i in range(k))
    lifetimes = within if isinstance(within, tuple) else (within,) * k
    lifetimes = tuple(length + (closed == "both") for length in lifetimes)
    if landmark is not None:
        lifetimes = (landmark[0],) * k
    fields = [COLUMNS] * k if columns is None else columns
    packed = [
        pa.schema([pa.field(f"c{i}", f.type, f.nullable) for i, f in enumerate(of_side)])
        for of_side in fields
    ]
    if budget is not None and not isinstance(budget, tuple):
        budget = (budget,)
    return JoinSpec(
        sides=sides,
        lifetimes=lifetimes,
        landmark=landmark,
        lateness=lateness if isinstance(lateness, tuple) else (lateness,) * k,
        policy=str(read_policy(policy)),
        policy_module=module_of(read_policy(policy)),
        budget=budget,
        unit=unit,
        allocation=allocation,
        accounting=accounting,
        seed=seed,
        shards=shards,
        emit=emit,
        payload=tuple(tuple((f.name, str(f.type), f.nullable) for f in of) for of in fields),
        hidden=(0,) * k if hidden is None else hidden,
        keys=((),) * k,
        output=tuple((s, i) for s in range(k) for i in range(len(fields[s]))),
        schemas=tuple(schema.serialize().to_pybytes().hex() for schema in packed),
        identity={
            "streams": list(sides),
            "on": [["key"]] * k,
            "key types": ["bigint"],
            "time": ["ts"] * k,
            "within": list(lifetimes) if landmark is None else {"landmark": list(landmark)},
            "shards": shards,
        }
        | identity,
    )


class KV(dict):
    """Durable values that count the bytes put into them."""

    written = 0

    def put(self, key, value):
        assert isinstance(value, bytes), "Spark takes bytes"
        self.written += len(value)
        self[key] = value

    def delete(self, key):
        assert key in self, f"{key} is not there: forgotten twice, or never stored"
        del self[key]

    def __deepcopy__(self, memo):
        other = KV(self)
        other.written = self.written
        return other


@dataclass
class Happened:
    """What a micro-batch brought."""

    matches: list[tuple] = field(default_factory=list)  # ids
    shed: list[tuple] = field(default_factory=list)  # side, reason, n_matched, id
    rows: list[dict] = field(default_factory=list)  # results as they leave `unpack`
    shards: list[dict] = field(default_factory=list)  # metrics of each shard
    written: int = 0  # bytes put into the state store, heads included

    def of_shard(self, i: int) -> dict:
        """Metrics of a shard."""
        return self.shards[i]

    def total(self, name: str):
        """A metric over all shards."""
        return sum(shard[name] for shard in self.shards)

    def key(self):
        """Everything that must not differ between two runs, in a form that can be compared."""
        return (
            sorted(self.matches),
            sorted(self.shed),
            [{n: v for n, v in shard.items() if n != "bytes_held"} for shard in self.shards],
        )


class Driver:
    """Shards of one join, from micro-batch to micro-batch."""

    def __init__(self, spec: JoinSpec, root) -> None:
        self.spec = spec
        self.root = str(root)
        self.heads: list[bytes | None] = [None] * spec.shards
        self.kvs = [KV() for _ in range(spec.shards)]
        self.known: list[dict | None] = [None] * spec.shards
        self.last: list[Shard | None] = [None] * spec.shards

    def with_spec(self, **changes) -> Driver:
        """The same durable state and files after a restart with other settings."""
        other = self.copy()
        other.spec = dataclasses.replace(self.spec, **changes)
        return other

    def copy(self) -> Driver:
        """The same durable state and working files, to go on twice."""
        other = copy.copy(self)
        other.heads = list(self.heads)
        other.kvs = copy.deepcopy(self.kvs)
        other.known = list(self.known)
        other.last = list(self.last)
        return other

    def lose_files(self) -> Driver:
        """As on another machine."""
        shutil.rmtree(f"{self.root}/joinweir", ignore_errors=True)
        return self

    def packets(self, tables, *, tasks=1, rng=None) -> list[list[bytes]]:
        """Packets of each shard: every stream in several map tasks, in any order."""
        ids = shard_ids(self.spec.shards)
        found: list[list[bytes]] = [[] for _ in ids]
        for s, table in enumerate(tables):
            whole = for_packing(self.spec, s, table)
            for t in range(tasks):
                mine = whole.filter(pa.array(np.arange(whole.num_rows) % tasks == t))
                batches = mine.combine_chunks().to_batches(max_chunksize=50)
                for packed in pack(self.spec, s, iter(batches)):
                    shards, values = (packed.column(i).to_pylist() for i in range(2))
                    for shard, packet in zip(shards, values, strict=True):
                        found[ids.index(shard)].append(packet)
        if rng is not None:
            found = [[of[i] for i in rng.permutation(len(of))] for of in found]
        return found

    def batch(self, tables, *, tasks=1, rng=None) -> Happened:
        """Run a micro-batch; shards without packets are not called, as on Spark."""
        happened = Happened()
        before = sum(kv.written for kv in self.kvs)
        for i, packets in enumerate(self.packets(tables, tasks=tasks, rng=rng)):
            if packets:
                shard = Shard(self.spec, i, self.heads[i], self.kvs[i], self.root)
                out = list(shard.run(iter(packets)))
                self.heads[i] = shard.saved_head()
                happened.written += len(self.heads[i])
                self.known[i] = self.named(shard)
                self.last[i] = shard
                self.read(out, happened)
                happened.shards.append(self.known[i])
            else:
                happened.shards.append(self.quiet(i))
        happened.written += sum(kv.written for kv in self.kvs) - before
        return happened

    def named(self, shard: Shard) -> dict:
        """Metrics by name."""
        counts, exact = shard.metrics()
        names, exacts = metric_names(self.spec.sides)
        assert all(type(n) is int for n in counts)
        return dict(zip([*names, *exacts], [*counts, *exact], strict=True))

    def quiet(self, i: int) -> dict:
        """Metrics of a shard that was not called: nothing new."""
        now = self.known[i]
        names, exacts = metric_names(self.spec.sides)
        if now is None:
            return dict.fromkeys([*names, *exacts], 0)
        alone = {n for n in now if f"total_{n}" in now}
        return {n: 0 if n in alone and v is not None else v for n, v in now.items()}

    def read(self, packets: list[bytes], happened: Happened) -> None:
        """Unpack results and shed rows."""
        spec = self.spec
        schema = result_schema(spec)
        batch = pa.record_batch({"packet": pa.array(packets, pa.binary())})
        first = [[c for c, _, _ in columns].index("id") for columns in spec.payload]
        for rows in unpack(spec, schema, iter([batch])):
            rows = pa.Table.from_batches([rows])
            happened.rows += rows.to_pylist() if spec.emit == "matches" else []
            if spec.emit == "matches":
                at = [spec.output.index((s, spec.hidden[s] + i)) for s, i in enumerate(first)]
                happened.matches += zip(*(rows.column(i).to_pylist() for i in at), strict=True)
                continue
            for row in rows.to_pylist():
                structs = [row[f"s{s}"] for s in range(spec.streams)]
                if row.get("kind") == "match":
                    assert row["stream"] is None and row["reason"] is None
                    happened.matches.append(tuple(part["id"] for part in structs))
                else:
                    s = spec.sides.index(row["stream"])
                    assert [x is not None for x in structs] == [i == s for i in range(len(structs))]
                    happened.shed.append((s, row["reason"], row["n_matched"], structs[s]["id"]))


def for_packing(spec: JoinSpec, s: int, table: pa.Table) -> pa.Table:
    """Time, key, tie-breaker, and the payload under its names in packets."""
    payload = [table.column(name) for name, _, _ in spec.payload[s]]
    fixed = [table.column("ts"), table.column("key"), table.column("id")]
    names = ["ts", "key", "tie", *(f"c{i}" for i in range(len(payload)))]
    return pa.table([*fixed, *payload], names=names)


def result_schema(spec: JoinSpec) -> pa.Schema:
    """Of what `unpack` yields."""
    types = [pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text))) for text in spec.schemas]
    if spec.emit == "matches":
        return pa.schema(
            [(f"{spec.sides[s]}.{spec.payload[s][i][0]}", types[s].field(i).type)
             for s, i in spec.output]
        )  # fmt: skip
    structs = [
        (f"s{s}", pa.struct([(name, types[s].field(i).type)
                             for i, (name, _, _) in enumerate(spec.payload[s])]))
        for s in range(spec.streams)
    ]  # fmt: skip
    kind = [("kind", pa.string())] if spec.emit == "both" else []
    told = [("stream", pa.string()), ("reason", pa.string()), ("n_matched", pa.int64())]
    return pa.schema([*kind, *told, *structs])


# --- what is right, found without joinweir -----------------------------------------------------
@dataclass
class Truth:
    """Which rows are accepted, and what they join to."""

    late: list[list[int]]  # ids a stream
    null_key: list[list[int]]
    null_time: list[list[int]]
    accepted: list[pd.DataFrame]  # ts, key, id, batch
    matches: list[tuple]


def truth(batches, *, lifetimes, lateness, landmark=None) -> Truth:
    """By brute force from micro-batches of tables: the rules of docs/semantics.md, in pandas.

    `lateness` is given a stream, or a micro-batch and stream.
    """
    k = len(lifetimes)
    if not isinstance(lateness[0], tuple):
        lateness = [lateness] * len(batches)
    late, null_key, null_time, accepted = [], [], [], []
    for s in range(k):
        rows = pd.concat(
            [tables[s].to_pandas(types_mapper=pd.ArrowDtype).assign(batch=b)
             for b, tables in enumerate(batches)]
        )  # fmt: skip
        timed = rows[rows.ts.notna()]
        high = timed.groupby("batch").ts.max().astype("int64")
        high = high.reindex(range(len(batches))).cummax().ffill().shift(1).fillna(-(2.0**60))
        allowed = timed.batch.map(lambda b, s=s: lateness[b][s])
        is_late = timed.ts.astype("int64") < timed.batch.map(high) - allowed
        has_key = timed.key.notna()
        null_time.append(rows[rows.ts.isna()].id.tolist())
        null_key.append(timed[~has_key].id.tolist())
        late.append(timed[has_key & is_late].id.tolist())
        good = timed[has_key & ~is_late][["ts", "key", "id", "batch"]].astype("int64")
        accepted.append(good)
    return Truth(
        late, null_key, null_time, accepted, brute_join(accepted, lifetimes, landmark=landmark)
    )


def brute_join(accepted, lifetimes, landmark=None) -> list[tuple]:
    """All combinations of one row a stream with equal keys and max(ts) < min(end), sorted."""
    joined = None
    for s, rows in enumerate(accepted):
        end = rows.ts + lifetimes[s]
        if landmark is not None:
            every, origin = landmark
            end = (np.floor_divide(rows.ts - origin, every) + 1) * every + origin
        mine = pd.DataFrame({"key": rows.key, f"ts{s}": rows.ts, f"end{s}": end, f"id{s}": rows.id})
        joined = mine if joined is None else joined.merge(mine, on="key")
    k = len(accepted)
    latest = joined[[f"ts{s}" for s in range(k)]].max(axis=1)
    first_end = joined[[f"end{s}" for s in range(k)]].min(axis=1)
    found = joined[latest < first_end][[f"id{s}" for s in range(k)]]
    return sorted(map(tuple, found.to_numpy().tolist()))


def check_identity(driver: Driver, happened: Happened, sums: dict | None = None) -> None:
    """n_in = n_late + n_null + n_evicted + n_refused + n_expired + rows_held, a side and shard.

    With `sums`, counts of micro-batches are added up there and compared with the totals.
    """
    for i, shard in enumerate(happened.shards):
        for side in driver.spec.sides:
            totals = [shard[f"total_{name}_{side}"] for name in COUNTS]
            assert min(totals) >= 0, shard
            assert totals[0] == sum(totals[1:]) + shard[f"rows_held_{side}"], shard
        if sums is None:
            continue
        for name in [
            n for n in shard if shard[n] is not None and shard.get(f"total_{n}") is not None
        ]:
            sums[i, name] = sums.get((i, name), 0) + shard[name]
            assert sums[i, name] == shard[f"total_{name}"], name
