"""`simulate_workload`: several joins over several streams that share one memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import layout as L
from .errors import JoinweirError, unknown
from .metrics import recall as recall_of
from .policies import Parameters, Sizes, definition, policy_names, read_policy
from .simulation import ALLOCATIONS, Shed, split_budget, whole_number
from .state import (
    UNBOUNDED,
    empty_lists,
    index_places,
    larger,
    rehash,
    with_free_list,
    with_more_free,
)
from .structures import grown, power_of_two
from .tables import read_keys, read_times
from .units import time_length
from .workload_engine import ALIVE, LINK, MEMBER, WEIGHED_SLOT, WorkloadBatch, WorkloadStore

CHUNK = 1 << 15


@dataclass(frozen=True)
class Query:
    """A join of some of a workload's streams on a common key."""

    streams: tuple[str, ...]
    on: tuple[tuple[str, ...], ...]  # key columns of each stream
    within: tuple[Any, ...]
    name: str


def query(*streams: str, on: Any, within: Any, name: str | None = None) -> Query:
    """A join for `simulate_workload`.

    Parameters
    ----------
    streams
        Names of two or more different streams.
    on, within
        As in `simulate`: the key, and the life of a row, for all or one each.
    name
        What to call it in the result; by default what it joins.

    Examples
    --------
    >>> query("trades", "quotes", on="symbol", within=60).name
    'trades ⋈ quotes on symbol'
    """
    if len(streams) < 2 or len(set(streams)) < len(streams):
        raise JoinweirError(f"a query joins two or more different streams, not {streams!r}")
    keys: list[list[str]] = [[] for _ in streams]
    for entry in [on] if isinstance(on, str | tuple) else list(on):
        names = entry if isinstance(entry, tuple) else (entry,) * len(streams)
        if len(names) != len(streams):
            raise JoinweirError(f"on={entry!r} has {len(names)} names for {len(streams)} streams")
        for key, column in zip(keys, names):
            key.append(column)
    lives = within if isinstance(within, tuple | list) else (within,) * len(streams)
    if len(lives) != len(streams):
        raise JoinweirError(f"within has {len(lives)} values for {len(streams)} streams")
    label = name or f"{' ⋈ '.join(streams)} on {', '.join(keys[0])}"
    return Query(tuple(streams), tuple(tuple(key) for key in keys), tuple(lives), label)


@dataclass(frozen=True)
class WorkloadResult:
    """What a workload produced, and what it did not; lists are per query, tuples per stream."""

    policy: Parameters
    queries: list[str]
    n_out: list[int]
    n_exact: list[int] | None
    n_in: tuple[int, ...]
    n_null: tuple[int, ...]
    n_evicted: tuple[int, ...]
    n_refused: tuple[int, ...]
    n_expired: tuple[int, ...]
    rows_held: tuple[int, ...]
    rows: list[tuple[np.ndarray, ...]] | None = field(repr=False, default=None)
    shed: Shed | None = field(repr=False, default=None)

    @property
    def recall(self) -> float | None:
        """Share of all queries' exact results that was produced."""
        if self.n_exact is None:
            return None
        return recall_of(sum(self.n_out), sum(self.n_exact))

    def __repr__(self) -> str:
        share = "" if self.recall is None else f", {self.recall:.1%} of the exact ones"
        per = "; ".join(f"{name}: {n:,}" for name, n in zip(self.queries, self.n_out))
        return f"<{self.policy}: {sum(self.n_out):,} results{share} ({per})>"


