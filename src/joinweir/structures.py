"""Compiled data structures that policies are built from.

Each is a named tuple of arrays and a few functions; none allocates. What each one is for:

=============  =======================================================  ======================
structure      answers                                                  cost
=============  =======================================================  ======================
`Heap`         smallest (key, ts, seq) of ids whose keys change singly  O(log n)
`PairHeaps`    the same in each of many small sets (a key's rows)       O(log n) amortised
`Tree`         rank of a key, and the key at a rank (treap)             O(log n) expected
`Tournament`   smallest f * c(end - t) as t moves on (kinetic)          O(log² n) amortised
`Recent`       at which of the last h places of a stream a key stands   O(1) + those places
`Credits`      percentile of credits when whole groups gain at once     see there
=============  =======================================================  ======================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiling import kernel
from .layout import NIL, record

PAGE = 128  # bases a page of `Credits` covers: 512 bytes in one go, not one cache line at a time
PAGE_BITS = 7
COARSE = 128  # credits that one coarse counter of `Credits` sums up
FOREVER = np.iinfo(np.int64).max


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (and at least 2)."""
    return 1 << max(1, int(n - 1).bit_length())


def grown(old, fresh):
    """The fresh arrays (or named tuples of them) with the old contents in front on every axis."""
    if isinstance(old, tuple):
        return type(old)(*(grown(a, b) for a, b in zip(old, fresh, strict=True)))
    fresh[tuple(slice(0, n) for n in old.shape)] = old
    return fresh


# --- hashing and random numbers (splitmix64, Steele et al. 2014) -------------------------------
@kernel
def mix(x):
    """A well-mixed, non-negative int64 of any int64."""
    z = np.uint64(x)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(z >> np.uint64(1))


@kernel
def sign_of(h):
    """+1 or -1 by a bit of a hash that cell numbers do not use."""
    return 1 - 2 * ((h >> 40) & 1)


@kernel
def draw(state, at):
    """The next uniform number in [0, 1) of the generator kept in state[at]."""
    z = np.uint64(state[at]) + np.uint64(0x9E3779B97F4A7C15)
    state[at] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * 2.0**-53


# --- Heap: indexed binary heaps, one per side --------------------------------------------------
class Heap(NamedTuple):
    """Heaps of (key, ts, seq) with an id each, one heap a row; `pos` finds an id again.

    `ts` need not be a time: it is what decides between equal keys (`new_heap` has its type).
    """

    entry: np.ndarray  # (key, ts, seq, id)[k, n]
    pos: np.ndarray  # int32[ids], NIL = absent. An id is in one heap at most.
    size: np.ndarray  # int64[k]


def new_heap(k: int, capacity: int, ids: int, tie: str = "i8") -> Heap:
    """Empty heaps of up to `capacity` entries for ids below `ids`."""
    return Heap(
        entry=np.zeros((k, capacity), record(key="f8", ts=tie, seq="i8", id="i4")),
        pos=np.full(ids, NIL, np.int32),
        size=np.zeros(k, np.int64),
    )


@kernel
def before(key, ts, seq, key2, ts2, seq2):
    """Whether the first is the better victim: smaller key, then older."""
    if key != key2:
        return key < key2
    if ts != ts2:
        return ts < ts2
    return seq < seq2


@kernel
def heap_move(H, s, source, target):
    """Copy an entry to another place."""
    a, b = H.entry[s, source], H.entry[s, target]
    b.key, b.ts, b.seq, b.id = a.key, a.ts, a.seq, a.id
    H.pos[a.id] = target


