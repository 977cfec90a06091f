"""A running join: its configuration, its arrays, and how they are saved.

`JoinConfig` says what is joined and under which budget; it never changes. `JoinState` holds the
arrays and feeds batches to the policy's compiled loop. Neither reads a clock or does I/O.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import layout as L
from .compiling import DIGEST, kernel
from .engine import add_group, find_group
from .errors import JoinweirError, StateError
from .policies import Parameters, Sizes, definition
from .structures import grown, mix, power_of_two

CHUNK = 1 << 16  # rows between two looks at the room left in the arrays; fewer in a small join,
LEAST_CHUNK = 1 << 12  # since arrays have room for a chunk more than they hold
UNBOUNDED = 1 << 62
GHOST_ROWS = 1024  # a ghost that tunes a policy holds about this many rows, if the join holds more
GHOST_SHARE = 8  # of a budget in bytes all ghosts together have this part
# With more, rows that all match the arrival need not match each other, which sketches cannot tell.
SKETCHES_TWO_LATE_STREAMS = (
    "accounting='sketch' counts late rows of two streams only; use 'exact' or 'off'"
)
_HEADER = struct.Struct("<6sHIQ32s")  # magic, version, crc32, length, config digest


@dataclass(frozen=True)
class JoinConfig:
    """A join on one common key of two or more streams.

    Parameters
    ----------
    policy
        What gives way when memory is full.
    lifetimes
        Life of a row per stream, in ticks of the time column (a row is dead at ts + lifetime).
    capacity
        Budget per stream; or a single number for one pool that all streams share. None: unbounded.
    unit
        ``rows`` or ``bytes``: what `capacity` counts.
    ordered
        True if rows come in time order over all streams, so that a row can be forgotten as soon as
        any row is later than its end. False: only once the *other* streams have passed it, less
        `lateness`.
    count_window
        Life in rows of the own stream instead of ticks.
    landmarks
        True if each row's end is given with it rather than by its stream's lifetime.
    importance
        How a result's importance comes from those of its rows (`layout.COMBINATIONS`). None: rows
        have none, and none is summed up.
    max_idle
        How many keys to remember for their frequency alone. None: all.
    """

    policy: Parameters
    lifetimes: tuple[int, ...]
    capacity: tuple[int, ...] | None
    unit: str = "rows"
    order: str = "probe_first"
    ordered: bool = True
    lateness: tuple[int, ...] = ()
    count_window: bool = False
    landmarks: bool = False
    accounting: str = "exact"
    seed: int = 0
    importance: str | None = None
    max_idle: int | None = None
    sketch_depth: int = 8
    sketch_width: int = 2048
    sketch_panes: int = 32

    @property
    def streams(self) -> int:
        """How many streams are joined."""
        return len(self.lifetimes)

    @property
    def pools(self) -> tuple[int, ...]:
        """Which pool each stream draws on."""
        one = self.capacity is not None and len(self.capacity) == 1
        return (0,) * self.streams if one else tuple(range(self.streams))

    @property
    def groups_match_as_one(self) -> bool:
        """Whether an arrival always matches all held rows of its key, or none."""
        return self.ordered and self.order == "probe_first"

    def digest(self) -> bytes:
        """Identifies what a saved state can be continued with."""
        fields = dataclasses.asdict(self) | {"policy": str(self.policy)}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class Known:
    """What is known of a stream before its first row.

    Parameters
    ----------
    key, count, rows
        How often the most frequent keys came among so many rows.
    a, b
        Its locality model: of a row, the chance to repeat the i-th last one, and to be fresh.
    rate
        Rows per tick; None if there was no time.
    """

    key: np.ndarray
    count: np.ndarray
    rows: int
    a: np.ndarray
    b: float
    rate: float | None


def can_be_informed(policy: Parameters) -> bool:
    """Whether a policy has a use for what is known of the streams beforehand."""
    return policy.source_of_frequencies() == "history" or bool(definition(policy.name).inform)


class Outcome(NamedTuple):
    """What a batch brought."""

    results: np.ndarray  # int64[n, k] row numbers; empty when not asked for
    shed: np.ndarray  # int64[m, 4] side, row, reason, matches; empty when not asked for


class JoinState:
    """A join that has processed some rows and can process more.

    Examples
    --------
    >>> from joinweir.policies import policy
    >>> config = JoinConfig(policy("fifo"), lifetimes=(10, 10), capacity=(2, 2))
    >>> state = JoinState(config)
    >>> batch = make_batch(config, ts=[1, 2, 3], side=[0, 0, 1], key=[7, 8, 7], row=[0, 1, 0])
    >>> state.process(batch).results.tolist()
    [[0, 0]]
    """

    def __init__(self, config: JoinConfig, known: dict[str, np.ndarray] | None = None) -> None:
        self.config = config
        self.definition = definition(config.policy.name)
        k = config.streams
        if config.order != "probe_first" and (k != 2 or not config.ordered or config.count_window):
            raise JoinweirError(
                f"order={config.order!r} needs two streams in time order and a time window"
            )
        if config.accounting == "sketch" and (config.count_window or config.landmarks):
            raise JoinweirError("accounting='sketch' needs a time window; use 'exact' or 'off'")
        if config.accounting == "sketch" and not config.ordered and k > 2:
            raise JoinweirError(SKETCHES_TWO_LATE_STREAMS)
        self.params = config.policy
        self.choices: tuple[Parameters, ...] = ()
        if self.definition.alternatives:
            self.choices = self.definition.alternatives(config.policy)
        self.bounded = self.definition.bounded and config.capacity is not None
        self.store = _new_store(config, self.bounded)
        if self.choices:
            self.params = self.choices[len(self.choices) // 2]
        self.policy_state = self._fresh_policy_state()
        self.compiled_run = (
            self.definition.choose_run(self.params, config.groups_match_as_one)
            if self.definition.choose_run
            else self.definition.run
        )
        self.ghosts = self._make_ghosts()
        if self.store.reg[L.STATISTICS] == L.ORACLE:
            if known is None:
                raise JoinweirError(
                    "statistics='oracle' needs the whole input; it works in simulate() only"
                )
            self._teach(known)
        _verify_compiled(self)

    # --- feeding ---------------------------------------------------------------------------
    def process(self, batch: L.Batch, *, results: bool = True, shed: bool = False) -> Outcome:
        """Process rows sorted by (ts, side, row) and return what came of them."""
        k = self.config.streams
        pairs, lost = [np.empty((0, k), np.int64)], [np.empty((0, 4), np.int64)]
        for piece in self.process_in_pieces(batch, results=results, shed=shed):
            pairs.append(piece.results)
            lost.append(piece.shed)
        return Outcome(np.concatenate(pairs), np.concatenate(lost))

    def process_in_pieces(
        self, batch: L.Batch, *, results: bool = True, shed: bool = False, room: int = 0
    ) -> Iterator[Outcome]:
        """Process rows and hand over what came of them bit by bit: about `room` results at a time.

        The rows are processed as the pieces are taken; all must be.
        """
        start, n = 0, batch.ts.size
        while start < n:
            stop = self._end_of_chunk(batch, start)
            part = rows_of_batch(batch, slice(start, stop))
            yield from self._process_chunk(part, results, shed, room)
            start = stop

    def _end_of_chunk(self, batch: L.Batch, start: int) -> int:
        chunk = min(CHUNK, max(LEAST_CHUNK, int(self.store.slot.size)))
        stop = min(start + chunk, batch.ts.size)
        if self.ghosts:  # the next tuning falls on a number of arrivals, however batches are cut
            due = self._tuning_interval() - int(self.store.reg[L.N_ARRIVALS]) % (
                self._tuning_interval()
            )
            stop = min(stop, start + due)
        stop = min(stop, start + self._rows_until_fit())
        if self.config.order != "probe_first":  # never inside an instant
            stop += int(np.searchsorted(batch.ts[stop:], batch.ts[stop - 1], side="right"))
        return stop

    def _process_chunk(
        self, part: L.Batch, results: bool, shed: bool, room: int
    ) -> Iterator[Outcome]:
        n = part.ts.size
        if self.config.order != "probe_first" and part.ts[0] <= self.store.reg[L.CLOCK]:
            raise JoinweirError(
                f"order={self.config.order!r}: an instant must come whole; "
                f"time {part.ts[0]} was processed already"
            )
        self._make_room(n, int(part.size.min()))
        rows_until_fit = self._rows_until_fit()
        tuned_before = int(self.store.reg[L.N_ARRIVALS]) // self._tuning_interval()
        lost = np.empty((n + int(self.store.reg[L.N_SLOTS]) if shed else 0, 4), np.int64)
        room = (room or max(2 * n, 1024)) if results else 0
        start = 0
        while start < n:
            out = np.empty((room, self.config.streams), np.int64)
            start, n_out, n_lost = self.compiled_run(
                self.store, self.policy_state, part, start, out, lost
            )
            yield Outcome(out[:n_out], lost[:n_lost].copy())
            room = max(room, 2 * int(self.store.reg[L.WANTED]))
        if self.ghosts:
            self._feed_ghosts(part)
            if int(self.store.reg[L.N_ARRIVALS]) // self._tuning_interval() > tuned_before:
                self._tune()
        if n >= rows_until_fit:
            self.definition.refit(self.params, self.store, self.policy_state)

    def _rows_until_fit(self) -> int:
        """When the policy wants to learn again from what it has seen, however batches are cut."""
        if self.definition.fits is None or not self.bounded:
            return UNBOUNDED
        first, every = self.definition.fits(self.params)
        n = int(self.store.reg[L.N_ARRIVALS])
        if n < first:
            return first - n
        return every - (n - first) % every if every else UNBOUNDED

    # --- room ------------------------------------------------------------------------------
    def _sizes(self) -> Sizes:
        return Sizes(
            streams=self.config.streams,
            pools=self.store.pool.size,
            slots=self.store.slot.size,
            groups=self.store.group.size,
        )

    def _fresh_policy_state(self):
        return self.definition.init(self.params, self._sizes(), self.config.groups_match_as_one)

    def _make_room(self, n: int, least_size: int = 1) -> None:
        """Arrays large enough for n more rows, but not larger than the budget can ever fill."""
        store = self.store
        reg = store.reg
        reg[L.LEAST_SIZE] = min(int(reg[L.LEAST_SIZE]), max(1, least_size))
        most = UNBOUNDED
        if self.bounded:
            most = int(store.pool["cap"].sum()) // int(reg[L.LEAST_SIZE])
        slots = min(int(reg[L.N_SLOTS]) + n, most)
        log = int(reg[L.N_LOG]) + n if reg[L.KEEP_LOG] else 0
        # A key is known while a row of it is held, logged or remembered, or being processed.
        remembered = min(int(reg[L.N_IDLE]) + n, int(reg[L.MAX_IDLE]) + 1)
        arriving = 1 if self.config.order == "probe_first" else n
        keys_most = most + log + int(reg[L.MAX_IDLE]) + 1 + arriving
        groups = min(int(reg[L.N_GROUPS]) + n, slots + log + remembered + arriving)
        if slots > store.slot.size or groups > store.group.size or log > store.log.size:
            self.store = _grown_store(store, slots, groups, log, most, keys_most)
            grow = self.definition.grow or grown
            self.policy_state = grow(self.policy_state, self._fresh_policy_state())
        if self.definition.before_batch:
            self.policy_state = self.definition.before_batch(self.store, self.policy_state, n)

    # --- tuning by ghosts -------------------------------------------------------------------
    def _make_ghosts(self) -> list[JoinState]:
        """Small copies of the join, one for each alternative, on a sample of the keys.

        A sample by hash of the key keeps all pairs of a key, so that a join with its share of the
        memory behaves like the whole (waldspurger2015).
        """
        self.sample = 1
        self.ghost_out = np.zeros(len(self.choices))
        if not self.choices or not self.bounded:
            return []
        cap = self.store.pool["cap"]
        self.sample = GHOST_SHARE * len(self.choices)  # a budget in bytes has set that aside
        if self.config.unit == "rows":
            self.sample = int(min(16, max(1, cap.sum() // GHOST_ROWS)))
        scaled = tuple(int(max(1, c // self.sample)) for c in cap)
        return [
            JoinState(
                dataclasses.replace(
                    self.config, policy=choice, capacity=scaled, accounting="off", importance=None
                )
            )
            for choice in self.choices
        ]

    def _tuning_interval(self) -> int:
        return max(512, min(1 << 16, int(self.store.pool["cap"].sum()))) if self.ghosts else 1 << 62

    def _feed_ghosts(self, part: L.Batch) -> None:
        if self.sample > 1:
            part = rows_of_batch(part, _sampled(part.key, self.sample))
        else:  # their slots are not the caller's
            part = part._replace(group=np.empty_like(part.group), alike=np.empty_like(part.alike))
        for ghost in self.ghosts:
            ghost.process(part, results=False)

    def _tune(self) -> None:
        """Go on with the alternative whose ghost produced most of late."""
        self.ghost_out *= 0.5
        for i, ghost in enumerate(self.ghosts):
            self.ghost_out[i] += ghost.store.reg[L.N_OUT]
            ghost.store.reg[L.N_OUT] = 0
        best = self.choices[int(np.argmax(self.ghost_out))]
        if best != self.params:
            self.definition.adopt(self.policy_state, best)
            self.params = best

    # --- oracle statistics -------------------------------------------------------------------
    def _teach(self, known: dict[str, np.ndarray]) -> None:
        self._make_room(known["key"].size)
        _teach(self.store, known["key"], known["side"])
        for ghost in self.ghosts:
            _teach(ghost.store, known["key"], known["side"])

    # --- what is known beforehand --------------------------------------------------------------
    def inform(self, known: Sequence[Known]) -> None:
        """Start from frequencies and models of the streams instead of from nothing."""
        if self.config.policy.source_of_frequencies() == "history":
            keys, at = np.unique(np.concatenate([k.key for k in known]), return_inverse=True)
            times = np.zeros((keys.size, len(known)), np.int64)
            side = np.repeat(np.arange(len(known)), [k.key.size for k in known])
            times[at.reshape(-1), side] = np.concatenate([k.count for k in known])
            chosen = np.argsort(-times.sum(axis=1), kind="stable")
            chosen = chosen[: int(min(keys.size, self.store.reg[L.MAX_IDLE]))]
            self._make_room(chosen.size)
            _recall(self.store, keys[chosen], times[chosen])
            for s, k in enumerate(known):  # keys that are not listed were rows, too
                self.store.side[s]["seen"] = max(k.rows, int(self.store.side[s]["seen"]))
        if self.definition.inform:
            self.definition.inform(self.params, self.store, self.policy_state, known)
        for ghost in self.ghosts:
            ghost.inform(known)

    # --- saving ------------------------------------------------------------------------------
    def _parts(self) -> dict[str, tuple[JoinState, str]]:
        """Name in a snapshot → whose attribute it is."""
        parts = {"store": (self, "store"), "policy": (self, "policy_state")}
        for i, ghost in enumerate(self.ghosts):
            parts |= {f"ghost{i}/{name}": place for name, place in ghost._parts().items()}
        return parts

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes while the join runs, by name: the arrays themselves, no copies."""
        chosen = self.choices.index(self.params) if self.choices else 0
        arrays = {"ghost_out": self.ghost_out, "chosen": np.array([chosen], np.int64)}
        for name, (owner, attribute) in self._parts().items():
            arrays |= _flatten(name, getattr(owner, attribute))
        return arrays

    @classmethod
    def from_arrays(cls, config: JoinConfig, arrays: dict[str, np.ndarray]) -> JoinState:
        """A join that goes on with these arrays, as `arrays` gave them; it writes into them."""
        state = cls(config, known={"key": np.empty(0, np.int64), "side": np.empty(0, np.int8)})
        for name, fresh in state.arrays().items():
            if name not in arrays or arrays[name].dtype != fresh.dtype:
                raise StateError(f"the saved state lacks {name!r}, or has it in another form")
        for name, (owner, attribute) in state._parts().items():
            setattr(owner, attribute, _unflatten(name, getattr(owner, attribute), arrays))
        state.ghost_out = arrays["ghost_out"]
        if state.choices:
            state.params = state.choices[int(arrays["chosen"][0])]
        return state

    def rebuilt(self, config: JoinConfig) -> tuple[JoinState, np.ndarray]:
        """A join under another policy, budget or accounting that goes on with this one's rows.

        Also returned: rows that did not fit any more, as in `Outcome.shed`. What carries over is
        what both know: held rows and what they matched, how often keys were seen, arrivals noted
        for exact accounting, a sketch of the same shape. An accounting that starts anew notes what
        the old one had noted, or else the held rows. Counts of rows and results start at 0, but
        for rows that a shorter lateness lets go (expired); a policy's own ranks start as for new
        rows.
        """
        new = JoinState(config)
        old = self.store
        k = config.streams
        places = np.flatnonzero(old.slot["row"] != L.NIL)
        places = places[np.argsort(old.slot["seq"][places])]
        held = old.slot[places]
        imp = old.slot_imp[places] if self.config.importance else np.ones(places.size)
        matched = old.cell["hits"][held["group"].astype(np.int64) * k + held["side"]] - held["mark"]
        groups = old.table["group"][old.table["group"] != L.NIL]
        new._make_room(int(held.size + groups.size + old.reg[L.N_LOG]))
        reg = new.store.reg
        if reg[L.STATISTICS] == L.HISTORY and config.policy.source_of_frequencies() is not None:
            times = old.cell["seen"].reshape(-1, k) - old.cell["rows"].reshape(-1, k)
            known = groups[np.argsort(-times[groups].sum(axis=1), kind="stable")]
            known = known[: int(min(known.size, reg[L.MAX_IDLE]))]
            _recall(new.store, old.group["key"][known], times[known])
        same_sketch = config.accounting == "sketch" == self.config.accounting
        same_sketch = same_sketch and new.store.sketch.shape == old.sketch.shape
        if reg[L.KEEP_LOG] or (config.accounting == "sketch" and not same_sketch):
            new._note_again(*self._noted(held, imp))
        reg = new.store.reg
        keep_log, accounting = int(reg[L.KEEP_LOG]), int(reg[L.ACCOUNTING])
        reg[L.KEEP_LOG], reg[L.ACCOUNTING] = 0, L.OFF  # the held rows are noted already
        new.store.counters[:] = 0
        batch = make_batch(
            config, ts=held["ts"], side=held["side"], key=old.group["key"][held["group"]],
            row=held["row"], end=held["end"], size=held["size"],
            action=np.full(held.size, L.INSERTS, np.uint8), imp=imp,
        )  # fmt: skip
        first = int(reg[L.N_ARRIVALS])
        lost = new.process(batch, results=False, shed=True).shed
        lost[:, 2] = L.EVICTED  # they had been admitted
        for s in range(k):
            mine, gone = np.flatnonzero(held["side"] == s), lost[:, 0] == s
            mine = mine[np.argsort(held["row"][mine])]
            at = np.searchsorted(held["row"][mine], lost[gone, 1])
            lost[gone, 3] = matched[mine[at]]
        kept = np.flatnonzero(new.store.slot["row"] != L.NIL)
        new.store.slot["mark"][kept] -= matched[new.store.slot["seq"][kept] - first]
        reg = new.store.reg
        reg[L.KEEP_LOG], reg[L.ACCOUNTING] = keep_log, accounting
        if same_sketch:
            for name in ("sketch", "sketch_sum", "sketch_pane"):
                getattr(new.store, name)[:] = getattr(old, name)
            for name in (n for n in old.side.dtype.names if n.startswith("sketch_")):
                new.store.side[name] = old.side[name]
        new.store.side["clock"] = np.maximum(new.store.side["clock"], old.side["clock"])
        new.store.side["seen_max"] = old.side["seen_max"]
        reg[L.CLOCK] = old.reg[L.CLOCK]
        reg[L.N_OUT] = reg[L.N_EXACT] = 0
        new.store.totals[:] = 0
        new.store.sketch_out[:] = 0
        for column in set(range(L.COUNTERS)) - {L.C_EXPIRED}:
            new.store.counters[:, column] = 0
        return new, lost

    def _noted(self, held: np.ndarray, imp: np.ndarray) -> tuple[np.ndarray, ...]:
        """Time, end, side, key and importance of the arrivals that are logged, or of held rows."""
        store = self.store
        if store.reg[L.KEEP_LOG]:
            entries = [_in_list(store.log, ends["head"]) for ends in store.logs]
            side = np.repeat(np.arange(len(entries)), [e.size for e in entries])
            held = store.log[np.concatenate(entries)]
            imp = np.ones(side.size)
            if self.config.importance:
                imp = store.log_imp[np.concatenate(entries)]
        else:
            side = held["side"]
        return held["ts"], held["end"], side, store.group["key"][held["group"]], imp

    def _note_again(self, ts, end, side, key, imp) -> None:
        """Have arrivals in the accounting and the log, and nowhere else."""
        by = np.lexsort((side, ts))
        batch = make_batch(
            self.config, ts=ts[by], end=end[by], side=side[by], key=key[by],
            row=np.zeros(by.size, np.int64), action=np.zeros(by.size, np.uint8), imp=imp[by],
        )  # fmt: skip
        self.process(batch, results=False)

    def snapshot(self) -> bytes:
        """The whole state as bytes: a header with checksum and digest, then plain arrays."""
        arrays = self.arrays()
        head = json.dumps({name: array.shape for name, array in arrays.items()}).encode()
        body = b"".join(
            [struct.pack("<I", len(head)), head]
            + [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
        )
        return (
            _HEADER.pack(
                L.MAGIC, L.LAYOUT_VERSION, zlib.crc32(body), len(body), self.config.digest()
            )
            + body
        )

    @classmethod
    def restore(cls, config: JoinConfig, saved: bytes) -> JoinState:
        """A join that goes on exactly where `snapshot` was taken."""
        if len(saved) < _HEADER.size or saved[: len(L.MAGIC)] != L.MAGIC:
            raise StateError("this is no saved joinweir state (wrong first bytes)")
        _, version, checksum, length, digest = _HEADER.unpack_from(saved)
        body = memoryview(saved)[_HEADER.size :]
        if version != L.LAYOUT_VERSION:
            raise StateError(
                f"the state was saved in layout {version}, this joinweir reads {L.LAYOUT_VERSION}"
            )
        if len(body) != length or zlib.crc32(body) != checksum:
            raise StateError("the saved state is damaged (length or checksum differs)")
        if digest != config.digest():
            raise StateError("the state was saved by a join with another configuration")
        (head_length,) = struct.unpack_from("<I", body)
        shapes = json.loads(bytes(body[4 : 4 + head_length]))
        fresh = cls(config, known={"key": np.empty(0, np.int64), "side": np.empty(0, np.int8)})
        kinds = {name: array.dtype for name, array in fresh.arrays().items()}
        arrays, at = {}, 4 + head_length
        for name, shape in shapes.items():
            size = int(np.prod(shape)) * kinds[name].itemsize
            arrays[name] = np.frombuffer(body[at : at + size], kinds[name]).reshape(shape).copy()
            at += size
        return cls.from_arrays(config, arrays)

    # --- what was lost -------------------------------------------------------------------------
    def exact_size(self) -> tuple[float | None, float]:
        """Size of the exact join so far and its standard error (None when not accounted)."""
        if self.config.accounting == "off":
            return None, 0.0
        if self.config.accounting == "exact":
            return int(self.store.reg[L.N_EXACT]), 0.0
        estimates, by_cut_panes, *_ = self.store.sketch_out.reshape(4, -1)
        by_hashing = estimates.var(ddof=1) / estimates.size  # their mean's; that of cut panes is
        variance = by_hashing + max(0.0, by_cut_panes.mean())  # common to all of them
        return float(estimates.mean()), float(np.sqrt(variance))

    def importance_totals(self) -> tuple[float | None, float | None]:
        """Importance of the results so far and of the exact join so far.

        None in a join without importances; the exact join's is known to exact accounting alone.
        """
        if not self.config.importance:
            return None, None
        exact = self.config.accounting == "exact"
        totals = self.store.totals
        return float(totals[L.IMP_OUT]), float(totals[L.IMP_EXACT]) if exact else None

    def bytes_of_state(self) -> int:
        """Bytes of all arrays, used or not: what the process really spends."""
        arrays = _flatten("s", self.store) | _flatten("p", self.policy_state)
        own = sum(a.nbytes for a in arrays.values())
        return own + sum(ghost.bytes_of_state() for ghost in self.ghosts)


def make_batch(
    config: JoinConfig,
    *,
    ts: Any,
    side: Any,
    key: Any,
    row: Any,
    end: Any = None,
    size: Any = None,
    action: Any = None,
    imp: Any = None,
) -> L.Batch:
    """A batch of rows for `JoinState.process`; sorts nothing. Importances are 1 if not given.

    Arrays that may not be written to (of Arrow) are copied: for numba they are of another type, and
    it would compile the whole loop once more.
    """
    ts = _plain(ts, np.int64)
    side = _plain(side, np.int8)
    n = ts.size
    if config.importance is None:
        imp = np.empty(0)
    elif imp is None:
        imp = np.ones(n)
    if end is None and not config.count_window:
        end = ts + np.asarray(config.lifetimes, np.int64)[side]
    return L.Batch(
        ts=ts,
        end=np.zeros(n, np.int64) if end is None else _plain(end, np.int64),
        side=side,
        key=_plain(key, np.int64),
        row=_plain(row, np.int64),
        size=np.ones(n, np.int32) if size is None else _plain(size, np.int32),
        action=(
            np.full(n, L.PROBES | L.INSERTS, np.uint8)
            if action is None
            else _plain(action, np.uint8)
        ),
        imp=_plain(imp, np.float64),
        group=np.empty(n, np.int32),
        alike=np.empty(n, np.int32),
    )


def rows_of_batch(batch: L.Batch, which: Any) -> L.Batch:
    """A part of a batch; importances that are not there stay so."""
    n = batch.ts.size
    return L.Batch(*(column[which] if column.size == n else column for column in batch))


def _plain(values: Any, kind: type) -> np.ndarray:
    return np.require(values, kind, ["C", "A", "W"])


# --- allocation ----------------------------------------------------------------------------------
def index_places(keys: int) -> int:
    """Places of the key index: a power of two that is at most 2/3 full."""
    return power_of_two(keys + keys // 2)


# What one row, key and logged arrival cost in a budget in bytes: their records, and at most three
# places in the key index.
KEY_BYTES = L.GROUP.itemsize + 3 * L.PLACE.itemsize


def log_entry_bytes(streams: int, weighed: bool = False) -> int:
    """Bytes of a logged arrival that has a key of its own."""
    chained = KEY_BYTES + streams * (L.CELL.itemsize + L.CHAIN.itemsize)
    return L.LOGGED.itemsize + chained + 8 * weighed


def index_bytes_per_row(streams: int, weighed: bool = False) -> int:
    """Bytes of the engine's own records per held row that has a key of its own."""
    return L.SLOT.itemsize + KEY_BYTES + streams * L.CELL.itemsize + 8 * weighed


def with_free_list(kind: np.dtype, n: int, link: str) -> np.ndarray:
    records = np.zeros(n, kind)
    records[link] = np.arange(1, n + 1)
    records[link][-1] = L.NIL
    if "row" in kind.names:
        records["row"] = L.NIL
    return records


def empty_lists(k: int) -> np.ndarray:
    ends = np.zeros(k, L.ENDS)
    for name in ends.dtype.names:
        ends[name] = L.NIL
    return ends


def _new_store(config: JoinConfig, bounded: bool) -> L.Store:
    k, n = config.streams, 64
    panes, depth = config.sketch_panes + 1, config.sketch_depth
    width = power_of_two(config.sketch_width)
    if config.accounting != "sketch":
        panes = depth = width = 1
    reg = np.zeros(L.REG_SIZE, np.int64)
    reg[L.N_STREAMS] = k
    reg[L.CLOCK] = -UNBOUNDED
    reg[L.LEAST_SIZE] = UNBOUNDED
    reg[L.ORDERED] = config.ordered
    reg[L.ORDER] = L.ORDERS.index(config.order)
    reg[L.COUNT_WINDOW] = config.count_window
    reg[L.ACCOUNTING] = L.ACCOUNTINGS.index(config.accounting)
    reg[L.COMPETING] = config.policy.competing
    reg[L.RNG] = np.uint64(config.seed % 2**64).astype(np.int64)
    reg[L.PINNED] = L.NIL
    statistics = config.policy.source_of_frequencies()
    if statistics is not None:
        reg[L.STATISTICS] = L.STATISTICS_SOURCES.index(statistics)
        reg[L.PARTNER] = L.PARTNERS.index(config.policy.partner)
        if statistics in ("history", "oracle"):
            keep_all = config.max_idle is None or statistics == "oracle"
            reg[L.MAX_IDLE] = UNBOUNDED if keep_all else config.max_idle
    reg[L.KEEP_LOG] = config.accounting == "exact" or statistics == "window"
    weighed = config.importance is not None
    reg[L.COMBINE] = L.COMBINATIONS.index(config.importance or "")
    reg[L.CHAINED] = not config.ordered or (weighed and config.accounting == "exact")
    if config.unit == "bytes" and reg[L.KEEP_LOG]:
        reg[L.LOG_BYTES] = log_entry_bytes(k, weighed)
    side = np.zeros(k, L.SIDE)
    side["lifetime"] = config.lifetimes
    side["lateness"] = config.lateness or 0
    side["clock"] = side["seen_max"] = side["sketch_low"] = -UNBOUNDED
    side["sketch_first"] = L.NO_PANE
    side["pool"] = config.pools
    side["sketch_span"] = np.maximum(1, -(-side["lifetime"] // max(1, panes - 1)))
    sketch_pane = np.full((k, panes if config.ordered else 5 * panes), L.NO_PANE, np.int64)
    if not config.ordered:
        sketch_pane[:, 2 * panes : 3 * panes] = np.arange(panes)
    pool = np.zeros(max(config.pools) + 1, L.POOL)
    pool["cap"] = config.capacity if bounded else UNBOUNDED
    table = np.zeros(index_places(n), L.PLACE)
    table["group"] = L.NIL
    group = with_free_list(L.GROUP, n, "following")
    group["idle"] = 1
    return L.Store(
        reg=reg,
        counters=np.zeros((k, L.COUNTERS), np.int64),
        side=side,
        pool=pool,
        expiry=empty_lists(k),
        logs=empty_lists(k),
        table=table,
        group=group,
        cell=np.zeros(n * k, L.CELL),
        chain=np.zeros(n * k if reg[L.CHAINED] else 1, L.CHAIN),
        slot=with_free_list(L.SLOT, n, "enext"),
        log=with_free_list(L.LOGGED, n, "enext"),
        slot_imp=np.zeros(n if weighed else 1),
        log_imp=np.zeros(n if weighed else 1),
        totals=np.zeros(L.TOTALS),
        sketch=np.zeros((k, panes, depth, width), np.int32),
        sketch_sum=np.zeros((k, depth, width), np.int32),
        sketch_pane=sketch_pane,
        sketch_out=np.zeros(4 * depth),
        scratch=np.zeros((3, k + 1), np.int64),
        nothing=np.zeros((0, k), np.int64),
    )


def larger(records: np.ndarray, n: int) -> np.ndarray:
    grown = np.zeros(n, records.dtype)
    grown[: records.size] = records
    return grown


def with_more_free(records: np.ndarray, n: int, link: str, reg: np.ndarray, head: int):
    """More records, the new ones in front of the free list."""
    old = records.size
    grown = larger(records, n)
    grown[link][old:] = np.arange(old + 1, n + 1)
    grown[link][-1] = reg[head]
    if "row" in grown.dtype.names:
        grown["row"][old:] = L.NIL
    reg[head] = old
    return grown


def _grown_store(store: L.Store, slots, groups, log, most, keys_most) -> L.Store:
    """More room: twice as much, but never more than `most` rows and `keys_most` keys can take."""
    changes: dict[str, np.ndarray] = {}
    reg = store.reg
    if slots > store.slot.size:
        n = min(power_of_two(slots), max(most, store.slot.size))
        changes["slot"] = with_more_free(store.slot, n, "enext", reg, L.FREE_SLOT)
        if reg[L.COMBINE] != L.UNWEIGHED:
            changes["slot_imp"] = larger(store.slot_imp, n)
    if log > store.log.size:
        n = power_of_two(log)
        if reg[L.LOG_BYTES]:  # entries are charged, so no more than this many ever fit
            n = min(n, max(int(store.pool["cap"].sum() // reg[L.LOG_BYTES]), log))
        changes["log"] = with_more_free(store.log, n, "enext", reg, L.FREE_LOG)
        if reg[L.COMBINE] != L.UNWEIGHED:
            changes["log_imp"] = larger(store.log_imp, n)
    if groups > store.group.size:
        n = min(power_of_two(groups), max(keys_most, groups))
        k = int(reg[L.N_STREAMS])
        group = with_more_free(store.group, n, "following", reg, L.FREE_GROUP)
        group["idle"][store.group.size :] = 1
        table = np.zeros(index_places(n), L.PLACE)
        table["group"] = L.NIL
        rehash(store.table, table)
        changes |= {"group": group, "table": table, "cell": larger(store.cell, n * k)}
        if reg[L.CHAINED]:
            changes["chain"] = larger(store.chain, n * k)
    return store._replace(**changes)


@kernel
def rehash(old, new):
    mask = new.size - 1
    for i in range(old.size):
        if old[i].group != L.NIL:
            at = mix(old[i].key) & mask
            while new[at].group != L.NIL:
                at = (at + 1) & mask
            new[at].key = old[i].key
            new[at].group = old[i].group


@kernel
def _teach(S, key, side):
    k = S.reg[L.N_STREAMS]
    for i in range(key.size):
        g = find_group(S, key[i])
        if g == L.NIL:
            g = add_group(S, key[i])
            S.group[g].idle = 1
            S.reg[L.N_IDLE] += 1
        S.cell[g * k + side[i]].known += 1
        S.side[side[i]].known += 1


@kernel
def _recall(S, key, times):
    """Remember how often keys were seen."""
    k = S.reg[L.N_STREAMS]
    for i in range(key.size):
        g = add_group(S, key[i])
        S.group[g].idle = 1
        S.reg[L.N_IDLE] += 1
        for s in range(k):
            S.cell[g * k + s].seen = times[i, s]
            S.side[s].seen += times[i, s]


def _in_list(nodes: np.ndarray, head: int) -> np.ndarray:
    """Indices of the nodes of a list, in its order."""
    found = np.empty(nodes.size, np.int64)
    return found[: _walk(nodes, head, found)]


@kernel
def _walk(nodes, head, found):
    n = 0
    at = head
    while at != L.NIL:
        found[n] = at
        n += 1
        at = nodes[at].enext
    return n


def _sampled(key: np.ndarray, one_in: int) -> np.ndarray:
    keep = np.empty(key.size, np.bool_)
    _sample(key, one_in, keep)
    return keep


@kernel
def _sample(key, one_in, keep):
    for i in range(key.size):
        # another hash than the key index's, whose runs a sample by the same bits would lengthen
        keep[i] = mix(key[i] ^ np.int64(0x5851F42D4C957F2D)) % one_in == 0


def _flatten(prefix: str, part) -> dict[str, np.ndarray]:
    if isinstance(part, np.ndarray):
        return {prefix: part}
    arrays = {}
    for name, value in zip(part._fields, part, strict=True):
        arrays |= _flatten(f"{prefix}.{name}", value)
    return arrays


def _unflatten(prefix: str, like, arrays: dict[str, np.ndarray]):
    if isinstance(like, np.ndarray):
        return arrays[prefix]
    return type(like)(
        *(
            _unflatten(f"{prefix}.{name}", value, arrays)
            for name, value in zip(like._fields, like, strict=True)
        )
    )


_VERIFIED: set = set()  # compiled functions


def _verify_compiled(state: JoinState) -> None:
    """Once a process and policy: does the compiled code stem from this engine's sources?

    numba's disk cache watches the policy's file alone; code from before an edit of the engine
    would run, and silently misread the state. An empty batch tells.
    """
    run = state.compiled_run
    if run in _VERIFIED:
        return
    nothing = make_batch(state.config, ts=[], side=[], key=[], row=[])
    none_shed = np.empty((0, 4), np.int64)
    for _ in range(2):
        state.store.reg[L.DIGEST] = 0
        run(state.store, state.policy_state, nothing, 0, state.store.nothing, none_shed)
        if state.store.reg[L.DIGEST] == DIGEST:
            _VERIFIED.add(run)
            return
        run.recompile()
    raise JoinweirError(f"the compiled code of policy {state.config.policy.name!r} is stale")