def simulate_workload(
    streams: Mapping[str, Any],
    queries: Sequence[Query],
    *,
    time: str,
    max_rows: int | Sequence[int] | None = None,
    allocation: str | None = None,
    policy: str | Parameters = "gdj",
    accounting: str = "exact",
    closed: str = "left",
    seed: int = 0,
    rows: bool = True,
    shed: bool = True,
) -> WorkloadResult:
    """Run several joins over the same streams within one memory budget.

    Every stream has one buffer (or all share one, ``allocation="unified"``); a held row serves all
    queries of its stream, so its worth is the sum over them.

    Parameters
    ----------
    streams
        Name → table, as in `simulate`.
    queries
        From `query`.
    time, max_rows, allocation, policy, accounting, closed, seed
        As in `simulate`; a tuple of `max_rows` is per stream, in the order of `streams`.
    rows, shed
        Whether to return the results' and the shed rows' numbers.

    Examples
    --------
    >>> import joinweir as jw
    >>> r = {"a": [1, 2, 1], "b": [5, 5, 6], "ts": [0, 1, 2]}
    >>> s = {"a": [2, 1, 1], "b": [5, 6, 6], "ts": [1, 2, 3]}
    >>> jobs = [jw.query("r", "s", on="a", within=10), jw.query("r", "s", on="b", within=10)]
    >>> jw.simulate_workload({"r": r, "s": s}, jobs, time="ts", policy="full").n_out
    [5, 4]
    """
    chosen = read_policy(policy)
    declared = definition(chosen.name)
    if declared.run_workload is None or not chosen.serves_workloads():
        able = [name for name in policy_names() if definition(name).run_workload is not None]
        raise JoinweirError(
            f"policy {chosen} cannot serve several joins; these can: {', '.join(able)} "
            "(with history statistics)"
        )
    if accounting not in ("exact", "off"):
        raise unknown("accounting of a workload", accounting, ("exact", "off"))
    problem = _read(dict(streams), list(queries), time, closed)
    if allocation is not None and allocation not in ALLOCATIONS:
        raise unknown("allocation", allocation, ALLOCATIONS)
    capacity = None
    if max_rows is not None and declared.bounded:
        if isinstance(max_rows, tuple | list):
            if len(max_rows) != len(problem.names):
                raise JoinweirError(
                    f"max_rows has {len(max_rows)} values for {len(problem.names)} streams"
                )
            capacity = [whole_number(v, "max_rows") for v in max_rows]
        else:
            counts = np.bincount(problem.side, minlength=len(problem.names))
            total = whole_number(max_rows, "max_rows")
            capacity = split_budget(total, allocation or "even", counts)
            if min(capacity) < 1:
                raise JoinweirError(
                    f"max_rows={max_rows!r} leaves no room for a row of every stream; it must be "
                    f"at least {len(problem.names)}, or use allocation='unified'"
                )
    runner = _Runner(problem, chosen, capacity, accounting, seed)
    found, lost = runner.process(rows, shed)
    return runner.result(found if rows else None, lost if shed else None)


@dataclass(frozen=True)
class _Problem:
    names: list[str]
    queries: list[Query]
    members: list[tuple[int, int, int, int, int]]  # stream, query, position, members, lifetime
    members_of: np.ndarray
    ts: np.ndarray
    side: np.ndarray
    row: np.ndarray
    key: np.ndarray
    n_in: tuple[int, ...]
    n_null: tuple[int, ...]


def _read(streams: dict[str, Any], queries: list[Query], time: str, closed: str) -> _Problem:
    if closed not in ("left", "both"):
        raise unknown("closed", closed, ("left", "both"))
    if not queries:
        raise JoinweirError("a workload needs at least one query")
    names = list(streams)
    for q in queries:
        for stream in q.streams:
            if stream not in streams:
                raise unknown("stream", stream, names)
    unused = [name for name in names if not any(name in q.streams for q in queries)]
    if unused:
        raise JoinweirError(f"stream {unused[0]!r} is in no query; leave it out")
    times = [read_times(streams[name], time, name) for name in names]
    if len({(t.timestamps, t.scale) for t in times}) > 1:
        raise JoinweirError(f"time columns {time!r} are of different kinds; cast them to one")
    members: list[tuple[int, int, int, int, int]] = []
    codes: dict[tuple[int, int], np.ndarray] = {}  # (stream, query) → key, NIL = null
    for number, q in enumerate(queries):
        keys, nulls = read_keys([streams[s] for s in q.streams], q.on, q.streams)
        dense = np.unique(np.concatenate(keys), return_inverse=True)[1].astype(np.int64)
        parts = np.split(dense, np.cumsum([k.size for k in keys])[:-1])
        for position, (stream, life) in enumerate(zip(q.streams, q.within)):
            at = names.index(stream)
            if times[at].scale != 1 and not times[at].timestamps and not isinstance(life, str):
                life = round(life * times[at].scale)
            lifetime = time_length(life, "within", timestamps=times[at].timestamps)
            lifetime += closed == "both"
            if lifetime < 1:
                raise JoinweirError(f"within must be more than 0 in query {q.name!r}")
            members.append((at, number, position, len(q.streams), lifetime))
            code = parts[position] * len(queries) + number
            code[nulls[position]] = L.NIL
            codes[at, number] = code
    members.sort()
    per_stream = np.bincount([m[0] for m in members], minlength=len(names))
    members_of = np.concatenate([[0], np.cumsum(per_stream)]).astype(np.int64)
    links = int(per_stream.max())
    tables = []
    for at in range(len(names)):
        key = np.full((times[at].ticks.size, links), L.NIL, np.int64)
        for j, m in enumerate(members[members_of[at] : members_of[at + 1]]):
            key[:, j] = codes[at, m[1]]
        tables.append(key)
    counts = [t.ticks.size for t in times]
    key = np.concatenate(tables)
    ts = np.concatenate([t.ticks for t in times])
    side = np.repeat(np.arange(len(names), dtype=np.int8), counts)
    row = np.concatenate([np.arange(n) for n in counts])
    kept = (key != L.NIL).any(axis=1)
    null = np.bincount(side[~kept], minlength=len(names))
    ts, side, row, key = ts[kept], side[kept], row[kept], key[kept]
    by = np.lexsort((row, side, ts))
    return _Problem(
        names=names,
        queries=queries,
        members=members,
        members_of=members_of,
        ts=ts[by],
        side=side[by],
        row=row[by],
        key=np.ascontiguousarray(key[by]),
        n_in=tuple(counts),
        n_null=tuple(int(n) for n in null),
    )