@kernel
def heap_place(H, s, at, key, ts, seq, id):
    """Sift an entry that belongs at or around `at` to its place."""
    while at > 0:
        up = (at - 1) >> 1
        e = H.entry[s, up]
        if not before(key, ts, seq, e.key, e.ts, e.seq):
            break
        heap_move(H, s, up, at)
        at = up
    n = H.size[s]
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        e = H.entry[s, down]
        if down + 1 < n:
            f = H.entry[s, down + 1]
            if before(f.key, f.ts, f.seq, e.key, e.ts, e.seq):
                down += 1
                e = f
        if not before(e.key, e.ts, e.seq, key, ts, seq):
            break
        heap_move(H, s, down, at)
        at = down
    e = H.entry[s, at]
    e.key, e.ts, e.seq, e.id = key, ts, seq, id
    H.pos[id] = at


@kernel
def heap_set(H, s, id, key, ts, seq):
    """Enter an id, or change its key."""
    at = H.pos[id]
    if at == NIL:
        at = H.size[s]
        H.size[s] += 1
    heap_place(H, s, at, key, ts, seq, id)


@kernel
def heap_drop(H, s, id):
    """Remove an id."""
    at = H.pos[id]
    H.pos[id] = NIL
    H.size[s] -= 1
    last = H.size[s]
    if at != last:
        e = H.entry[s, last]
        heap_place(H, s, at, e.key, e.ts, e.seq, e.id)


@kernel
def heap_of_pool(H, sides, side):
    """Among the sides that share the pool of `side`: the one whose top is the best victim."""
    best = NIL
    for s in range(sides.size):
        if sides[s].pool == sides[side].pool and H.size[s] > 0:
            if best == NIL:
                best = s
            else:
                e, f = H.entry[s, 0], H.entry[best, 0]
                if before(e.key, e.ts, e.seq, f.key, f.ts, f.seq):
                    best = s
    return best


# --- PairHeaps: many small mergeable heaps of slots (Fredman et al. 1986) ----------------------
class PairHeaps(NamedTuple):
    """Pairing heaps of slots, ordered by (base, ts, seq); `root` of each heap."""

    kin: np.ndarray  # (base, child, sibling, back)[slots]; back: previous sibling, or parent
    root: np.ndarray  # int32[heaps]


def new_pair_heaps(slots: int, heaps: int, base: str = "i8") -> PairHeaps:
    """Empty heaps."""
    kin = record(base=base, child="i4", sibling="i4", back="i4")
    return PairHeaps(kin=np.zeros(slots, kin), root=np.full(heaps, NIL, np.int32))


@kernel
def meld(kin, slot, a, b):
    """Merge two heaps given by their roots."""
    if a == NIL:
        return b
    if b == NIL:
        return a
    x, y = slot[a], slot[b]
    if before(kin[b].base, y.ts, y.seq, kin[a].base, x.ts, x.seq):
        a, b = b, a
    first = kin[a].child
    kin[b].sibling = first
    if first != NIL:
        kin[first].back = b
    kin[b].back = a
    kin[a].child = b
    return a


@kernel
def meld_children(kin, slot, node):
    """The two passes of a pairing heap: children merged in pairs, then into one."""
    at = kin[node].child
    kin[node].child = NIL
    done = np.int32(NIL)  # pairs, linked through sibling
    while at != NIL:
        a = at
        b = kin[a].sibling
        at = np.int32(NIL) if b == NIL else kin[b].sibling
        kin[a].sibling = NIL
        kin[a].back = NIL
        if b != NIL:
            kin[b].sibling = NIL
            kin[b].back = NIL
        pair = meld(kin, slot, a, b)
        kin[pair].sibling = done
        done = pair
    root = np.int32(NIL)
    while done != NIL:
        after = kin[done].sibling
        kin[done].sibling = NIL
        root = meld(kin, slot, root, done)
        done = after
    return root


@kernel
def pair_insert(Q, slot, heap, node, base):
    x = Q.kin[node]
    x.base, x.child, x.sibling, x.back = base, NIL, NIL, NIL
    Q.root[heap] = meld(Q.kin, slot, Q.root[heap], node)


