"""Slow, obvious window joins under a memory limit: the oracle for the compiled engine.

Shares no code with the engine. Every decision is a plain scan over all residents, every count is
a plain count. "§" in the docstrings means the GreedyDual-Join paper (chang2004); das2003 and
srivastava2004 are its references [11] and [32].
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product

# --------------------------------------------------------------------------------- the results


@dataclass
class NaiveResult:
    """What one simulated join did."""

    results: list[tuple[int, ...]]  # row numbers, one per stream, in order of production
    n_out: int
    n_exact: int  # size of the exact join, counted by brute force
    shed: list[tuple[int, int, str]]  # (side, row, "evicted" | "not admitted") as they happened
    n_null: list[int]  # per side
    max_held: list[int]  # per pool: largest number of residents seen


@dataclass(eq=False)
class Row:
    """One row of a stream with all that any policy remembers about it."""

    side: int
    row: int  # number in its own stream
    ts: int
    key: object  # None = null; in a workload: {attribute: value}
    seq: int = 0  # position among the arrivals of all streams
    index: int = 0  # position among the arrivals of its own stream
    end: int | None = None  # first instant at which it is dead (time windows)
    probes: bool = True
    inserts: bool = True
    keep: int = 0  # age
    first_f: int = 0  # frequency of its key in the other stream when it arrived
    last_match: int = 0  # lru
    credit: object = 0  # gdj
    imp: float = 1.0  # importance
    worth: object = 0  # simpprob, dgl
    worth_before: float = 0.0  # dgl: before the loss of tick `lost_at`
    lost_at: int = 0  # dgl: the last tick whose loss is in `worth`
    spared: bool = False  # dgl: … and was given back

    @property
    def age_order(self):
        """Oldest first: the tie-break of every policy."""
        return (self.ts, self.seq)


# ---------------------------------------------------------------------------- the exact answer


def row_ends(streams, lifetimes, closed=False, ends=None):
    """First dead instant of every row: ts + T, one later if closed, unless given explicitly."""
    if ends is None:
        ends = [
            [ts + lifetime + bool(closed) for ts, _ in rows]
            for rows, lifetime in zip(streams, lifetimes, strict=True)
        ]
    for rows, stream_ends in zip(streams, ends, strict=True):
        for (ts, _), end in zip(rows, stream_ends, strict=True):
            if end <= ts:
                raise ValueError("a row must live at its own instant: end > ts")
    return ends


def exact_join(streams, lifetimes, closed=False, ends=None):
    """All combinations with equal non-null keys and max(ts) < min(end) (§1.1)."""
    ends = row_ends(streams, lifetimes, closed, ends)
    out = []
    for combo in product(*(range(len(rows)) for rows in streams)):
        picked = [streams[side][row] for side, row in enumerate(combo)]
        keys = [key for _, key in picked]
        if keys[0] is None or any(key != keys[0] for key in keys):
            continue
        last_start = max(ts for ts, _ in picked)
        first_end = min(ends[side][row] for side, row in enumerate(combo))
        if last_start < first_end:
            out.append(combo)
    return out


def exact_count(streams, lifetimes, closed=False, ends=None):
    """Size of the exact join."""
    return len(exact_join(streams, lifetimes, closed, ends))


def exact_count_window_join(streams, n_rows):
    """All equal-key combinations in which nobody was dead when the last row arrived."""
    rows = [[Row(s, i, *pair) for i, pair in enumerate(part)] for s, part in enumerate(streams)]
    number_rows(rows)
    out = []
    for combo in product(*rows):
        last = max(r.seq for r in combo)
        if combo[0].key is None or any(r.key != combo[0].key for r in combo):
            continue
        newer = [
            sum(r.seq < y.seq <= last and y.key is not None for y in rows[r.side]) for r in combo
        ]
        if all(count < n_rows[r.side] for count, r in zip(newer, combo, strict=True)):
            out.append(tuple(r.row for r in combo))
    return out


def number_rows(rows):
    """Number all rows in arrival order (ts, side, row), over all streams and in their own."""
    events = sorted((r for part in rows for r in part), key=lambda r: (r.ts, r.side, r.row))
    n_own = defaultdict(int)
    for seq, r in enumerate(events):
        r.seq, r.index = seq, n_own[r.side]
        n_own[r.side] += r.key is not None  # a null takes no place in a window
    return events


# ------------------------------------------------------------------------------- the policies


class Policy:
    """Victim = smallest (priority, ts, seq). A competing newcomer loses if strictly smaller."""

    competes = False

    def __init__(self, join, competing=None):
        self.join = join
        self.competing = self.competes if competing is None else competing

    def priority(self, y):
        """Worth of a resident now."""
        raise NotImplementedError

    def newcomer_priority(self, x, pool):
        """Worth of a newcomer, as if it were a resident."""
        return self.priority(x)

    def choose(self, pool, x):
        """Who leaves the full pool for x; None: x itself is not admitted."""
        victim = min(pool, key=lambda y: (self.priority(y), *y.age_order))
        if self.competing and self.newcomer_priority(x, pool) < self.priority(victim):
            return None
        return victim

    def on_match(self, matched, x):
        """Residents that took part in a complete result of arrival x."""

    def on_insert(self, x, pool):
        """The newcomer x is about to enter the pool (after the eviction, if there was one)."""

    def on_time_unit_end(self):
        """The next arrival has a larger ts."""

    def on_rows(self, n):
        """n rows of all streams have been processed in all."""


class Fifo(Policy):
    """The oldest leaves (§2.2)."""

    def priority(self, y):
        return 0


class Lru(Policy):
    """The one not matched for longest leaves (§2.2; §4: a hit lifts it to the stack's top)."""

    def priority(self, y):
        return y.last_match

    def on_match(self, matched, x):
        for y in matched:
            y.last_match = x.seq

    def on_insert(self, x, pool):
        x.last_match = x.seq

    def newcomer_priority(self, x, pool):
        return x.seq


class Lfu(Policy):
    """The smallest frequency, as it was at arrival, leaves (§4: LFU as a special case)."""

    competes = True

    def priority(self, y):
        return y.first_f


class Prob(Policy):
    """The key rarest in the other stream by now leaves (§3.1; das2003)."""

    competes = True

    def priority(self, y):
        return self.join.frequency(y)


class Life(Policy):
    """The smallest frequency times remaining lifetime leaves (das2003, cited in §3.1)."""

    competes = True

    def priority(self, y):
        return float(self.join.frequency(y)) * float(self.join.remaining(y))


class Rand(Policy):
    """Anybody leaves (§3), drawn by splitmix64."""

    def __init__(self, join, competing=None, seed=0):
        super().__init__(join, competing)
        self.state = seed % 2**64

    def uniform(self):
        """Next number in [0, 1)."""
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        z = z ^ (z >> 31)
        return (z >> 11) * 2.0**-53

    def choose(self, pool, x):
        candidates = [*pool, None] if self.competing else pool
        return candidates[math.floor(self.uniform() * len(candidates))]


class Age(Policy):
    """Rows stay `keep` instants, newcomers wait for a free place (§3.2; srivastava2004)."""

    def __init__(self, join, competing=None, fifo_mode=None):
        super().__init__(join, competing)
        self.fifo_mode = fifo_mode or [False] * join.n_streams

    def choose(self, pool, x):
        if self.fifo_mode[x.side]:
            return min(pool, key=lambda y: y.age_order)
        due = [y for y in pool if y.ts + y.keep <= self.join.t]
        return min(due, key=lambda y: (y.ts + y.keep, *y.age_order), default=None)


class Gdj(Policy):
    """GreedyDual-Join (§4.1, methods §5.2): the smallest credit leaves.

    Decrements are uniform in a pool, so they change no decision and are left out unless
    `literal_decrement` asks for them (methods 2 and 3, initial="rank" only).
    """

    def __init__(
        self,
        join,
        competing=None,
        *,
        method=1,
        initial_rank=None,
        rank_from="top",
        increment=None,
        initial="rank",
        literal_decrement=False,
    ):
        super().__init__(join, competing)
        if method not in (1, 2, 3) or rank_from not in ("top", "bottom"):
            raise ValueError("method is 1, 2 or 3; rank_from is 'top' or 'bottom'")
        if initial not in ("rank", "max", "frequency"):
            raise ValueError("initial is 'rank', 'max' or 'frequency'")
        if initial == "rank" and initial_rank is None:
            raise ValueError("initial='rank' needs initial_rank")
        if increment is None:
            increment = "rank" if method == 2 else 1
        if increment not in (0, 1, "rank", "max"):
            raise ValueError("increment is 0, 1, 'rank' or 'max'")
        self.method, self.initial_rank, self.rank_from = method, initial_rank, rank_from
        self.increment, self.initial, self.literal = increment, initial, literal_decrement
        self.added = defaultdict(int)  # per pool: credits added in this time unit

    def priority(self, y):
        return y.credit

    def rank(self, y):
        """1 + number of residents of y's pool with a strictly greater (smaller) credit (§4.1)."""
        pool = self.join.pool_of(y)
        if self.rank_from == "top":
            return 1 + sum(z.credit > y.credit for z in pool)
        return 1 + sum(z.credit < y.credit for z in pool)

    def on_match(self, matched, x):
        """Credit increment rule (§4.1)."""
        if self.increment == "max":
            new_credits = [x.seq for _ in matched]
        elif self.increment == "rank":
            new_credits = [y.credit + self.rank(y) for y in matched]
        else:
            new_credits = [y.credit + self.increment for y in matched]
        for y, credit in zip(matched, new_credits, strict=True):
            self.added[self.join.pool_number(y)] += credit - y.credit
            y.credit = credit

    def initial_credit(self, x, pool):
        """Initial credit assignment: a percentile of the pool's credits (§4.1), or a variant."""
        if self.initial == "max":
            return x.seq
        if self.initial == "frequency":
            return x.first_f
        credits = sorted(y.credit for y in pool)
        return credits[math.floor(self.initial_rank * (len(credits) - 1))] if credits else 0

    newcomer_priority = initial_credit

    def on_insert(self, x, pool):
        x.credit = self.initial_credit(x, pool)

    def on_time_unit_end(self):
        """Credit decrement rule, literally (§4.1, §5.2): all of a pool lose the same."""
        if self.literal:
            for number, pool in enumerate(self.join.pools):
                for y in pool:
                    if self.method == 2:
                        y.credit -= 1
                    if self.method == 3:
                        y.credit -= Fraction(self.added[number], len(pool))
        self.added.clear()


class Elba(Policy):
    """The key least expected in the next T rows of the other stream leaves (li2006 §4.2).

    Definition 2 as it stands, with Θ at n + i - 1: the chance of the key in each row to come, one
    after the other, from the rows seen and from the chances before it. T = the rows that the other
    stream is likely to have in the row's remaining life, or one number for all rows.
    """

    HORIZON = "remaining"

    def __init__(
        self, join, competing=None, *, h=50, horizon=None, warmup=5000, refit=20_000, steps=30
    ):
        super().__init__(join, competing)
        self.h, self.horizon, self.steps = h, horizon or self.HORIZON, steps
        self.warmup, self.refit = warmup, refit
        self.models = [([0.0] * h, 1.0)] * join.n_streams  # independent rows
        self.rates = None
        self.since = None  # rows of each stream, and the time, at the last fit
        self.n = 0

    # the model

    def on_rows(self, n):
        if self.since is None:
            self.since = [0] * self.join.n_streams, self.join.t
        due = [self.warmup]
        while self.refit and due[-1] <= n:
            due.append(due[-1] + self.refit)
        if any(self.n < m <= n for m in due):
            self.fit()
        self.n = n

    def fit(self):
        seen = [len(part) for part in self.join.sequence]
        elapsed = max(1, self.join.t - self.since[1])
        self.rates = [(m - o) / elapsed for m, o in zip(seen, self.since[0], strict=True)]
        self.since = seen, self.join.t
        self.lengths = [self.length(side) for side in range(self.join.n_streams)]
        for side, part in enumerate(self.join.sequence):
            keys = [y.key for y in part][-self.warmup :]
            if len(keys) >= 4 * self.h:
                self.models[side] = self.expectation_maximisation(keys)

    def expectation_maximisation(self, keys):
        """Who made row n: one of the h rows before it, or a fresh draw? (§3.1's model, by EM)"""
        share = {key: keys.count(key) / len(keys) for key in keys}
        if len(share) == 1:
            return [0.0] * self.h, 1.0
        a, b = [0.5 / self.h] * self.h, 0.5
        rows = range(self.h, len(keys))
        for _ in range(self.steps):
            made = [[0.0] * (self.h + 1) for _ in rows]
            for chances, n in zip(made, rows, strict=True):
                chances[0] = b * share[keys[n]]
                for j in range(1, self.h + 1):
                    chances[j] = a[j - 1] * (keys[n - j] == keys[n])
                total = sum(chances)
                chances[:] = [chance / total for chance in chances]
            b, *a = [sum(column) / len(made) for column in zip(*made, strict=True)]
        total = b + sum(a)
        return [x / total for x in a], b / total

    # the utility

    def rows_per_tick(self, side):
        """Rows of the other stream while a row of `side` ages by one tick (by one row).

        To 20 binary digits, so that small multiples of it are exact.
        """
        other = (side + 1) % self.join.n_streams
        rate = self.rates[other]
        if isinstance(self.join, CountWindowJoin):
            rate = len(self.join.sequence[other]) / max(1, len(self.join.sequence[side]))
        scale = 1
        while 0 < rate * scale < 2**19:
            scale *= 2
        return round(rate * scale) / scale

    def length(self, side):
        """T of all rows of a side, or rows per tick of what a row has left to live."""
        if self.horizon == "remaining":
            return self.rows_per_tick(side)
        if self.horizon == "window":
            return max(1, round(self.join.lifetime(side) * self.rows_per_tick(side)))
        return self.horizon

    def rows_ahead(self, y):
        if self.horizon != "remaining":
            return 1 if self.rates is None else self.lengths[y.side]
        left = self.join.remaining(y)
        return max(0, left * (1 if self.rates is None else self.lengths[y.side]))

    def priority(self, y):
        other = (y.side + 1) % self.join.n_streams
        past = [z.key for z in self.join.sequence[other]]
        popularity = self.join.frequency_in(other, y.key) / max(1, self.join.total_in(other))
        a, b = self.models[other]
        T = self.rows_ahead(y)
        if not any(a):  # equals must come out as equals: 3 · 2 rows, 2 · 3 rows
            count = self.join.frequency_in(other, y.key)
            return Fraction(count) * Fraction(T) / max(1, self.join.total_in(other))
        chances = []
        while len(chances) < T:
            i = len(chances) + 1
            chance = b * popularity
            for j in range(1, self.h + 1):
                if j < i:
                    chance += a[j - 1] * chances[i - j - 1]
                elif len(past) + i - 1 - j >= 0:
                    chance += a[j - 1] * (past[len(past) + i - 1 - j] == y.key)
            chances.append(chance)
        if int(T) != T:  # the last row comes in part
            chances[-1] *= T - int(T)
        return sum(chances)

    def choose(self, pool, x):
        """Ties: "the tuple that will expire sooner"."""
        worth = {id(y): self.priority(y) for y in [*pool, x]}
        victim = min(pool, key=lambda y: (worth[id(y)], self.join.expiry(y), y.seq))
        if self.competing and worth[id(x)] < worth[id(victim)]:
            return None
        return victim


class Lba(Elba):
    """The same with one T for all rows (li2006 §4.2: lemma 3 makes it a sum over the past)."""

    HORIZON = "window"


class Simp(Policy):
    """The least important leaves (ojewole2006 §4.3.1)."""

    competes = True

    def priority(self, y):
        return y.imp


class Dimpprob(Policy):
    """The smallest importance times matches leaves, both as of now (ojewole2006 §4.3.3).

    Ties: "the tuple with the lowest importance, then the tuple with the fewest number of matches".
    """

    competes = True

    def priority(self, y):
        matches = self.join.frequency(y)
        return y.imp * float(matches), y.imp, matches


class Simpprob(Dimpprob):
    """The same, fixed when the row enters (ojewole2006 §4.3.2)."""

    def priority(self, y):
        return y.worth

    def newcomer_priority(self, x, pool):
        return Dimpprob.priority(self, x)

    def on_insert(self, x, pool):
        x.worth = Dimpprob.priority(self, x)


class Dgl(Policy):
    """Gains by matches, losses by ticks without one (ojewole2006 §4.3.4), tick by tick.

    A tick begins with everybody's loss, which a match gives back. Where rows evict first, it comes
    after the evictions.
    """

    competes = True

    def __init__(self, join, competing=None, *, alpha=1.0, decay=None):
        super().__init__(join, competing)
        self.alpha, self.decay = alpha, decay

    def decide_at(self, y):
        """The tick up to which losses count when somebody has to leave."""
        return self.join.now(y.side) - (self.join.order == "evict_first")

    def lose(self, y, tick):
        decay = self.decay or math.exp(-5 / self.join.lifetime(y.side))
        while y.lost_at < tick:
            y.lost_at += 1
            y.worth_before, y.worth, y.spared = y.worth, y.worth * decay, False

    def priority(self, y):
        self.lose(y, self.decide_at(y))
        return y.worth

    def newcomer_priority(self, x, pool):
        return x.imp

    def on_insert(self, x, pool):
        x.worth, x.lost_at, x.spared = x.imp, self.decide_at(x), True

    def on_match(self, matched, x):
        for y in matched:
            self.lose(y, self.join.now(y.side))
            if not y.spared:
                y.worth, y.spared = y.worth_before, True
            share = self.join.remaining(y) / self.join.lifetime(y.side)
            y.worth += self.alpha * y.imp * self.join.frequency(y) * share


POLICIES = {
    "full": Fifo,
    "fifo": Fifo,
    "lru": Lru,
    "lfu": Lfu,
    "prob": Prob,
    "life": Life,
    "rand": Rand,
    "age": Age,
    "gdj": Gdj,
    "lba": Lba,
    "elba": Elba,
    "simp": Simp,
    "simpprob": Simpprob,
    "dimpprob": Dimpprob,
    "dgl": Dgl,
}


NO_WORKLOADS = ("age", "lba", "elba")  # they look at one other stream, or at the past of it


def make_policy(name, join, competing, params, seed, fifo_mode=None):
    """The policy called `name`; params are for gdj, lba, elba and dgl only."""
    options = {"rand": {"seed": seed}, "age": {"fifo_mode": fifo_mode}}
    return POLICIES[name](join, competing, **options.get(name, params or {}))


# ---------------------------------------------------------------------------------- the joins


@dataclass(eq=False)
class Join:
    """Pools of residents, arrivals in order, statistics. Time windows, one key, k streams."""

    rows: list[list[Row]]  # per stream
    capacity: object  # per stream, or one number if unified; None = unlimited
    unified: bool = False
    statistics: str = "history"
    partner: str = "next"
    t: int | None = None
    results: list = field(default_factory=list)
    shed: list = field(default_factory=list)

    def __post_init__(self):
        self.n_streams = len(self.rows)
        self.events = number_rows(self.rows)
        n_pools = 1 if self.unified else self.n_streams
        self.capacities = self.capacity
        if self.unified or self.capacity is None:
            self.capacities = [self.capacity] * n_pools
        if len(self.capacities) != n_pools:
            raise ValueError("capacity: one number per stream, or a single one if unified")
        if self.statistics not in ("history", "window", "memory", "oracle"):
            raise ValueError(f"unknown statistics {self.statistics!r}")
        if self.partner not in ("next", "product"):
            raise ValueError(f"unknown partner {self.partner!r}")
        self.pools = [[] for _ in range(n_pools)]
        self.max_held = [0] * n_pools
        self.n_null = [0] * self.n_streams
        self.n_arrived = [0] * self.n_streams
        self.arrived = defaultdict(list)  # (side, key) -> rows seen by the statistics
        self.sequence = [[] for _ in self.rows]  # per stream, the same rows one after the other

    # pools

    def pool_number(self, y):
        return 0 if self.unified else y.side

    def pool_of(self, y):
        return self.pools[self.pool_number(y)]

    def residents(self, side):
        return [y for pool in self.pools for y in pool if y.side == side]

    def remove(self, y):
        """The last of the pool's array takes the place of y (only rand looks at places)."""
        pool = self.pool_of(y)
        place = pool.index(y)
        pool[place] = pool[-1]
        pool.pop()

    # step 1: windows

    def dead(self, y):
        return y.end <= self.t

    def now(self, side):
        """The tick by which a stream's rows age."""
        return self.t

    def remaining(self, y):
        return y.end - self.t

    def expiry(self, y):
        return y.end

    def lifetime(self, side):
        return self.rows[side][0].end - self.rows[side][0].ts

    def expire(self):
        """Step 1: remove the dead, stream by stream, oldest first."""
        for side in range(self.n_streams):
            for y in sorted(self.residents(side), key=lambda y: y.age_order):
                if self.dead(y):
                    self.remove(y)

    # step 2: statistics

    def is_null(self, x):
        return x.key is None

    def count(self, x):
        """Step 2: x is seen by the statistics."""
        self.arrived[x.side, x.key].append(x)
        self.sequence[x.side].append(x)

    def frequency_in(self, side, key):
        """How often the key occurs in a stream, by the chosen statistics (§3.1)."""
        if self.statistics == "history":
            return len(self.arrived[side, key])
        if self.statistics == "window":
            return sum(not self.dead(y) for y in self.arrived[side, key])
        if self.statistics == "memory":
            return sum(y.key == key for y in self.residents(side))
        return sum(y.key == key for y in self.rows[side])  # oracle

    def total_in(self, side):
        """How many rows of a stream the statistics know."""
        if self.statistics == "history":
            return len(self.sequence[side])
        if self.statistics == "window":
            return sum(not self.dead(y) for y in self.sequence[side])
        return sum(y.key is not None for y in self.rows[side])  # oracle

    def frequency(self, y):
        """f(s, v): frequency of y's key in the next stream, or product over all others."""
        others = [(y.side + 1) % self.n_streams]
        if self.partner == "product":
            others = [side for side in range(self.n_streams) if side != y.side]
        return math.prod(self.frequency_in(side, y.key) for side in others)

    # step 3: probe

    def probe(self, x, older_only=False):
        """Step 3: x with every combination of residents of the other streams with its key."""
        parts = [
            [
                y
                for y in self.residents(side)
                if y.key == x.key and not (older_only and y.ts == x.ts)
            ]
            for side in range(self.n_streams)
        ]
        parts[x.side] = [x]
        combos = list(product(*parts))
        self.results += [tuple(r.row for r in combo) for combo in combos]
        if combos:
            self.policy.on_match([y for part in parts for y in part if y is not x], x)

    def pair_up(self, instant):
        """All pairs of the instant, different streams, equal keys (k = 2); credits nobody."""
        for x, y in combinations(instant, 2):
            if x.side != y.side and x.key == y.key and x.probes and y.probes:
                self.results.append((x.row, y.row) if x.side == 0 else (y.row, x.row))

    # step 4: admission

    def admit(self, x):
        """Step 4: x enters its pool, perhaps in the place of a victim, or it does not."""
        pool, cap = self.pool_of(x), self.capacities[self.pool_number(x)]
        if not x.inserts or cap == 0:
            self.shed.append((x.side, x.row, "not admitted"))
            return
        if cap is not None and len(pool) >= cap:
            victim = self.policy.choose(pool, x)
            if victim is None:
                self.shed.append((x.side, x.row, "not admitted"))
                return
            self.shed.append((victim.side, victim.row, "evicted"))
            self.remove(victim)
        self.policy.on_insert(x, pool)
        pool.append(x)
        number = self.pool_number(x)
        self.max_held[number] = max(self.max_held[number], len(pool))

    # all steps

    def instants(self, order):
        """probe_first: every row alone; otherwise all rows with the same ts together."""
        if order == "probe_first":
            return [[x] for x in self.events]
        if order not in ("simultaneous", "evict_first") or self.n_streams != 2:
            raise ValueError(f"order {order!r} is unknown or needs two streams")
        return [[x for x in self.events if x.ts == t] for t in sorted({x.ts for x in self.events})]

    def run(self, order="probe_first"):
        """All arrivals, instant by instant; rows with a null key are only counted."""
        self.order = order
        for x in self.events:
            self.n_null[x.side] += self.is_null(x)
        self.events = [x for x in self.events if not self.is_null(x)]
        for instant in self.instants(order):
            if self.t is not None and instant[0].ts > self.t:
                self.policy.on_time_unit_end()
            self.t = instant[0].ts
            for x in instant:
                self.n_arrived[x.side] += 1
            self.expire()
            for x in instant:
                if x.probes or x.inserts:
                    self.count(x)
            for x in instant:
                x.first_f = self.frequency(x)
            if order == "evict_first":
                for x in instant:
                    self.admit(x)
            for x in instant:
                if x.probes:
                    self.probe(x, older_only=order == "evict_first")
            self.pair_up(instant)
            if order != "evict_first":
                for x in instant:
                    self.admit(x)
            self.policy.on_rows(sum(self.n_arrived))

    def report(self, n_exact):
        return NaiveResult(
            self.results, len(self.results), n_exact, self.shed, self.n_null, self.max_held
        )


class CountWindowJoin(Join):
    """A row dies when `n_rows` further rows of its own stream have arrived."""

    def dead(self, y):
        return self.remaining(y) < 0

    def now(self, side):
        return self.n_arrived[side]

    def remaining(self, y):
        return self.expiry(y) - self.n_arrived[y.side]

    def expiry(self, y):
        return y.index + self.n_rows[y.side]

    def lifetime(self, side):
        return self.n_rows[side]


class WorkloadJoin(Join):
    """Several joins over shared residents, each on its own attributes and lifetimes (§5.3.4)."""

    def seats(self, x):
        """(query number, place among its members, value) for every query x's stream is in."""
        for q, (members, _) in enumerate(self.queries):
            for place, (side, attribute) in enumerate(members):
                if side == x.side:
                    yield q, place, x.key.get(attribute)

    def query_end(self, q, place, y):
        return y.ts + self.queries[q][1][place] + self.closed

    def is_null(self, x):
        return all(value is None for _, _, value in self.seats(x))

    def count(self, x):
        for q, place, value in self.seats(x):
            self.arrived[q, place, value].append(x)

    def frequency(self, y):
        """Sum over y's queries of the frequency of its value in the next member's stream."""
        total = 0
        for q, place, value in self.seats(y):
            if value is not None:
                following = (place + 1) % len(self.queries[q][0])
                total += len(self.arrived[q, following, value])
        return total

    def probe(self, x, older_only=False):
        """Query by query; a resident is matched once per query (§4.3, §5.3.4)."""
        for q, place, value in self.seats(x):
            if value is None:
                continue
            parts = [
                [
                    y
                    for y in self.residents(side)
                    if y.key.get(attribute) == value and self.query_end(q, member, y) > self.t
                ]
                for member, (side, attribute) in enumerate(self.queries[q][0])
            ]
            parts[place] = [x]
            combos = list(product(*parts))
            self.results += [(q, *(r.row for r in combo)) for combo in combos]
            if combos:
                self.policy.on_match([y for part in parts for y in part if y is not x], x)


# ----------------------------------------------------------------------------------- the doors


def per_row(values, side, row, default):
    """values: None, or per stream either one value or a list per row."""
    if values is None:
        return default
    return values[side][row] if hasattr(values[side], "__len__") else values[side]


def make_rows(streams, ends=None, keep=None, probe=None, insert=None, imps=None):
    """The rows of all streams, with their flags."""
    return [
        [
            Row(
                side,
                row,
                ts,
                key,
                end=ends[side][row] if ends else None,
                keep=per_row(keep, side, row, 0),
                probes=per_row(probe, side, row, True),
                inserts=per_row(insert, side, row, True),
                imp=per_row(imps, side, row, 1.0),
            )
            for row, (ts, key) in enumerate(part)
        ]
        for side, part in enumerate(streams)
    ]


def window_join(
    streams,
    *,
    lifetimes=None,
    capacity,
    policy,
    params=None,
    order="probe_first",
    closed=False,
    unified=False,
    statistics=None,
    competing=None,
    partner="next",
    seed=0,
    keep=None,
    fifo_mode=None,
    probe=None,
    insert=None,
    ends=None,
    imps=None,
) -> NaiveResult:
    """Time-window equi-join of k streams of (ts, key) under a memory limit (§4, Algorithm 1).

    `ends` (per stream a list of first dead instants, e.g. the next landmark) overrides lifetimes.
    """
    ends = row_ends(streams, lifetimes, closed, ends)
    join = Join(
        make_rows(streams, ends, keep, probe, insert, imps),
        None if policy == "full" else capacity,
        unified,
        statistics or "history",
        partner,
    )
    join.policy = make_policy(policy, join, competing, params, seed, fifo_mode)
    join.run(order)
    return join.report(exact_count(streams, lifetimes, closed, ends))


def count_window_join(
    streams,
    n_rows,
    capacity,
    policy,
    *,
    params=None,
    unified=False,
    statistics=None,
    competing=None,
    partner="next",
    seed=0,
    keep=None,
    fifo_mode=None,
    probe=None,
    insert=None,
    imps=None,
) -> NaiveResult:
    """As window_join, but the window of stream s is its last n_rows[s] rows."""
    if min(n_rows) < 1:
        raise ValueError("n_rows must be at least 1")
    join = CountWindowJoin(
        make_rows(streams, None, keep, probe, insert, imps),
        None if policy == "full" else capacity,
        unified,
        statistics or "history",
        partner,
    )
    join.n_rows = n_rows
    join.policy = make_policy(policy, join, competing, params, seed, fifo_mode)
    join.run()
    return join.report(len(exact_count_window_join(streams, n_rows)))


def workload_join(
    streams,
    queries,
    capacity,
    policy,
    *,
    unified=True,
    params=None,
    closed=False,
    competing=None,
    seed=0,
) -> NaiveResult:
    """Several joins over the same streams and residents; streams of (ts, {attribute: value}).

    queries: list of (members=[(stream, attribute), ...], lifetimes=[one per member]). A row is
    resident until its largest end. Results are (query number, rows in the order of the members).
    """
    if policy in NO_WORKLOADS or (params or {}).get("method", 1) != 1:
        raise ValueError(f"a workload runs no {', '.join(NO_WORKLOADS)}, and method 1 of gdj alone")
    sides = {side for members, _ in queries for side, _ in members}
    if sides != set(range(len(streams))):
        raise ValueError("every stream must take part in some query")
    if any(len({side for side, _ in members}) < len(members) for members, _ in queries):
        raise ValueError("a stream may take part only once in a query")
    join = WorkloadJoin(make_rows(streams), None if policy == "full" else capacity, unified)
    join.queries, join.closed = queries, bool(closed)
    for x in (x for part in join.rows for x in part):
        x.end = max(join.query_end(q, place, x) for q, place, _ in join.seats(x))
    join.policy = make_policy(policy, join, competing, params, seed)
    join.run()
    n_exact = 0
    for members, lifetimes in queries:
        projected = [[(ts, key.get(name)) for ts, key in streams[s]] for s, name in members]
        n_exact += exact_count(projected, lifetimes, closed)
    return join.report(n_exact)
