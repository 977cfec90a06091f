"""One shard of a join on Spark: the engine, the rows' payload, and how both survive.

A micro-batch costs what its rows and results cost, not what is held:

*snapshot and log.* The engine is deterministic. So the durable state is a snapshot of its arrays
    and a log of the accepted rows since (21 bytes a row before compression); a new snapshot is
    begun when the log outgrows it, and written over several micro-batches.
*working copy.* At the worker the arrays are a memory-mapped file. It may lag behind: the missing
    rows are replayed from the log. It is written anew once replaying has cost as much as writing.
*payload.* Columns of held rows are kept as Arrow in segments, each written once: only rows that are
    still held at the end of their micro-batch. The engine knows a row by its *place*, which leads
    to segment and offset. When dead rows take more than a fifth, the emptiest segments are merged.

Nothing here knows Spark: state goes through `storage.KeyValue`, rows come and go as packets.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from .. import layout as L
from .. import locality, state
from ..compiling import DIGEST
from ..errors import JoinweirError, StateError
from ..policies import definition, read_policy
from ..simulation import LearningView, Problem, policy_bytes_per_row, with_capacity
from ..state import (
    JoinConfig,
    JoinState,
    Known,
    can_be_informed,
    index_bytes_per_row,
    make_batch,
)
from .packets import (
    FIRST_COLUMN,
    LATE,
    NO_TIME,
    from_ipc,
    matches_packet,
    one_batch,
    read_packet,
    shard_of,
    shed_packet,
    to_ipc,
)
from .spec import JoinSpec
from .storage import (
    DAMAGED,
    PART_BYTES,
    Folder,
    KeyValue,
    array_block,
    columns_from_bytes,
    columns_to_bytes,
    delete_parts,
    get_part,
    opened,
    put_parts,
    read_file,
    sealed,
    write_file,
)

FORMAT = 1
FRESH = 1 << 60  # numbers of rows of the running micro-batch; smaller ones are places in segments
SIDE_SHIFT, FRESH_SHIFT = 54, 48
PIECE = 1 << 20  # results in a packet, about: the more, the fewer rows are sent twice
SLACK = 1.25  # payload kept, dead rows included, over payload of held rows
SEGMENT_CHARGE = 4 + 20  # bytes of a row's slot number, time and key in a segment, with that slack
SMALL_BYTES, MOST_SMALL = PART_BYTES, 8  # so many small segments of like size are merged
TIERS = 3  # of small segments, each eight times as large as the one before
REPLAY_BYTES = 800  # replaying a logged row takes as long as writing so many bytes of a file
REPLAY_ROWS = 1000  # a log takes as long as so many rows more, however few it has (1 ms)
SNAPSHOT_BYTES = 8 << 20  # of a snapshot that are stored in a micro-batch, or twice its log
LEAST_SNAPSHOT = 1 << 18  # smaller ones are not worth a log
LOG_BYTES = 21  # of a logged row before compression
LOG_KINDS = (np.int64, np.int64, np.int8, np.int32)  # time, key, stream, size
FORGOTTEN = 64  # logs of before the snapshot that are deleted in a micro-batch; each is a call
SETTINGS = ("policy", "budget", "unit", "allocation", "accounting", "seed", "lateness")


@cache
def code_digest(policy_name: str) -> str:
    """Changes when replaying a log might give another result."""
    told = [str(DIGEST), *map(str, (SLACK, SMALL_BYTES, MOST_SMALL))]
    replayed = (Shard._replay, Shard._learn, Shard._settle, Shard._payload_outgrows_its_charge)
    parts = [definition(policy_name).module, state, *replayed, Shard._mergeable]
    if definition(policy_name).refit:
        parts.append(locality)
    for part in parts:
        told.append(inspect.getsource(part))
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


@dataclass(eq=False)
class Segment:
    """Payload of some rows of one stream that were held when it was written."""

    uid: str
    base: int  # place of its first row
    n: int
    nbytes: int
    parts: int
    slots: np.ndarray  # where the engine holds each row, if it still does
    chunks: list[pa.RecordBatch] | None = field(default=None, repr=False)

    def told(self) -> list[Any]:
        """For the durable head."""
        return [self.uid, self.base, self.n, self.nbytes, self.parts]

    @property
    def file(self) -> str:
        """Name of its working file."""
        return f"{self.uid}.rows"

    def alive(self, rows: np.ndarray) -> np.ndarray:
        """Offsets of the rows that are held; `rows` says which row a slot of the engine holds."""
        places = self.base + np.arange(self.n)
        return np.flatnonzero((self.slots >= 0) & (rows[self.slots] == places))


@dataclass
class Fresh:
    """Rows of the running micro-batch of one stream, as they came."""

    ts: np.ndarray
    key: np.ndarray
    tie: np.ndarray
    chunks: list[pa.RecordBatch]


class Shard:
    """The state of one shard, for one micro-batch."""

    def __init__(
        self, spec: JoinSpec, number: int, head: bytes | None, kv: KeyValue, root: str
    ) -> None:
        self.spec = spec
        self.number = number
        self.kv = kv
        self.root = root
        self.schemas = [pa.ipc.read_schema(pa.py_buffer(_unhex(text))) for text in spec.schemas]
        self.join: JoinState | None = None
        self.segments: list[list[Segment]] = [[] for _ in spec.sides]
        self.replayed_now = 0
        self.loaded_version = 0
        self.dropped: list[Segment] = []
        self.lost_by_restart = np.empty((0, 4), np.int64)
        self.head = self._new_head() if head is None else _read_head(head)
        self.places = list(self.head["next_place"])
        self.known_files = set(self._files())
        self.changed = False
        if head is not None:
            self._check_identity()
            self.changed = self.head["settings"] != self._settings()
        self.folder = Folder(root, self.head["state_id"], number)
        self.before = self._counts() | {
            name: list(self.head[name]) for name in ("n_in", "n_late", "n_null")
        }

    # --- the micro-batch --------------------------------------------------------------------
    def run(self, packets: Iterable[bytes]) -> Iterator[bytes]:
        """Process a micro-batch; yields packets of results and shed rows, then the state is saved.

        What changes is written to `kv` at the end; the caller stores `saved_head()` then.
        """
        spec, head = self.spec, self.head
        k = spec.streams
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(k)]
        latest = [NO_TIME] * k
        wants_shed = spec.emit != "matches"
        for data in packets:
            packet = read_packet(data)
            s = packet.side
            latest[s] = max(latest[s], packet.latest)
            nulls = packet.n_null_key + packet.n_null_time
            head["n_in"][s] += nulls
            head["n_null"][s] += nulls
            if packet.aside is not None:
                rows = self._fitted(s, packet.aside.columns[1:], packet.aside.num_rows)
                yield shed_packet(
                    s, packet.aside.column(0).to_numpy(), np.zeros(rows.num_rows, np.int64), rows
                )
            if packet.rows is not None:
                parts[s].append(packet.rows)
        fresh = [self._fresh(s, parts[s]) for s in range(k)]
        columns, late = self._accepted(fresh)
        for s in range(k):
            head["n_in"][s] += fresh[s].ts.size
            head["n_late"][s] += late[s].size
            if wants_shed and late[s].size:
                rows = _take(fresh[s].chunks, late[s], self.schemas[s])
                reason = np.full(late[s].size, LATE)
                yield shed_packet(s, reason, np.zeros(late[s].size, np.int64), rows)
        ts, side, key, row = columns
        if ts.size or self.changed:
            self._load()
            if self.changed:
                self._reconfigure()
                if wants_shed:
                    yield from self._shed_by_restart()
        if ts.size:
            self._start(side)
            learns = self._must_learn()
            if learns:
                self._learn(ts, side, key)
            size = self._charges(fresh, side, row)
            batch = make_batch(
                self.join.config, ts=ts, side=side, key=key, row=row, size=size,
                end=self._ends(ts),
            )  # fmt: skip
            gather = _Gather(self, fresh)
            for piece in self.join.process_in_pieces(
                batch, results=spec.emit != "shed", shed=wants_shed, room=PIECE
            ):
                yield from gather.packets(piece.results, piece.shed)
            self._finish(batch, gather, learns)
        self.changed = False
        head["seen_max"] = [
            max(old, new) for old, new in zip(head["seen_max"], latest, strict=True)
        ]

    def _fresh(self, s: int, parts: list[pa.RecordBatch]) -> Fresh:
        if not parts:
            none = np.empty(0, np.int64)
            return Fresh(none, none, none, [])
        ts, key, tie = (
            np.concatenate([part.column(i).to_numpy(zero_copy_only=False) for part in parts])
            for i in range(FIRST_COLUMN)
        )
        chunks = [self._fitted(s, part.columns[FIRST_COLUMN:], part.num_rows) for part in parts]
        return Fresh(ts, key, tie.astype(np.int64, copy=False), chunks)

    def _fitted(self, s: int, columns: list[pa.Array], n: int) -> pa.RecordBatch:
        """Columns in today's types; columns that were added since are null."""
        schema = self.schemas[s]
        fitted = []
        for i, wanted in enumerate(schema):
            if i >= len(columns):
                fitted.append(pa.nulls(n, wanted.type))
            elif columns[i].type == wanted.type:
                fitted.append(columns[i])
            else:
                fitted.append(columns[i].cast(wanted.type))
        if not fitted:  # Arrow cannot count rows without columns
            return pa.RecordBatch.from_arrays([pa.nulls(n)], names=["_"])
        return pa.RecordBatch.from_arrays(fitted, schema=schema)

    def _accepted(self, fresh: list[Fresh]):
        """Rows that are not late, in the order of processing: by time, stream, and content."""
        ts, side, key, tie, row, late = [], [], [], [], [], []
        for s, rows in enumerate(fresh):
            high = self.head["seen_max"][s]
            gone = np.empty(0, np.int64)
            kept = np.arange(rows.ts.size)
            if high != NO_TIME:
                is_late = rows.ts < high - self.spec.lateness[s]
                gone, kept = np.flatnonzero(is_late), np.flatnonzero(~is_late)
            late.append(gone)
            ts.append(rows.ts[kept])
            key.append(rows.key[kept])
            tie.append(rows.tie[kept])
            side.append(np.full(kept.size, s, np.int8))
            row.append(FRESH + (s << FRESH_SHIFT) + kept)
        ts, side, key, tie, row = (np.concatenate(part) for part in (ts, side, key, tie, row))
        by = order_of(ts, side, tie)
        return (ts[by], side[by], key[by], row[by]), late

    def _ends(self, ts: np.ndarray) -> np.ndarray | None:
        if self.spec.landmark is None:
            return None
        every, origin = self.spec.landmark
        return ((ts - origin) // every + 1) * every + origin

    # --- budget -----------------------------------------------------------------------------
    def _settings(self) -> dict[str, Any]:
        return json.loads(json.dumps({name: getattr(self.spec, name) for name in SETTINGS}))

    def _config(self, counts: np.ndarray) -> JoinConfig:
        """The configuration for this shard's share of the budget."""
        spec = self.spec
        config = JoinConfig(
            policy=spec.parameters(),
            lifetimes=spec.lifetimes,
            capacity=None,
            ordered=False,
            lateness=spec.lateness,
            landmarks=spec.landmark is not None,
            accounting=spec.accounting,
            seed=spec.seed + self.number,
        )
        self.head["share"] = None
        if spec.budget is None:
            return config
        share = [
            total // spec.shards + (self.number < total % spec.shards) for total in spec.budget
        ]
        self.head["share"] = share
        allocation = None if len(share) > 1 else spec.allocation
        rates = np.maximum(counts, 1) if counts.all() else np.ones(spec.streams)
        config, fixed, _ = with_capacity(config, share, spec.unit, allocation, rates)
        self.head["fixed_bytes"] = fixed
        least = self._index_charge(config) if spec.unit == "bytes" else 1
        if min(config.capacity) < least:
            raise JoinweirError(
                f"the budget leaves shard {self.number} of {spec.shards} no room for a row of every"
                f" stream ({share} {spec.unit}); give more memory, or fewer shards"
            )
        return config

    def _index_charge(self, config: JoinConfig) -> int:
        """Bytes that a held row takes besides its payload."""
        engine = index_bytes_per_row(config.streams) + policy_bytes_per_row(config)
        return engine + SEGMENT_CHARGE

    def _charges(self, fresh: list[Fresh], side: np.ndarray, row: np.ndarray) -> Any:
        config = self.join.config
        if config.unit != "bytes":
            return None
        charge = self._index_charge(config)
        size = np.zeros(side.size, np.int32)
        for s, rows in enumerate(fresh):
            if rows.ts.size:
                payload = np.concatenate([row_bytes(chunk) for chunk in rows.chunks])
                mine = side == s
                at = row[mine] - FRESH - (s << FRESH_SHIFT)
                size[mine] = charge + np.ceil(SLACK * payload[at]).astype(np.int32)
        return size

    def _start(self, side: np.ndarray) -> None:
        """The first rows say how they divide the budget, if they are to."""
        if not self.head["started"] and self.spec.allocation == "rates":
            self.join = self._join(self._config(np.bincount(side, minlength=self.spec.streams)))
            self.head["config"] = _config_dict(self.join.config)
        self.head["started"] = True

    def _must_learn(self) -> bool:
        """Whether the policy has yet to learn from rows; the first ones are what it gets."""
        wants = self.join.definition.learn is not None and self.join.config.capacity is not None
        return wants and not self.head["learned"]

    def _learn(self, ts: np.ndarray, side: np.ndarray, key: np.ndarray) -> None:
        config, declared = self.join.config, self.join.definition
        mean = 1 if config.unit == "rows" else self._index_charge(config) + 64
        view = LearningView(
            Problem(
                tables=(), ts=ts, side=side, key=key, row=_numbered(side), end=self._ends(ts),
                rows=np.bincount(side, minlength=config.streams), n_null=(), n_late=(),
                lifetimes=config.lifetimes, lateness=config.lateness, count_window=False,
                landmarks=config.landmarks,
            ),
            config,
            [max(1, config.capacity[pool] // mean) for pool in config.pools],
        )  # fmt: skip
        self.join.policy_state = declared.learn(config.policy, self.join.policy_state, view)
        self.head["learned"] = True

    # --- after the rows -----------------------------------------------------------------------
    def _finish(self, batch: L.Batch, gather: _Gather, learned: bool) -> None:
        """Keep the payload of rows that are still held, log the rows, save what is due."""
        head = self.head
        written = [self._write_segment(plan, gather) for plan in self._settle(batch)]
        head["version"] += 1
        self._write_log(batch, {"segments": written, "learned": learned})
        self._tell_segments()
        self._save_working_copy()
        self._save_snapshot(LOG_BYTES * batch.ts.size)
        self._forget_log(head["snapshot_version"], FORGOTTEN)
        self._report()

    def _write_log(self, batch: L.Batch, told: dict[str, Any]) -> None:
        """What a replay needs, under the version it leads to.

        It is told in the log itself: were it in the head, small micro-batches would write a head
        that grows with each of them until the next snapshot.
        """
        head = self.head
        n, step = batch.ts.size, max(1, PART_BYTES // LOG_BYTES)
        n_parts = -(-n // step)
        told |= {"parts": n_parts, "code": code_digest(self.join.config.policy.name)}

        def part(a: int) -> bytes:
            b = min(a + step, n)
            ts = np.diff(batch.ts[a:b], prepend=0)  # rows are sorted: small numbers
            columns = [ts, *(column[a:b] for column in (batch.key, batch.side, batch.size))]
            return columns_to_bytes(told if a == 0 else {}, columns)

        put_parts(self.kv, f"l{head['version']}", map(part, range(0, n, step)))
        head["logged"] += n
        if n_parts != 1:
            head["log_parts"][str(head["version"])] = n_parts

    def _read_log(self, version: int) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What `_write_log` told, and time, key, stream and size of the rows."""
        told, parts, i = {"parts": 1}, [], 0
        while i < told["parts"]:
            found, columns = columns_from_bytes(get_part(self.kv, f"l{version}", i), LOG_KINDS)
            told = told if i else found
            columns[0] = np.cumsum(columns[0])
            parts.append(columns)
            i += 1
        return told, [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _forget_log(self, last: int, most: int) -> None:
        """Delete logs that lead to versions up to the last one: so many now, the rest later."""
        head = self.head
        stop = min(last + 1, head["first_log"] + most)
        for version in range(head["first_log"], stop):
            delete_parts(self.kv, f"l{version}", head["log_parts"].pop(str(version), 1))
        head["first_log"] = max(head["first_log"], stop)

    def _settle(self, batch: L.Batch, told: list | None = None) -> list[_Plan]:
        """Give new rows their places, and merge segments with few living rows.

        Deterministic: a replay does the same, with the sizes and names that were written.
        """
        store = self.join.store
        plans = []
        too_much = self._payload_outgrows_its_charge()
        for s in range(self.spec.streams):
            mine = np.flatnonzero((batch.side == s) & (batch.alike != L.NIL))
            slots = batch.alike[mine]
            held = store.slot["row"][slots] == batch.row[mine]
            mine, slots = mine[held], slots[held]
            merged = self._mergeable(s, mine.size, too_much)
            if not mine.size and not merged:
                continue
            pieces = [(segment, segment.alive(store.slot["row"])) for segment in merged]
            old_slots = [segment.slots[offsets] for segment, offsets in pieces]
            slots = np.concatenate([*old_slots, slots]).astype(np.int32)
            base = self.head["next_place"][s]
            self.head["next_place"][s] += slots.size
            base += s << SIDE_SHIFT
            store.slot["row"][slots] = base + np.arange(slots.size)
            self.segments[s] = [g for g in self.segments[s] if g not in merged]
            if slots.size:
                segment = Segment("", base, slots.size, 0, 0, slots)
                if told is not None:
                    segment.uid, segment.nbytes, segment.parts = told[len(plans)]
                self.segments[s].append(segment)
                plans.append(_Plan(s, segment, pieces, batch.row[mine]))
            self.dropped += merged
        return plans

    def _payload_outgrows_its_charge(self) -> bool:
        """Whether segments, dead rows included, take more than held rows are charged for them."""
        store, config = self.join.store, self.join.config
        if config.unit != "bytes":
            return False
        charged = int(store.pool["used"].sum()) - int(store.reg[L.N_LOG] * store.reg[L.LOG_BYTES])
        engine = self._index_charge(config) - SEGMENT_CHARGE
        charged -= int(store.side["held"].sum()) * engine
        stored = sum(g.nbytes + 4 * g.n for segments in self.segments for g in segments)
        return stored > charged

    def _mergeable(self, s: int, n_new: int, too_much: bool) -> list[Segment]:
        segments = self.segments[s]
        stored = sum(segment.n for segment in segments)
        held = int(self.join.store.side["held"][s]) - n_new
        if stored > SLACK * held + 64 or (too_much and stored > held):
            rows = self.join.store.slot["row"]
            dead = {g.uid: g.n - g.alive(rows).size for g in segments}
            chosen = []
            for segment in sorted(segments, key=lambda g: (-dead[g.uid] / g.n, g.base)):
                if dead[segment.uid] == 0 or (stored - held) * 16 <= stored:
                    break
                chosen.append(segment)
                stored -= dead[segment.uid]
            return [g for g in segments if g in chosen]
        # By size, so that a row is written once a tier: were all small ones merged, rows of small
        # micro-batches would be written some thirty times until they make a large segment.
        for tier in range(TIERS):
            low, high = SMALL_BYTES >> 3 * (TIERS - tier), SMALL_BYTES >> 3 * (TIERS - 1 - tier)
            alike = [g for g in segments if (low if tier else 0) <= g.nbytes < high]
            if len(alike) >= MOST_SMALL:
                return alike
        return []

    def _write_segment(self, plan: _Plan, gather: _Gather) -> list[Any]:
        s, segment = plan.side, plan.segment
        batches = []
        for old, offsets in plan.pieces:
            if offsets.size:
                batches.append(_take(self._chunks(s, old), offsets, None))
        if plan.fresh.size:
            at = plan.fresh - FRESH - (s << FRESH_SHIFT)
            rows = gather.fresh[s]
            payload = _take(rows.chunks, at, self.schemas[s])
            batches.append(
                pa.RecordBatch.from_arrays(
                    [pa.array(rows.ts[at]), pa.array(rows.key[at]), *payload.columns],
                    names=["ts", "key", *payload.schema.names],
                )
            )
        whole = one_batch(batches, batches[-1].schema)
        step = max(1, whole.num_rows * PART_BYTES // max(1, whole.nbytes))
        chunks = [whole.slice(a, step) for a in range(0, whole.num_rows, step)]
        blocks = [to_ipc(chunk) for chunk in chunks]
        segment.uid = secrets.token_hex(8)
        segment.nbytes = whole.nbytes
        segment.parts = put_parts(self.kv, f"p{segment.uid}", blocks)
        segment.chunks = [from_ipc(block) for block in blocks]
        write_file(self.folder.file(segment.file), {}, blocks)
        return [segment.uid, segment.nbytes, segment.parts]

    def _chunks(self, s: int, segment: Segment) -> list[pa.RecordBatch]:
        """A segment's rows with time and key: from the working file, else from the durable copy."""
        if segment.chunks is None:
            name = f"p{segment.uid}"
            found = read_file(self.folder.file(segment.file))
            if found is not None:
                buffers = [pa.py_buffer(block) for block in found[1]]
            else:
                buffers = [get_part(self.kv, name, i) for i in range(segment.parts)]
                write_file(self.folder.file(segment.file), {}, buffers)
            chunks = [from_ipc(buffer) for buffer in buffers]
            if sum(chunk.num_rows for chunk in chunks) != segment.n:
                raise StateError(DAMAGED.format(what=f"{name} has another number of rows"))
            segment.chunks = [self._today(s, chunk) for chunk in chunks]
        return segment.chunks

    def _today(self, s: int, chunk: pa.RecordBatch) -> pa.RecordBatch:
        payload = self._fitted(s, chunk.columns[2:], chunk.num_rows)
        return pa.RecordBatch.from_arrays(
            [*chunk.columns[:2], *payload.columns], names=["ts", "key", *payload.schema.names]
        )

    def _payload(self, s: int, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """A segment's rows as fresh ones look: the same columns, and nullable or not."""
        schema = self.schemas[s]
        if not len(schema):
            return chunk.select([2])
        return pa.RecordBatch.from_arrays(chunk.columns[2:], schema=schema)

    # --- saving -------------------------------------------------------------------------------
    def _tell_segments(self) -> None:
        self.head["segments"] = [[g.told() for g in segments] for segments in self.segments]
        for segment in self.dropped:
            delete_parts(self.kv, f"p{segment.uid}", segment.parts)
        self.dropped = []

    def _image(self) -> tuple[dict[str, Any], list[Any]]:
        arrays = self.join.arrays()
        for s, segments in enumerate(self.segments):
            for segment in segments:
                arrays[f"slots/{s}/{segment.uid}"] = segment.slots
        head = {
            "layout": L.LAYOUT_VERSION,
            "version": self.head["version"],
            "segments": [[g.told() for g in segments] for segments in self.segments],
            "next_place": self.head["next_place"],
            "arrays": {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()},
        }
        return head, [array_block(a) for a in arrays.values()]

    def _save_working_copy(self) -> None:
        head = self.head
        behind = head["logged"] - head["base_logged"]
        behind += REPLAY_ROWS * (head["version"] - head["base_version"])
        head["replayed"] += self.replayed_now
        size = sum(a.nbytes for a in self.join.arrays().values())
        if head["base"] is None or (head["replayed"] + behind) * REPLAY_BYTES > size:
            head["base"] = f"{head['version']}-{secrets.token_hex(8)}.base"
            head["base_version"], head["base_logged"] = head["version"], head["logged"]
            head["base_bytes"] = write_file(self.folder.file(head["base"]), *self._image())
            head["replayed"] = 0

    def _save_snapshot(self, just_logged: int) -> None:
        """Go on storing the snapshot that was begun, or begin one when the log has grown enough."""
        head = self.head
        pending = head["pending"]
        if pending is not None and self.folder.size(pending["file"]) != pending["bytes"]:
            delete_parts(self.kv, f"s{pending['version']}", pending["done"])
            pending = head["pending"] = None  # the worker that had it is gone
        if pending is None:
            logged = LOG_BYTES * (head["logged"] - head["snapshot_logged"])
            if head["base_version"] <= head["snapshot_version"]:
                return
            if logged < max(LEAST_SNAPSHOT, head["base_bytes"]):
                return
            pending = self._snapshot_of_base()
        head["pending"] = pending
        self._store_snapshot(max(SNAPSHOT_BYTES, 2 * just_logged))

    def _snapshot_of_base(self) -> dict[str, Any]:
        head = self.head
        return {
            "version": head["base_version"], "logged": head["base_logged"], "file": head["base"],
            "bytes": head["base_bytes"], "parts": -(-head["base_bytes"] // PART_BYTES), "done": 0,
        }  # fmt: skip

    def _store_snapshot(self, quota: int) -> None:
        head, pending = self.head, self.head["pending"]
        with open(self.folder.file(pending["file"]), "rb") as file:
            file.seek(pending["done"] * PART_BYTES)
            while pending["done"] < pending["parts"] and quota > 0:
                data = file.read(PART_BYTES)
                self.kv.put(f"s{pending['version']}.{pending['done']}", sealed(data))
                pending["done"] += 1
                quota -= len(data)
        if pending["done"] == pending["parts"]:
            if head["snapshot_version"] > 0:
                delete_parts(self.kv, f"s{head['snapshot_version']}", head["snapshot_parts"])
            head["snapshot_version"] = pending["version"]
            head["snapshot_parts"] = pending["parts"]
            head["snapshot_logged"] = pending["logged"]
            head["pending"] = None

    def _save_everything(self) -> None:
        """After a change that the log does not tell: working copy and snapshot at once."""
        head = self.head
        head["version"] += 1
        head["log_parts"][str(head["version"])] = 0  # no log leads here
        self._tell_segments()
        head["base"] = None
        head["replayed"] = self.replayed_now = 0
        if head["pending"] is not None:
            delete_parts(self.kv, f"s{head['pending']['version']}", head["pending"]["done"])
        self._save_working_copy()
        head["pending"] = self._snapshot_of_base()
        self._store_snapshot(2 * head["base_bytes"] + 1)
        self._report()

    def saved_head(self) -> bytes:
        """The head to be stored; working files that it does not need are removed."""
        self.head["token"] = secrets.token_hex(8)
        needed = set(self._files())
        self.folder.keep_only(needed | self.known_files)
        self.folder.remove(self.known_files_before - needed - self.known_files)
        self.head["files_before"] = sorted(self.known_files)
        return sealed(json.dumps(self.head).encode())

    @property
    def known_files_before(self) -> set[str]:
        """Working files of the version before the one that was loaded: nobody needs them."""
        return set(self.head.get("files_before", ()))

    def _files(self) -> list[str]:
        head = self.head
        files = [f"{told[0]}.rows" for segments in head["segments"] for told in segments]
        files += [head["base"]] if head["base"] else []
        files += [head["pending"]["file"]] if head["pending"] else []
        return files

    # --- loading ------------------------------------------------------------------------------
    def _new_head(self) -> dict[str, Any]:
        k = self.spec.streams
        return {
            "format": FORMAT, "layout": L.LAYOUT_VERSION, "state_id": secrets.token_hex(8),
            "identity": self.spec.identity, "settings": self._settings(), "config": None,
            "payload": _as_json(self.spec.payload), "hidden": list(self.spec.hidden),
            "started": False, "learned": False, "uncounted": False, "version": 0,
            "seen_max": [NO_TIME] * k, "n_in": [0] * k, "n_late": [0] * k, "n_null": [0] * k,
            "earlier": _no_counts(k), "report": _no_counts(k), "rows_held": [0] * k,
            "bytes_held": 0, "share": None, "fixed_bytes": 0, "next_place": [0] * k,
            "segments": [[] for _ in range(k)], "logged": 0, "first_log": 1, "log_parts": {},
            "base": None, "base_version": 0, "base_logged": 0, "base_bytes": 0, "replayed": 0,
            "pending": None, "snapshot_version": 0, "snapshot_logged": 0, "snapshot_parts": 0,
            "token": "", "files_before": [],
        }  # fmt: skip

    def _check_identity(self) -> None:
        head, spec = self.head, self.spec
        if head["format"] != FORMAT:
            raise StateError(
                f"the checkpoint was written by another joinweir (state format {head['format']}, "
                f"this one reads {FORMAT}); use that version, or a new checkpointLocation"
            )
        for name, now in spec.identity.items():
            was = head["identity"].get(name)
            if was != now:
                raise StateError(
                    f"the checkpoint belongs to a join with {name} = {was}, this one has {now}; "
                    f"go back to the old {name}, or start with a new checkpointLocation"
                )
        for s, (was, now) in enumerate(zip(head["payload"], _as_json(spec.payload), strict=True)):
            added = now[len(was) :]
            same = [c[:2] for c in was] == [c[:2] for c in now[: len(was)]]
            if not same or not all(nullable for _, _, nullable in added):
                then, today = (", ".join(f"{n} {t}" for n, t, _ in side) for side in (was, now))
                raise StateError(
                    f"the checkpoint holds {spec.sides[s]} rows with columns ({then}), this join "
                    f"has ({today}); only nullable columns may be added, at the end; else start "
                    "with a new checkpointLocation"
                )
        if head["hidden"] != list(spec.hidden):
            raise StateError(
                "the checkpoint holds rows whose key columns are carried otherwise; go back to the "
                "old columns= and emit=, or start with a new checkpointLocation"
            )
        head["payload"] = _as_json(spec.payload)

    def _load(self) -> None:
        """Bring the engine to the version of the head."""
        head = self.head
        if head["config"] is None:
            self._remember_known()
            self.join = self._join(self._config(np.array(head["n_in"])))
            head["config"] = _config_dict(self.join.config)
        config = _config_of(head["config"])
        if self.join is None:
            self.join = self._from_files(config)
        if self.join is None or not self._replay():
            self._from_payload(config)
        elif [[g.told() for g in segments] for segments in self.segments] != head["segments"]:
            raise StateError(DAMAGED.format(what="replaying the log gave other segments"))

    def _join(self, config: JoinConfig) -> JoinState:
        """A join without rows; it knows what was known when the query was first started."""
        join = JoinState(config)
        if self.head.get("known") and can_be_informed(config.policy):
            told = json.loads(bytes(get_part(self.kv, "known", 0)))
            join.inform(
                [
                    Known(np.array(key, np.int64), np.array(count, np.int64), rows, np.array(a), *b)
                    for rows, key, count, a, *b in told
                ]
            )
        return join

    def _remember_known(self) -> None:
        """Keep what the query was told of the streams, as far as it is of this shard's keys.

        A later start may be told other things; a log is replayed from what was known then.
        """
        spec = self.spec
        if not spec.known:
            return
        mine = []
        for rows, key, count, a, b, rate in spec.known:
            key, count = np.array(key, np.int64), np.array(count, np.int64)
            here = shard_of(key, spec.shards) == self.number
            others = max(0, rows - int(count.sum())) // spec.shards  # of keys that are not listed
            a = locality.thinned(np.array(a, np.float64), 1 / spec.shards)
            b, rate = 1 - float(a.sum()), None if rate is None else rate / spec.shards
            told = (int(count[here].sum()) + others, key[here], count[here], a)
            mine.append([v.tolist() if isinstance(v, np.ndarray) else v for v in told] + [b, rate])
        put_parts(self.kv, "known", [json.dumps(mine).encode()])
        self.head["known"] = 1

    def _from_files(self, config: JoinConfig) -> JoinState | None:
        head = self.head
        found = read_file(self.folder.file(head["base"])) if head["base"] else None
        if found is None and head["snapshot_version"]:
            name = f"s{head['snapshot_version']}"
            file = self.folder.file(f"{head['snapshot_version']}-{secrets.token_hex(8)}.base")
            with open(file, "wb") as copy:
                for i in range(head["snapshot_parts"]):
                    copy.write(get_part(self.kv, name, i))
            found = read_file(file)
            if found is None:
                raise StateError(DAMAGED.format(what=f"{name} is not whole"))
            head["base"], head["base_version"] = file.name, head["snapshot_version"]
            head["base_logged"], head["base_bytes"] = head["snapshot_logged"], file.stat().st_size
        if found is None:
            head["base"] = None
            self.segments = [[] for _ in self.spec.sides]
            head["next_place"] = [0] * self.spec.streams
            return self._join(config)
        told, blocks = found
        if told["layout"] != L.LAYOUT_VERSION:
            return None
        kinds = JoinState(config).arrays()
        arrays = {}
        for (name, (kind, shape)), block in zip(told["arrays"].items(), blocks, strict=True):
            dtype = kinds[name].dtype if name in kinds else np.dtype(kind)
            arrays[name] = np.frombuffer(block, dtype).reshape(shape)
        self.loaded_version = told["version"]
        self.segments = [
            [Segment(*values, arrays[f"slots/{s}/{values[0]}"]) for values in segments]
            for s, segments in enumerate(told["segments"])
        ]
        head["next_place"] = told["next_place"]
        return JoinState.from_arrays(config, arrays)

    def _replay(self) -> bool:
        """Process logged rows anew; False if other code logged them, which may have done other
        things."""
        code = code_digest(self.join.config.policy.name)
        while self.loaded_version < self.head["version"]:
            version = self.loaded_version + 1
            told, (ts, key, side, size) = self._read_log(version)
            if told["code"] != code:
                return False
            row = FRESH + (side.astype(np.int64) << FRESH_SHIFT) + np.arange(ts.size)
            if told["learned"]:
                self._learn(ts, side, key)
            batch = make_batch(
                self.join.config, ts=ts, side=side, key=key, row=row, size=size, end=self._ends(ts)
            )
            for _ in self.join.process_in_pieces(batch, results=False):
                pass
            self._settle(batch, told["segments"])
            self.dropped = []
            self.loaded_version = version
            self.replayed_now += ts.size + REPLAY_ROWS
        return True

    def _from_payload(self, config: JoinConfig) -> None:
        """A join made anew from the rows whose payload is there.

        For a state that was written by other code, whose log cannot be replayed. Rows that had been
        evicted since their payload was written may come back, and are then counted as evicted no
        more; the policy chooses again, and learns again.
        """
        head = self.head
        self.segments = [
            [Segment(*told, np.full(told[2], L.NIL, np.int32)) for told in segments]
            for segments in head["segments"]
        ]
        self.join = self._join(config)
        head["next_place"] = self.places  # not as an older copy or half a replay left them
        ts, key, side, row, size = [], [], [], [], []
        for s, segments in enumerate(self.segments):
            for segment in segments:
                chunks = self._chunks(s, segment)
                ts += [chunk.column(0).to_numpy() for chunk in chunks]
                key += [chunk.column(1).to_numpy() for chunk in chunks]
                side.append(np.full(segment.n, s, np.int8))
                row.append(segment.base + np.arange(segment.n))
                size += [self._stored_charge(config, chunk) for chunk in chunks]
        if ts:
            ts, key, side, row, size = (np.concatenate(part) for part in (ts, key, side, row, size))
            for s in range(self.spec.streams):  # as they were: rows may have come since
                if head["seen_max"][s] != NO_TIME:
                    self.join.store.side["seen_max"][s] = head["seen_max"][s]
            by = np.lexsort((row, side, ts))
            batch = make_batch(
                config, ts=ts[by], side=side[by], key=key[by], row=row[by], size=size[by],
                end=self._ends(ts[by]), action=np.full(by.size, L.INSERTS, np.uint8),
            )  # fmt: skip
            self.join.process(batch, results=False)
            places = {g.base: g for segments in self.segments for g in segments}
            bases = np.array(sorted(places))
            at = np.searchsorted(bases, batch.row, side="right") - 1
            for i, base in enumerate(bases.tolist()):
                mine = np.flatnonzero(at == i)
                places[base].slots[batch.row[mine] - base] = batch.alike[mine]
        self._count_as_before()
        head["learned"] = False
        self._save_everything()

    def _count_as_before(self) -> None:
        """After `_from_payload`: go on with the counts of the head; no row may disappear."""
        head, store = self.head, self.join.store
        expired_now = store.counters[:, L.C_EXPIRED].tolist()
        store.counters[:] = 0
        store.reg[L.N_EXACT] = store.reg[L.N_OUT] = 0
        store.sketch_out[:] = 0
        earlier = _as_json(head["report"])
        for s in range(self.spec.streams):
            fewer = head["rows_held"][s] - int(store.side["held"][s])
            expired = max(0, min(fewer, expired_now[s]))
            earlier["n_expired"][s] += expired
            earlier["n_evicted"][s] += fewer - expired
        head["earlier"] = earlier

    def _stored_charge(self, config: JoinConfig, chunk: pa.RecordBatch) -> np.ndarray:
        if config.unit != "bytes":
            return np.ones(chunk.num_rows, np.int32)
        payload = row_bytes(chunk.select(list(range(2, chunk.num_columns))))
        return (self._index_charge(config) + np.ceil(SLACK * payload)).astype(np.int32)

    def _reconfigure(self) -> None:
        """Go on under another policy, budget, accounting or lateness."""
        head = self.head
        old = self.join
        earlier = self._counts()
        config = self._config(np.array(head["n_in"]))
        head["config"] = _config_dict(config)
        slot = old.store.slot
        for s, segments in enumerate(self.segments):
            for segment in segments:
                alive = segment.alive(slot["row"])
                chunks = self._chunks(s, segment)
                charge = np.concatenate([self._stored_charge(config, chunk) for chunk in chunks])
                slot["size"][segment.slots[alive]] = charge[alive]
        self.join, lost = old.rebuilt(config)
        new = self.join.store.slot["row"]
        held = np.flatnonzero(new != L.NIL)
        held = held[np.argsort(new[held])]
        for segments in self.segments:
            for segment in segments:
                first, last = np.searchsorted(new[held], [segment.base, segment.base + segment.n])
                slots = np.full(segment.n, L.NIL, np.int32)
                slots[new[held[first:last]] - segment.base] = held[first:last]
                segment.slots = slots
        head["earlier"] = earlier
        np.add.at(self.join.store.counters, (lost[:, 0], L.C_EVICTED), 1)
        self.lost_by_restart = lost
        head["settings"] = self._settings()
        head["learned"] = False
        head["uncounted"] |= old.config.accounting == "off" and head["logged"] > 0
        self._save_everything()

    def _shed_by_restart(self) -> Iterator[bytes]:
        none = [Fresh(*(np.empty(0, np.int64) for _ in range(3)), []) for _ in self.spec.sides]
        k = self.spec.streams
        yield from _Gather(self, none).packets(np.empty((0, k), np.int64), self.lost_by_restart)

    # --- what was lost ------------------------------------------------------------------------
    def _counts(self) -> dict[str, Any]:
        """Cumulative counts, of earlier configurations too."""
        if self.join is None:
            return json.loads(json.dumps(self.head["report"]))
        earlier, store = self.head["earlier"], self.join.store
        counts = json.loads(json.dumps(earlier))
        for name, column in (
            ("n_evicted", L.C_EVICTED), ("n_refused", L.C_REFUSED), ("n_expired", L.C_EXPIRED)
        ):  # fmt: skip
            for s in range(self.spec.streams):
                counts[name][s] += int(store.counters[s, column])
        counts["n_out"] += int(store.reg[L.N_OUT])
        exact, error = self.join.exact_size()
        counts["n_exact"] += exact or 0
        counts["variance"] += error**2
        return counts

    def _report(self) -> None:
        head, join = self.head, self.join
        head["report"] = self._counts()
        head["rows_held"] = [int(n) for n in join.store.side["held"]]
        if join.config.unit == "bytes":
            head["bytes_held"] = int(join.store.pool["used"].sum()) + head["fixed_bytes"]
        else:
            payload = sum(g.nbytes for segments in self.segments for g in segments)
            head["bytes_held"] = join.bytes_of_state() + payload

    def metrics(self) -> tuple[list[int], list[float | None]]:
        """Counts of the micro-batch and since the start, in the order of `metric_names`."""
        head, now, was = self.head, self.head["report"], self.before
        counts = []
        for s in range(self.spec.streams):
            for name in ("n_in", "n_late", "n_null"):
                counts += [head[name][s] - was[name][s], head[name][s]]
            for name in ("n_evicted", "n_refused", "n_expired"):
                counts += [now[name][s] - was[name][s], now[name][s]]
            counts += [head["rows_held"][s], head["seen_max"][s]]
        counts += [now["n_out"] - was["n_out"], now["n_out"], head["bytes_held"]]
        if self.spec.accounting == "off":
            return counts, [None, None, None]
        exact = now["n_exact"] - was["n_exact"]
        if head["uncounted"]:  # the total lacks what came while nobody counted
            return counts, [exact, None, None]
        return counts, [exact, now["n_exact"], now["variance"]]


@dataclass
class _Plan:
    """A segment to be written: living rows of old segments, and rows of the micro-batch."""

    side: int
    segment: Segment
    pieces: list[tuple[Segment, np.ndarray]]
    fresh: np.ndarray


class _Gather:
    """Payload of results and shed rows: of segments and of the running micro-batch."""

    def __init__(self, shard: Shard, fresh: list[Fresh]) -> None:
        self.shard = shard
        self.fresh = fresh
        k = shard.spec.streams
        self.chunks: list[list[pa.RecordBatch] | None] = [None] * k
        self.segments = [list(segments) for segments in shard.segments]
        self.bases = [np.array([g.base for g in gs], np.int64) for gs in self.segments]
        counts = [np.array([g.n for g in gs], np.int64) for gs in self.segments]
        self.before = [np.concatenate([[0], np.cumsum(n)]) for n in counts]
        sizes = [int(b[-1]) + f.ts.size for b, f in zip(self.before, fresh, strict=True)]
        self.marked = [np.zeros(n, np.bool_) for n in sizes]
        self.number = [np.zeros(n, np.int32) for n in sizes]

    def positions(self, s: int, row: np.ndarray) -> np.ndarray:
        """Where a row stands among all rows whose payload is at hand."""
        stored = int(self.before[s][-1])
        found = row - (FRESH + (s << FRESH_SHIFT) - stored)
        old = np.flatnonzero(row < FRESH)
        if old.size:
            places = row[old]
            at = np.searchsorted(self.bases[s], places, side="right") - 1
            found[old] = places - self.bases[s][at] + self.before[s][at]
        return found

    def rows(self, s: int, positions: np.ndarray) -> pa.RecordBatch:
        """Payload at sorted positions."""
        shard = self.shard
        if self.chunks[s] is None:
            chunks = []
            for segment in self.segments[s]:
                chunks += [shard._payload(s, chunk) for chunk in shard._chunks(s, segment)]
            self.chunks[s] = chunks + self.fresh[s].chunks
        return _take(self.chunks[s], positions, shard.schemas[s])

    def packets(self, results: np.ndarray, shed: np.ndarray) -> Iterator[bytes]:
        """Packets of some results and shed rows."""
        k = len(self.fresh)
        if results.shape[0]:
            rows, index = [], []
            for s in range(k):
                at = self.positions(s, results[:, s])
                marked, number = self.marked[s], self.number[s]
                marked[at] = True
                distinct = np.flatnonzero(marked)
                marked[distinct] = False
                number[distinct] = np.arange(distinct.size, dtype=np.int32)
                rows.append(self.rows(s, distinct))
                index.append(number[at])
            yield matches_packet(rows, index)
        for s in range(k) if shed.shape[0] else ():
            mine = shed[shed[:, 0] == s]
            if mine.shape[0]:
                at = self.positions(s, mine[:, 1])
                by = np.argsort(at)
                yield shed_packet(s, mine[by, 2], mine[by, 3], self.rows(s, at[by]))


# --- helpers --------------------------------------------------------------------------------------
def order_of(ts: np.ndarray, side: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Order by (time, stream, content); rows mostly come in runs by time, which a merge sort likes.

    Only rows of equal time are compared further: sorting all by three keys takes 4 × as long.
    """
    by = np.argsort(ts, kind="stable")
    sorted_ts = ts[by]
    same = np.zeros(ts.size + 1, np.bool_)
    same[1:-1] = sorted_ts[1:] == sorted_ts[:-1]
    tied = np.flatnonzero(same[1:] | same[:-1])
    if tied.size:
        rows = by[tied]
        by[tied] = rows[np.lexsort((tie[rows], side[rows], ts[rows]))]
    return by


def row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of each row's columns as Arrow holds them; of nested columns, the mean."""
    n = batch.num_rows
    fixed = 0.0
    total = np.zeros(n, np.float64)
    for column in batch.columns:
        kind = column.type
        fixed += 1 / 8
        if n and str(kind) in ("string", "binary", "large_string", "large_binary"):
            width = np.int64 if str(kind).startswith("large") else np.int32
            offsets = np.frombuffer(column.buffers()[1], width)[column.offset :][: n + 1]
            total += np.diff(offsets)
            fixed += offsets.itemsize
        elif pa.types.is_boolean(kind):
            fixed += 1 / 8
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            fixed += kind.bit_width / 8
        elif n:
            fixed += column.nbytes / n
    return total + fixed


def _take(chunks: list[pa.RecordBatch], at: np.ndarray, schema: pa.Schema | None):
    """Rows at these positions of the chunks one after the other, in the order given if one chunk
    has them all, else for sorted positions."""
    starts = np.concatenate([[0], np.cumsum([chunk.num_rows for chunk in chunks])])
    if len(chunks) == 1:
        return chunks[0].take(pa.array(at))
    back = None
    if at.size > 1 and (at[1:] < at[:-1]).any():
        by = np.argsort(at, kind="stable")
        back = np.empty(at.size, np.int64)
        back[by] = np.arange(at.size)
        at = at[by]
    cuts = np.searchsorted(at, starts)
    taken = [
        chunk.take(pa.array(at[cuts[i] : cuts[i + 1]] - starts[i]))
        for i, chunk in enumerate(chunks)
        if cuts[i] < cuts[i + 1]
    ]
    if not taken:
        return chunks[0].slice(0, 0) if chunks else pa.RecordBatch.from_pylist([], schema)
    whole = one_batch(taken, taken[0].schema)
    return whole if back is None else whole.take(pa.array(back))


def _numbered(side: np.ndarray) -> np.ndarray:
    """Numbers of rows within their stream."""
    number = np.empty(side.size, np.int64)
    for s in np.unique(side):
        mine = side == s
        number[mine] = np.arange(int(mine.sum()))
    return number


def _read_head(saved: bytes) -> dict[str, Any]:
    return json.loads(opened(saved, "the head").to_pybytes())


def _config_dict(config: JoinConfig) -> dict[str, Any]:
    return dataclasses.asdict(config) | {"policy": str(config.policy)}


def _config_of(values: dict[str, Any]) -> JoinConfig:
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return JoinConfig(**plain | {"policy": read_policy(values["policy"])})


def _no_counts(k: int) -> dict[str, Any]:
    names = ("n_evicted", "n_refused", "n_expired")
    return {name: [0] * k for name in names} | {"n_out": 0, "n_exact": 0, "variance": 0.0}


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def metric_names(sides: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Names of what `Shard.metrics` returns."""
    counts = []
    for side in sides:
        for name in ("n_in", "n_late", "n_null", "n_evicted", "n_refused", "n_expired"):
            counts += [f"{name}_{side}", f"total_{name}_{side}"]
        counts += [f"rows_held_{side}", f"watermark_{side}"]
    counts += ["n_out", "total_n_out", "bytes_held"]
    return counts, ["n_exact", "total_n_exact", "total_n_exact_variance"]