@kernel
def pair_remove(Q, slot, heap, node):
    kin = Q.kin
    if Q.root[heap] == node:
        Q.root[heap] = meld_children(kin, slot, node)
        return
    back, sibling = kin[node].back, kin[node].sibling
    if kin[back].child == node:
        kin[back].child = sibling
    else:
        kin[back].sibling = sibling
    if sibling != NIL:
        kin[sibling].back = back
    kin[node].sibling = NIL
    kin[node].back = NIL
    Q.root[heap] = meld(kin, slot, Q.root[heap], meld_children(kin, slot, node))


# --- Tree: order statistics (treap, Seidel and Aragon 1996) ------------------------------------
NODE = record(key="i8", left="i4", right="i4", count="i4")  # count: nodes below and including


class Tree(NamedTuple):
    """Search trees of slots by (key, ts, seq) with subtree sizes, one root a pool."""

    node: np.ndarray  # NODE[slots]
    root: np.ndarray  # int32[pools]
    path: np.ndarray  # int32[512] scratch: depth is ~ 3 log2 n; 512 is out of reach


def new_tree(pools: int, slots: int) -> Tree:
    """Empty trees."""
    return Tree(
        node=np.zeros(slots, NODE),
        root=np.full(pools, NIL, np.int32),
        path=np.zeros(512, np.int32),
    )


@kernel
def tree_count(node, at):
    return 0 if at == NIL else node[at].count


@kernel
def tree_recount(node, at):
    node[at].count = 1 + tree_count(node, node[at].left) + tree_count(node, node[at].right)


@kernel
def tree_hang(T, pool, parent, on_left, child):
    if parent == NIL:
        T.root[pool] = child
    elif on_left:
        T.node[parent].left = child
    else:
        T.node[parent].right = child


@kernel
def tree_insert(T, slot, pool, new, key):
    """Insert at the height that the slot's random priority gives it."""
    node = T.node
    ts, seq = slot[new].ts, slot[new].seq
    weight = mix(seq)
    parent = np.int32(NIL)
    at = T.root[pool]
    on_left = False
    while at != NIL and mix(slot[at].seq) >= weight:
        node[at].count += 1
        parent = at
        on_left = before(key, ts, seq, node[at].key, slot[at].ts, slot[at].seq)
        at = node[at].left if on_left else node[at].right
    tree_hang(T, pool, parent, on_left, new)
    # Split what stood there into smaller (left of new) and larger (right of new).
    node[new].key, node[new].left, node[new].right = key, NIL, NIL
    low = high = new
    depth = 0
    while at != NIL:
        T.path[depth] = at
        depth += 1
        if before(node[at].key, slot[at].ts, slot[at].seq, key, ts, seq):
            if low == new:
                node[new].left = at
            else:
                node[low].right = at
            low = at
            at = node[at].right
        else:
            if high == new:
                node[new].right = at
            else:
                node[high].left = at
            high = at
            at = node[at].left
    if low != new:
        node[low].right = NIL
    if high != new:
        node[high].left = NIL
    while depth > 0:
        depth -= 1
        tree_recount(node, T.path[depth])
    tree_recount(node, new)


@kernel
def tree_remove(T, slot, pool, old):
    node = T.node
    key, ts, seq = node[old].key, slot[old].ts, slot[old].seq
    parent = np.int32(NIL)
    at = T.root[pool]
    on_left = False
    while at != old:
        node[at].count -= 1
        parent = at
        on_left = before(key, ts, seq, node[at].key, slot[at].ts, slot[at].seq)
        at = node[at].left if on_left else node[at].right
    a, b = node[old].left, node[old].right
    while a != NIL and b != NIL:  # merge its two sides, heavier roots first
        if mix(slot[a].seq) >= mix(slot[b].seq):
            node[a].count += node[b].count
            tree_hang(T, pool, parent, on_left, a)
            parent, on_left = a, False
            a = node[a].right
        else:
            node[b].count += node[a].count
            tree_hang(T, pool, parent, on_left, b)
            parent, on_left = b, True
            b = node[b].left
    tree_hang(T, pool, parent, on_left, b if a == NIL else a)