class _Runner:
    """Arrays of a running workload."""

    def __init__(self, problem, chosen, capacity, accounting, seed) -> None:
        self.problem, self.policy, self.capacity = problem, chosen, capacity
        self.definition = definition(chosen.name)
        self.streams = len(problem.names)
        self.links = problem.key.shape[1]
        self.positions = max(m[3] for m in problem.members)
        self.store = self._new_store(accounting, seed)
        self.policy_state = self.definition.init(chosen, self._sizes(), False)

    def _sizes(self) -> Sizes:
        # Policies number rows, not keys, here: as many groups as slots.
        slots = self.store.slot.size
        return Sizes(self.streams, self.store.pool.size, slots, slots, workload=True)

    def _new_store(self, accounting: str, seed: int) -> WorkloadStore:
        n, k = 64, self.positions
        problem = self.problem
        reg = np.zeros(L.REG_SIZE, np.int64)
        reg[L.N_STREAMS] = k
        reg[L.CLOCK] = -UNBOUNDED
        reg[L.ORDERED] = 1
        reg[L.ACCOUNTING] = L.ACCOUNTINGS.index(accounting)
        reg[L.COMPETING] = self.policy.competing
        reg[L.RNG] = np.uint64(seed % 2**64).astype(np.int64)
        reg[L.PINNED] = L.NIL
        if self.policy.source_of_frequencies() is not None:
            reg[L.MAX_IDLE] = UNBOUNDED
        side = np.zeros(self.streams, L.SIDE)
        member = np.zeros(len(problem.members), MEMBER)
        for m, (stream, number, position, members, lifetime) in zip(member, problem.members):
            m["query"], m["position"], m["members"] = number, position, members
            m["lifetime"] = lifetime
            side["lifetime"][stream] = max(side["lifetime"][stream], lifetime)
        pools = np.zeros(self.streams, np.int64)
        if self.capacity is None or len(self.capacity) > 1:
            pools = np.arange(self.streams)
        side["pool"] = pools
        pool = np.zeros(int(pools.max()) + 1, L.POOL)
        pool["cap"] = self.capacity if self.capacity is not None else UNBOUNDED
        table = np.zeros(index_places(n), L.PLACE)
        table["group"] = L.NIL
        group = with_free_list(L.GROUP, n, "following")
        group["idle"] = 1
        alive = np.zeros(n * k, ALIVE)
        alive["first"] = L.NIL
        return WorkloadStore(
            reg=reg,
            counters=np.zeros((self.streams, L.COUNTERS), np.int64),
            side=side,
            pool=pool,
            expiry=empty_lists(self.streams),
            logs=empty_lists(member.size),
            table=table,
            group=group,
            cell=np.zeros(n * k, L.CELL),
            chain=np.zeros(1, L.CHAIN),
            slot=with_free_list(WEIGHED_SLOT, n, "enext"),
            log=with_free_list(L.LOGGED, n, "enext"),
            slot_imp=np.zeros(1),
            log_imp=np.zeros(1),
            totals=np.zeros(L.TOTALS),
            sketch=np.zeros((1, 1, 1, 1), np.int32),
            sketch_sum=np.zeros((1, 1, 1), np.int32),
            sketch_pane=np.zeros((1, 1), np.int64),
            sketch_out=np.zeros(1),
            scratch=np.zeros((3, k + 1), np.int64),
            nothing=np.zeros((0, 1 + k), np.int64),
            member=member,
            members_of=problem.members_of,
            link=np.zeros(n * self.links, LINK),
            alive=alive,
            newcomer=np.zeros(1),
        )

    def _make_room(self, n: int) -> None:
        store = self.store
        reg, changes = store.reg, {}
        slots = int(reg[L.N_SLOTS]) + n
        if self.capacity is not None:
            slots = min(slots, sum(self.capacity))
        if slots > store.slot.size:
            size = power_of_two(slots)
            changes["slot"] = with_more_free(store.slot, size, "enext", reg, L.FREE_SLOT)
            changes["link"] = larger(store.link, size * self.links)
        if int(reg[L.N_LOG]) + n * self.links > store.log.size:
            size = power_of_two(int(reg[L.N_LOG]) + n * self.links)
            changes["log"] = with_more_free(store.log, size, "enext", reg, L.FREE_LOG)
        if int(reg[L.N_GROUPS]) + n * self.links > store.group.size:
            old = store.group.size
            size = power_of_two(int(reg[L.N_GROUPS]) + n * self.links)
            group = with_more_free(store.group, size, "following", reg, L.FREE_GROUP)
            group["idle"][old:] = 1
            table = np.zeros(index_places(size), L.PLACE)
            table["group"] = L.NIL
            rehash(store.table, table)
            alive = larger(store.alive, size * self.positions)
            alive["first"][old * self.positions :] = L.NIL
            cell = larger(store.cell, size * self.positions)
            changes |= {"group": group, "table": table, "alive": alive, "cell": cell}
        self.store = store._replace(**changes)
        if "slot" in changes:
            fresh = self.definition.init(self.policy, self._sizes(), False)
            self.policy_state = (self.definition.grow or grown)(self.policy_state, fresh)

    def process(self, rows: bool, shed: bool):
        """Run everything; results as (query, row of each member), and shed rows."""
        p = self.problem
        found, lost = [], []
        width = 1 + self.positions
        for at in range(0, p.ts.size, CHUNK):
            n = min(CHUNK, p.ts.size - at)
            self._make_room(n)
            batch = WorkloadBatch(
                ts=p.ts[at : at + n],
                side=p.side[at : at + n],
                row=p.row[at : at + n],
                size=np.ones(n, np.int32),
                key=p.key[at : at + n],
                group=np.empty((n, self.links), np.int32),
            )
            start, room = 0, max(2 * n, 1024) if rows else 0
            while start < n:
                out = np.empty((room, width), np.int64)
                gone = np.empty((n + int(self.store.reg[L.N_SLOTS]) if shed else 0, 4), np.int64)
                start, n_out, n_gone = self.definition.run_workload(
                    self.store, self.policy_state, batch, start, out, gone
                )
                found.append(out[:n_out])
                lost.append(gone[:n_gone])
                room = max(room, 2 * int(self.store.reg[L.WANTED]))
        nothing = [np.empty((0, width), np.int64)], [np.empty((0, 4), np.int64)]
        return np.concatenate(found or nothing[0]), np.concatenate(lost or nothing[1])

    def result(self, found: np.ndarray | None, lost: np.ndarray | None) -> WorkloadResult:
        """The counts of a finished run."""
        p, store = self.problem, self.store
        per_query = {"n_out": [0] * len(p.queries), "n_exact": [0] * len(p.queries)}
        for m in store.member:
            for name, counts in per_query.items():
                counts[m["query"]] += int(m[name])

        def per_side(column: int) -> tuple[int, ...]:
            return tuple(int(n) for n in store.counters[:, column])

        rows = None
        if found is not None:
            rows = [
                tuple(found[found[:, 0] == i, 1 + j].copy() for j in range(len(q.streams)))
                for i, q in enumerate(p.queries)
            ]
        return WorkloadResult(
            policy=self.policy,
            queries=[q.name for q in p.queries],
            n_out=per_query["n_out"],
            n_exact=per_query["n_exact"] if store.reg[L.ACCOUNTING] == L.EXACT else None,
            n_in=p.n_in,
            n_null=p.n_null,
            n_evicted=per_side(L.C_EVICTED),
            n_refused=per_side(L.C_REFUSED),
            n_expired=per_side(L.C_EXPIRED),
            rows_held=tuple(int(n) for n in store.side["held"]),
            rows=rows,
            shed=None if lost is None else Shed(*(lost[:, i].copy() for i in range(4))),
        )