@kernel
def tree_below(T, pool, key):
    """How many nodes have a smaller key."""
    node = T.node
    n = 0
    at = T.root[pool]
    while at != NIL:
        if node[at].key < key:
            n += 1 + tree_count(node, node[at].left)
            at = node[at].right
        else:
            at = node[at].left
    return n


@kernel
def tree_at(T, pool, rank):
    """The node at a rank, counted from 0."""
    node = T.node
    at = T.root[pool]
    while True:
        left = tree_count(node, node[at].left)
        if rank < left:
            at = node[at].left
        elif rank == left:
            return at
        else:
            rank -= left + 1
            at = node[at].right


# --- Tournament: the smallest of many falling values as time moves on --------------------------
LINE = record(factor="f8", end="i8", ts="i8", seq="i8")
MATCH = record(until="i8", winner="i4")  # winner: a leaf, NIL = nobody below


class Tournament(NamedTuple):
    """Kinetic tournament trees, one a side: leaf i is worth factor * c(end - t), c >= 0.

    A node knows its winner and until when that is certain; moving time on visits only nodes whose
    certainty has run out. Without a curve c(x) = x. With one, c is convex and rising: it stands in
    `curve` at 0, 1, 2 …, goes straight on between and beyond these places, is 0 below 0, and is
    read at ``base + rate * (end - t)``.
    """

    line: np.ndarray  # LINE[k, leaves]
    match: np.ndarray  # MATCH[k, 2 * leaves]
    stack: np.ndarray  # int32[128] scratch
    curve: np.ndarray  # float64[k, places], no places: straight lines
    base: np.ndarray  # float64[k]
    rate: np.ndarray  # float64[k]


def new_tournament(k: int, leaves: int, places: int = 0) -> Tournament:
    """Empty trees; `leaves` is a power of two, `places` 0 or at least 2."""
    match = np.zeros((k, 2 * leaves), MATCH)
    match["until"] = FOREVER
    match["winner"] = NIL
    return Tournament(
        line=np.zeros((k, leaves), LINE),
        match=match,
        stack=np.zeros(128, np.int32),
        curve=np.tile(np.arange(places, dtype=np.float64), (k, 1)),
        base=np.zeros(k),
        rate=np.ones(k),
    )


def grow_tournament(old: Tournament, fresh: Tournament) -> Tournament:
    """The same lines in a tree with more leaves; every node is played again when asked."""
    n = old.line.shape[1]
    leaves = fresh.line.shape[1]
    fresh.line[:, :n] = old.line
    fresh.match["winner"][:, leaves : leaves + n] = old.match["winner"][:, n:]
    forget_matches(fresh)
    return fresh._replace(curve=old.curve, base=old.base, rate=old.rate)


def forget_matches(N: Tournament) -> None:
    """Every node is played again when asked: the curve, or how it is read, has changed."""
    N.match["until"][:, 1 : N.line.shape[1]] = -FOREVER


@kernel
def place_on_curve(N, s, line, t):
    return N.base[s] + N.rate[s] * float(line.end - t)


@kernel
def curve_slope(N, s, x):
    """How steep the curve is at x; of two at a corner, the right one."""
    if x < 0.0:
        return 0.0
    i = min(np.int64(x), N.curve.shape[1] - 2)
    return N.curve[s, i + 1] - N.curve[s, i]


@kernel
def tournament_value(N, s, leaf, t):
    """What a leaf is worth at time t."""
    line = N.line[s, leaf]
    if N.curve.shape[1] == 0:
        return line.factor * float(line.end - t)
    x = place_on_curve(N, s, line, t)
    if x <= 0.0:
        return 0.0
    i = min(np.int64(x), N.curve.shape[1] - 2)
    low = N.curve[s, i]
    return line.factor * (low + (x - float(i)) * (N.curve[s, i + 1] - low))


@kernel
def certain_ticks(N, s, a, b, va, vb, t):
    """For how long line a, worth va, surely stays below line b, worth vb >= va; or at least 1e18.

    A loser falls at most as fast as the curve is steep where it is, since c is convex. A winner,
    for half of its life, falls at least as fast as the curve is steep there.
    """
    if N.curve.shape[1] == 0:
        slope = b.factor - a.factor
        return (vb - va) / slope if slope > 0.0 else 1e18
    rate = N.rate[s]
    if rate == 0.0:
        return 1e18
    half = 0.5 * place_on_curve(N, s, a, t)
    slowest = a.factor * curve_slope(N, s, half)
    if half <= 0.0:  # worth nothing, and nothing less to come
        half, slowest = 1e18, 0.0
    closing = b.factor * curve_slope(N, s, place_on_curve(N, s, b, t)) - slowest
    if closing > 0.0:
        half = min(half, (vb - va) / closing)
    return half / rate


@kernel
def play(N, s, at, t):
    """Decide a node from its children at time t, and until when that holds."""
    p, q = N.match[s, 2 * at], N.match[s, 2 * at + 1]
    x, y = p.winner, q.winner
    until = min(p.until, q.until)
    here = N.match[s, at]
    if x == NIL or y == NIL:
        here.winner = y if x == NIL else x
        here.until = until
        return
    a, b = N.line[s, x], N.line[s, y]
    va, vb = tournament_value(N, s, x, t), tournament_value(N, s, y, t)
    if before(vb, b.ts, b.seq, va, a.ts, a.seq):
        x = y
        a, b = b, a
        va, vb = vb, va
    here.winner = x
    # One tick early, and short by more than rounding can be: asking too soon is harmless.
    ahead = certain_ticks(N, s, a, b, va, vb, t) * (1.0 - 1e-9) - 1.0
    if ahead < 1e17:
        until = min(until, t + max(np.int64(1), np.int64(ahead)))
    here.until = until


@kernel
def replay(N, s, leaf, t):
    at = (N.line.shape[1] + leaf) >> 1
    while at >= 1:
        play(N, s, at, t)
        at >>= 1


@kernel
def tournament_set(N, s, leaf, factor, end, ts, seq, t):
    """Enter or change a line."""
    line = N.line[s, leaf]
    line.factor, line.end, line.ts, line.seq = factor, end, ts, seq
    N.match[s, N.line.shape[1] + leaf].winner = leaf
    replay(N, s, leaf, t)


@kernel
def tournament_drop(N, s, leaf, t):
    N.match[s, N.line.shape[1] + leaf].winner = NIL
    replay(N, s, leaf, t)


@kernel
def tournament_winner(N, s, t):
    """The leaf with the smallest line at time t, or NIL."""
    leaves = N.line.shape[1]
    if N.match[s, 1].until <= t:
        # Post-order over the nodes that have run out; a negative number asks to play the node.
        depth = 1
        N.stack[0] = 1
        while depth > 0:
            depth -= 1
            at = N.stack[depth]
            if at < 0:
                play(N, s, -at, t)
                continue
            N.stack[depth] = -at
            depth += 1
            for child in range(2 * at, 2 * at + 2):
                if child < leaves and N.match[s, child].until <= t:
                    N.stack[depth] = child
                    depth += 1
    return N.match[s, 1].winner


# --- Recent: the last h keys of each stream ----------------------------------------------------
PASSED = record(key="i8", earlier="i8")  # earlier: number of the key's row before it, or NIL
LATEST = record(key="i8", number="i8")  # of the index: open addressing, NIL = free


class Recent(NamedTuple):
    """The last h rows of each stream, linked by key: row number i stands at place i % h."""

    row: np.ndarray  # PASSED[k, h]
    latest: np.ndarray  # LATEST[k, a power of two >= 2 h] the newest row of each of these keys
    n: np.ndarray  # int64[k] rows so far


def new_recent(k: int, h: int) -> Recent:
    """No rows yet."""
    row, latest = np.zeros((k, h), PASSED), np.zeros((k, power_of_two(2 * h)), LATEST)
    row["earlier"] = latest["number"] = NIL
    return Recent(row, latest, np.zeros(k, np.int64))


@kernel
def recent_place(R, s, key):
    """Where a key stands in the index, or would."""
    mask = R.latest.shape[1] - 1
    at = mix(key) & mask
    while R.latest[s, at].number != NIL and R.latest[s, at].key != key:
        at = (at + 1) & mask
    return at


@kernel
def recent_latest(R, s, key):
    """Number of the newest row of a key among the last h, or NIL."""
    return R.latest[s, recent_place(R, s, key)].number


@kernel
def recent_earlier(R, s, number):
    """Number of the row before that one with the same key, if among the last h; or NIL."""
    h = R.row.shape[1]
    earlier = R.row[s, number % h].earlier
    return earlier if earlier >= R.n[s] - h else np.int64(NIL)


@kernel
def recent_add(R, s, key):
    """The next row of a stream; the one h rows before it goes."""
    h = R.row.shape[1]
    n = R.n[s]
    row = R.row[s, n % h]
    if n >= h:
        hole = recent_place(R, s, row.key)
        if R.latest[s, hole].number == n - h:  # the key's last one; the run behind it moves up
            mask = R.latest.shape[1] - 1
            at = hole
            while True:
                at = (at + 1) & mask
                if R.latest[s, at].number == NIL:
                    break
                home = mix(R.latest[s, at].key) & mask
                if ((at - home) & mask) >= ((at - hole) & mask):
                    R.latest[s, hole].key = R.latest[s, at].key
                    R.latest[s, hole].number = R.latest[s, at].number
                    hole = at
            R.latest[s, hole].number = NIL
    place = R.latest[s, recent_place(R, s, key)]
    row.key, row.earlier = key, place.number
    place.key, place.number = key, n
    R.n[s] = n + 1


# --- Credits: the percentile of credits that grow by whole groups ------------------------------
class Credits(NamedTuple):
    """Histogram of integer credits per pool, when all rows of a group gain 1 at once.

    A row's credit is ``base + gain`` of its group. A group of more than a few rows keeps how many
    of them have which base, in pages of 128 neighbouring bases. When the group gains, each page is
    added to the pool's histogram one place further on: 128 bases for a few cache lines, instead of
    a visit to every row. Pages that hold rows are linked per group and found by hash. In a small
    group the caller visits the rows: most are in a skewed stream, and a page for each costs more.

    The percentile is a pointer into the histogram with the number of rows below it; coarse sums let
    it pass over gaps. The histogram is a ring: credits only grow, so its span stays bounded, and
    the caller enlarges it when not.
    """

    group: np.ndarray  # GAIN[groups]
    page: np.ndarray  # SHEET[pages]
    count: np.ndarray  # int32[pages, PAGE]
    free: np.ndarray  # int32[1] list of free pages
    table: np.ndarray  # PAGE_PLACE[power of two]
    fine: np.ndarray  # int32[pools, ring]
    coarse: np.ndarray  # int32[pools, ring / COARSE]
    pool: np.ndarray  # PERCENTILE[pools]


GAIN = record(
    gain="i8",
    first="i4",  # page of the group
    pages="i4",
    paged="i4",  # 0: a small or thin group, whose rows are visited one by one
)
SHEET = record(number="i8", rows="i4", following="i4", previous="i4")  # number: base // PAGE
PAGE_PLACE = record(key="i8", page="i4")
PERCENTILE = record(
    pointer="i8",
    below="i8",  # rows with a credit below the pointer
    n="i8",
    top="i8",  # no credit is larger
)


def new_credits(pools: int, groups: int, pages: int, ring: int) -> Credits:
    """Empty, with room for `pages` pages; `ring` is a power of two >= 4 * PAGE."""
    page = np.zeros(pages, SHEET)
    page["following"] = np.arange(1, pages + 1)
    page["following"][-1] = NIL
    group = np.zeros(groups, GAIN)
    group["first"] = NIL
    table = np.zeros(power_of_two(2 * pages), PAGE_PLACE)
    table["page"] = NIL
    return Credits(
        group=group,
        page=page,
        count=np.zeros((pages, PAGE), np.int32),
        free=np.zeros(1, np.int32),
        table=table,
        fine=np.zeros((pools, ring), np.int32),
        coarse=np.zeros((pools, ring // COARSE), np.int32),
        pool=np.zeros(pools, PERCENTILE),
    )


def grow_credits(old: Credits, fresh: Credits) -> Credits:
    """The same credits with more groups and pages, on the same ring."""
    n = old.page.size
    fresh.group[: old.group.size] = old.group
    fresh.page[:n] = old.page
    fresh.count[:n] = old.count
    if fresh.page.size > n:
        fresh.page["following"][-1] = old.free[0]
        fresh.free[0] = n
    else:
        fresh.free[0] = old.free[0]
    _rehash_pages(old.table, fresh.table)
    return fresh._replace(fine=old.fine, coarse=old.coarse, pool=old.pool)


def widen_credits(C: Credits, low: int, n: int) -> Credits:
    """Room on the ring for credits, now from `low` on, that grow by up to n."""
    ring = C.fine.shape[1]
    filled = C.pool["n"] > 0
    if not filled.any():
        span = 0
    else:
        span = int((C.pool["top"] - np.minimum(low, C.pool["pointer"]))[filled].max())
    need = span + n + 4 * PAGE
    if need <= ring:
        return C
    wider = power_of_two(need)
    fine = np.zeros((C.fine.shape[0], wider), np.int32)
    for p in np.flatnonzero(filled):
        top = int(C.pool[p]["top"])
        at = np.flatnonzero(C.fine[p])
        fine[p, (top - (top - at) % ring) % wider] = C.fine[p, at]
    coarse = fine.reshape(fine.shape[0], -1, COARSE).sum(axis=2, dtype=np.int32)
    return C._replace(fine=fine, coarse=coarse)


@kernel
def _rehash_pages(old, new):
    mask = new.size - 1
    for i in range(old.size):
        if old[i].page != NIL:
            at = mix(old[i].key) & mask
            while new[at].page != NIL:
                at = (at + 1) & mask
            new[at].key = old[i].key
            new[at].page = old[i].page


@kernel
def page_key(group, number):
    return (np.int64(group) << 32) ^ (number & 0xFFFFFFFF)


@kernel
def page_of(C, group, number, make):
    """The page of a group for bases number * PAGE …; made if it is to be."""
    mask = C.table.size - 1
    key = page_key(group, number)
    at = mix(key) & mask
    while C.table[at].page != NIL:
        if C.table[at].key == key:
            return C.table[at].page
        at = (at + 1) & mask
    if not make:
        return np.int32(NIL)
    page = C.free[0]
    C.free[0] = C.page[page].following
    C.table[at].key = key
    C.table[at].page = page
    first = C.group[group].first
    C.page[page].number = number
    C.page[page].previous = NIL
    C.page[page].following = first
    if first != NIL:
        C.page[first].previous = page
    C.group[group].first = page
    C.group[group].pages += 1
    return page


@kernel
def free_page(C, group, page):
    """An empty page goes back; the hash run behind it moves up."""
    mask = C.table.size - 1
    hole = mix(page_key(group, C.page[page].number)) & mask
    while C.table[hole].page != page:
        hole = (hole + 1) & mask
    at = hole
    while True:
        at = (at + 1) & mask
        if C.table[at].page == NIL:
            break
        home = mix(C.table[at].key) & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            C.table[hole].key = C.table[at].key
            C.table[hole].page = C.table[at].page
            hole = at
    C.table[hole].page = NIL
    a, b = C.page[page].previous, C.page[page].following
    if a == NIL:
        C.group[group].first = b
    else:
        C.page[a].following = b
    if b != NIL:
        C.page[b].previous = a
    C.page[page].following = C.free[0]
    C.free[0] = page
    C.group[group].pages -= 1


@kernel
def tally(C, pool, credit, n):
    """Enter (n = 1) or take out (n = -1) a row with this credit."""
    P = C.pool[pool]
    if P.n == 0:
        P.pointer, P.below, P.top = credit, 0, credit
    at = credit & (C.fine.shape[1] - 1)
    C.fine[pool, at] += n
    C.coarse[pool, at // COARSE] += n
    if credit < P.pointer:
        P.below += n
    P.top = max(P.top, credit)
    P.n += n


@kernel
def tally_gain(C, pool, credit):
    """A row with this credit gains 1."""
    mask = C.fine.shape[1] - 1
    P = C.pool[pool]
    at = credit & mask
    C.fine[pool, at] -= 1
    C.fine[pool, (at + 1) & mask] += 1
    if (credit + 1) & (COARSE - 1) == 0:
        C.coarse[pool, at // COARSE] -= 1
        C.coarse[pool, ((at + 1) & mask) // COARSE] += 1
    if credit == P.pointer - 1:
        P.below -= 1
    P.top = max(P.top, credit + 1)


@kernel
def page_count(C, group, base, n):
    """Enter (n = 1) or take out (n = -1) a row of a paged group."""
    number = base >> PAGE_BITS
    page = page_of(C, group, number, n > 0)
    C.count[page, base - number * PAGE] += n
    C.page[page].rows += n
    if C.page[page].rows == 0:
        free_page(C, group, page)


@kernel
def pages_gain(C, pool, group):
    """All rows of a paged group gain 1 (their group's `gain` is the caller's to raise)."""
    mask = C.fine.shape[1] - 1
    P = C.pool[pool]
    gain = C.group[group].gain
    page = C.group[group].first
    while page != NIL:
        first = C.page[page].number * PAGE + gain  # credit of the page's first base
        at = first & mask
        if at + PAGE <= mask:
            # Unsigned indices: numba then leaves out the test for negative ones, and LLVM makes
            # both loops vector instructions.
            u, p = np.uint64(at), np.uint64(page)
            for i in range(np.uint64(PAGE)):
                C.fine[pool, u + i] -= C.count[p, i]
            for i in range(np.uint64(PAGE)):
                C.fine[pool, u + i + np.uint64(1)] += C.count[p, i]
        else:
            for i in range(PAGE):
                C.fine[pool, (at + i) & mask] -= C.count[page, i]
                C.fine[pool, (at + i + 1) & mask] += C.count[page, i]
        i = COARSE - 1 - (first & (COARSE - 1))  # a page is as long as a coarse sum: one edge
        edge = (at + i) & mask
        C.coarse[pool, edge // COARSE] -= C.count[page, i]
        C.coarse[pool, ((edge + 1) & mask) // COARSE] += C.count[page, i]
        i = P.pointer - 1 - first
        if i >= 0 and i < PAGE:
            P.below -= C.count[page, i]
        P.top = max(P.top, first + PAGE)
        page = C.page[page].following


@kernel
def credit_at(C, pool, rank):
    """The credit at a rank of the pool, counted from 0 at the poorest."""
    mask = C.fine.shape[1] - 1
    P = C.pool[pool]
    p, below = P.pointer, P.below
    while rank < below:
        if p & (COARSE - 1) == 0:
            whole = C.coarse[pool, ((p - 1) & mask) // COARSE]
            if rank < below - whole:
                p -= COARSE
                below -= whole
                continue
        p -= 1
        below -= C.fine[pool, p & mask]
    while rank >= below + C.fine[pool, p & mask]:
        if p & (COARSE - 1) == 0:
            whole = C.coarse[pool, (p & mask) // COARSE]
            if rank >= below + whole:
                p += COARSE
                below += whole
                continue
        below += C.fine[pool, p & mask]
        p += 1
    P.pointer, P.below = p, below
    return p
