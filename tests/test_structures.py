"""Compiled data structures against the plain Python that says what they are."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinweir.layout import NIL, SIDE, SLOT
from joinweir.structures import (
    PAGE,
    credit_at,
    draw,
    forget_matches,
    grow_credits,
    grow_tournament,
    grown,
    heap_drop,
    heap_of_pool,
    heap_set,
    mix,
    new_credits,
    new_heap,
    new_pair_heaps,
    new_recent,
    new_tournament,
    new_tree,
    page_count,
    page_of,
    pages_gain,
    pair_insert,
    pair_remove,
    power_of_two,
    recent_add,
    recent_earlier,
    recent_latest,
    sign_of,
    tally,
    tally_gain,
    tournament_drop,
    tournament_set,
    tournament_winner,
    tree_at,
    tree_below,
    tree_insert,
    tree_remove,
    widen_credits,
)

MASK = 2**64 - 1


def splitmix(state: int) -> tuple[int, int]:
    """Reference: next state and output (Steele et al. 2014)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    return state, finish(state)


def finish(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


# --- hashing and random numbers -----------------------------------------------------------------
def test_draws_are_the_published_splitmix64_sequence():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # seed 0
    state = np.zeros(1, np.int64)
    assert [draw(state, 0) for _ in published] == [(z >> 11) * 2.0**-53 for z in published]


@given(st.integers(-(2**63), 2**63 - 1))
def test_hash_is_the_finisher_of_splitmix64_without_its_sign(x):
    assert mix(np.int64(x)) == finish(x & MASK) >> 1
    assert sign_of(np.int64(mix(np.int64(x)))) in (-1, 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_seed_draws_from_the_unit_interval(seed):
    state = np.array([seed], np.int64)
    expected = seed & MASK
    for _ in range(5):
        expected, z = splitmix(expected)
        u = draw(state, 0)
        assert u == (z >> 11) * 2.0**-53
        assert 0 <= u < 1
        assert int(state[0]) & MASK == expected


def test_signs_of_consecutive_keys_are_even():
    signs = [sign_of(np.int64(mix(np.int64(x)))) for x in range(10_000)]
    assert abs(sum(signs)) < 4 * 100  # 4 standard deviations of 10,000 coins


@pytest.mark.parametrize(("n", "power"), [(0, 2), (1, 2), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_power_of_two_is_the_next_one_and_at_least_two(n, power):
    assert power_of_two(n) == power


def test_grown_keeps_the_old_contents_in_front_on_every_axis():
    old = new_heap(2, 3, 4)
    old.entry["key"][:] = [[1, 2, 3], [4, 5, 6]]
    old.pos[:] = [7, 8, 9, 10]
    wide = grown(old, new_heap(2, 5, 6))
    assert wide.entry["key"].tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 0, 0]]
    assert wide.pos.tolist() == [7, 8, 9, 10, NIL, NIL]


# --- Heap ---------------------------------------------------------------------------------------
def sides_of(pools):
    sides = np.zeros(len(pools), SIDE)
    sides["pool"] = pools
    return sides


@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 2), st.integers(0, 4), st.booleans()),
        min_size=60,
        max_size=120,
    ),
    st.sampled_from([(0, 1, 2), (0, 0, 0), (0, 1, 1)]),
)
def test_heap_top_is_the_smallest_entry_of_its_side(steps, pools):
    """A step enters an id, changes its key, or drops it; the heap is enlarged half-way."""
    heap, sides = new_heap(3, 6, 6), sides_of(pools)
    model: list[dict[int, tuple[float, int, int]]] = [{}, {}, {}]
    for number, (id, side, key, drop) in enumerate(steps):
        if number == len(steps) // 2:
            heap = grown(heap, new_heap(3, 12, 12))
        id = id if number >= len(steps) // 2 else id % 6
        home = next((s for s in range(3) if id in model[s]), None)
        if home is None or not drop:
            side = side if home is None else home
            ts, seq = (number % 3, number) if home is None else model[side][id][1:]
            heap_set(heap, side, id, float(key), ts, seq)
            model[side][id] = (float(key), ts, seq)
        else:
            heap_drop(heap, home, id)
            del model[home][id]
        assert heap.size.tolist() == [len(entries) for entries in model]
        for s, entries in enumerate(model):
            if entries:
                least = min(entries, key=entries.get)
                top = heap.entry[s, 0]
                assert (top["id"], top["key"], top["ts"], top["seq"]) == (least, *entries[least])
            everyone = [(e, s) for s in range(3) if pools[s] == pools[0] for e in model[s].values()]
            best = heap_of_pool(heap, sides, 0)
            assert best == (min(everyone)[1] if everyone else NIL)
    for entries in model:
        for id in entries:
            assert heap.pos[id] != NIL
    assert (heap.pos != NIL).sum() == sum(map(len, model))


# --- PairHeaps ----------------------------------------------------------------------------------
def slots_of(rng, n):
    slot = np.zeros(n, SLOT)
    slot["ts"] = rng.integers(0, 4, n)
    slot["seq"] = rng.permutation(n)
    return slot


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 2), st.integers(-3, 3)),
        min_size=80,
        max_size=160,
    ),
    st.integers(0, 9),
)
def test_pairing_heap_root_is_the_smallest_row_of_its_heap(steps, seed):
    """A step inserts a row that is out, and removes one that is in, root or not."""
    slot = slots_of(np.random.default_rng(seed), 16)
    heaps = new_pair_heaps(16, 3)
    model: list[dict[int, tuple[int, int, int]]] = [{}, {}, {}]
    for node, heap, base in steps:
        home = next((h for h in range(3) if node in model[h]), None)
        if home is None:
            pair_insert(heaps, slot, heap, np.int32(node), base)
            model[heap][node] = (base, int(slot[node]["ts"]), int(slot[node]["seq"]))
        else:
            pair_remove(heaps, slot, home, np.int32(node))
            del model[home][node]
        for h, rows in enumerate(model):
            assert heaps.root[h] == (min(rows, key=rows.get) if rows else NIL)


def test_pairing_heap_sorts():
    rng = np.random.default_rng(3)
    n = 500
    slot = slots_of(rng, n)
    heaps = new_pair_heaps(n, 1)
    base = rng.integers(0, 20, n)
    for node in range(n):
        pair_insert(heaps, slot, 0, np.int32(node), base[node])
    order = []
    while heaps.root[0] != NIL:
        order.append(int(heaps.root[0]))
        pair_remove(heaps, slot, 0, heaps.root[0])
    assert order == np.lexsort((slot["seq"], slot["ts"], base)).tolist()


# --- Tree ---------------------------------------------------------------------------------------
@given(
    st.lists(
        st.tuples(st.integers(0, 19), st.integers(0, 1), st.integers(-4, 4)),
        min_size=80,
        max_size=160,
    ),
    st.integers(0, 9),
)
def test_tree_knows_ranks_and_the_row_at_a_rank(steps, seed):
    slot = slots_of(np.random.default_rng(seed), 20)
    tree = new_tree(2, 20)
    model: list[list[tuple[int, int, int, int]]] = [[], []]  # (key, ts, seq, slot), sorted
    home: dict[int, tuple[int, tuple[int, int, int, int]]] = {}
    for node, pool, key in steps:
        if node in home:
            pool, entry = home.pop(node)
            tree_remove(tree, slot, pool, np.int32(node))
            model[pool].remove(entry)
        else:
            entry = (key, int(slot[node]["ts"]), int(slot[node]["seq"]), node)
            tree_insert(tree, slot, pool, np.int32(node), key)
            model[pool].append(entry)
            model[pool].sort()
            home[node] = (pool, entry)
        for p, entries in enumerate(model):
            assert [tree_at(tree, p, i) for i in range(len(entries))] == [e[3] for e in entries]
            keys = [e[0] for e in entries]
            for wanted in range(-5, 6):
                assert tree_below(tree, p, wanted) == bisect_left(keys, wanted)
            root = tree.root[p]
            assert (tree.node[root]["count"] if entries else root) == (len(entries) or NIL)


def test_tree_stays_shallow():
    """Rows that come in order of key would make a plain search tree a list."""
    n = 20_000
    slot = np.zeros(n, SLOT)
    slot["seq"] = slot["ts"] = np.arange(n)
    tree = new_tree(1, n)
    for node in range(n):
        tree_insert(tree, slot, 0, np.int32(node), node)
    depth, level = 0, [int(tree.root[0])]
    while level:
        depth += 1
        below = tree.node[level]
        level = [c for c in [*below["left"], *below["right"]] if c != NIL]
    assert depth < 60  # 4.2 log2 n; expected about 2 ln n + 10


# --- Tournament ---------------------------------------------------------------------------------
def least_line(lines, t):
    return min(
        lines, key=lambda leaf: (lines[leaf][0] * float(lines[leaf][1] - t), *lines[leaf][2:])
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 7),
            st.sampled_from(["set", "drop", "wait"]),
            st.integers(0, 6),
            st.integers(1, 40),
        ),
        min_size=60,
        max_size=120,
    )
)
def test_tournament_winner_is_the_smallest_line_now(steps):
    """Integers on purpose: lines that meet at a tick, and ties, must be decided as min would."""
    tree, t = new_tournament(2, 4), 0
    model: list[dict[int, tuple[float, int, int, int]]] = [{}, {}]
    for number, (leaf, what, factor, life) in enumerate(steps):
        if number == len(steps) // 2:
            tree = grow_tournament(tree, new_tournament(2, 8))
        leaf = leaf if number >= len(steps) // 2 else leaf % 4
        side = number % 2
        if what == "set":
            model[side][leaf] = (float(factor), t + life, number % 3, number)
            tournament_set(tree, side, leaf, *model[side][leaf], t)
        elif what == "drop" and leaf in model[side]:
            tournament_drop(tree, side, leaf, t)
            del model[side][leaf]
        else:
            t += life // 4
        for s, lines in enumerate(model):
            expected = least_line(lines, t) if lines else NIL
            assert tournament_winner(tree, s, t) == expected


@pytest.mark.parametrize("scale", [1, 1_000, 60_000_000])
def test_tournament_follows_many_lines_through_time(scale):
    """200 lines, no changes but time: every winner of a long march, also with µs ticks."""
    rng = np.random.default_rng(5)
    tree = new_tournament(1, 256)
    lines = {}
    for leaf in range(200):
        line = (float(rng.integers(0, 50)), int(rng.integers(500, 1500)) * scale, leaf % 7, leaf)
        lines[leaf] = line
        tournament_set(tree, 0, leaf, *line, 0)
    t = 0
    while t < 490 * scale:
        assert tournament_winner(tree, 0, t) == least_line(lines, t)
        t += int(rng.integers(1, 8 * scale))


def test_tournament_along_a_curve_follows_many_values_through_time():
    """A convex curve with corners, read by another rate on each side, and drawn anew on the way."""
    rng = np.random.default_rng(6)
    tree = new_tournament(2, 256, 40)
    lines = [
        {
            leaf: (float(rng.integers(0, 50)), int(rng.integers(300, 1500)), leaf % 7, leaf)
            for leaf in range(200)
        }
        for _ in range(2)
    ]

    def value(side, line, t):
        x = tree.base[side] + tree.rate[side] * (line[1] - t)
        curve, last = tree.curve[side], tree.curve.shape[1] - 1
        if x <= 0:
            return 0.0
        beyond = max(0.0, x - last) * (curve[last] - curve[last - 1])
        return line[0] * (np.interp(min(x, last), np.arange(last + 1), curve) + beyond)

    for turn in range(3):
        for side in range(2):
            steps = np.sort(rng.random(39) * rng.integers(0, 4, 39))  # convex: rising steps
            tree.curve[side, 1:] = np.cumsum(steps)
            tree.rate[side], tree.base[side] = rng.choice([0.0, 0.01, 0.07, 3.0]), turn
            if turn == 0:
                for leaf, line in lines[side].items():
                    tournament_set(tree, side, leaf, *line, 0)
        forget_matches(tree)
        t = 400 * turn
        while t < 400 * (turn + 1):
            for side in range(2):
                found = tournament_winner(tree, side, t)
                least = min(value(side, line, t) for line in lines[side].values())
                assert value(side, lines[side][found], t) <= least * (1 + 1e-12)
            t += int(rng.integers(1, 9))


# --- Recent -------------------------------------------------------------------------------------
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3).map(lambda x: x * 2**40))),
)
def test_recent_knows_the_places_of_a_key_among_the_last_rows(h, rows):
    recent = new_recent(2, h)
    seen: list[list[int]] = [[], []]
    for side, key in rows:
        recent_add(recent, side, key)
        seen[side].append(key)
        for s in range(2):
            last = seen[s][-h:]
            first = len(seen[s]) - len(last)
            for wanted in {key for _, key in rows}:
                found, number = [], recent_latest(recent, s, wanted)
                while number != NIL:
                    found.append(number)
                    number = recent_earlier(recent, s, number)
                assert found == [first + i for i, k in enumerate(last) if k == wanted][::-1]


# --- Credits ------------------------------------------------------------------------------------
class CreditModel:
    """Credits as a plain list a pool, beside `Credits`; the groups' rows as a list of bases."""

    def __init__(self, groups: int, ring: int) -> None:
        self.credits = new_credits(2, groups, 64, ring)
        self.bases: list[list[int]] = [[] for _ in range(groups)]
        self.gain = [0] * groups
        self.paged = [g % 3 == 0 for g in range(groups)]

    @staticmethod
    def pool(group: int) -> int:
        return group % 2

    def sorted(self, pool: int) -> list[int]:
        return sorted(
            base + self.gain[group]
            for group, bases in enumerate(self.bases)
            if self.pool(group) == pool
            for base in bases
        )

    def insert(self, group: int, share: float) -> None:
        """A row at a percentile of the pool, as a policy does it."""
        pool = self.pool(group)
        there = self.sorted(pool)
        credit = 0
        if there:
            rank = int(share * (len(there) - 1))
            credit = int(credit_at(self.credits, pool, rank))
            assert credit == there[rank]
        base = credit - self.gain[group]
        tally(self.credits, pool, credit, 1)
        if self.paged[group]:
            page_count(self.credits, group, base, 1)
        self.bases[group].append(base)

    def remove(self, group: int, share: float) -> None:
        bases = self.bases[group]
        if bases:
            base = bases.pop(int(share * (len(bases) - 1)))
            tally(self.credits, self.pool(group), base + self.gain[group], -1)
            if self.paged[group]:
                page_count(self.credits, group, base, -1)

    def raise_group(self, group: int) -> None:
        pool, gain = self.pool(group), self.gain[group]
        if self.paged[group]:
            pages_gain(self.credits, pool, group)
        else:
            for base in self.bases[group]:
                tally_gain(self.credits, pool, base + gain)
        self.gain[group] += 1
        self.credits.group[group]["gain"] = self.gain[group]

    def turn(self, group: int) -> None:
        """Rows of a group go into pages, or come out of them."""
        sign = -1 if self.paged[group] else 1
        for base in self.bases[group]:
            page_count(self.credits, group, base, sign)
        self.paged[group] = not self.paged[group]
        assert self.paged[group] or self.credits.group[group]["pages"] == 0

    def widen(self, n: int) -> None:
        everything = self.sorted(0) + self.sorted(1)
        if everything:
            self.credits = widen_credits(self.credits, min(everything), n)

    def grow(self) -> None:
        old = self.credits
        groups, pages = old.group.size + 4, 2 * old.page.size
        self.credits = grow_credits(old, new_credits(2, groups, pages, 4 * PAGE))
        self.bases += [[] for _ in range(4)]
        self.gain += [0] * 4
        self.paged += [g % 3 == 0 for g in range(groups - 4, groups)]

    def check(self) -> None:
        for pool in range(2):
            there = self.sorted(pool)
            assert self.credits.pool[pool]["n"] == len(there)
            assert self.credits.fine[pool].sum() == self.credits.coarse[pool].sum() == len(there)
            for share in (0.5, 0, 0.9, 1, 0.1) if there else ():
                rank = int(share * (len(there) - 1))
                assert credit_at(self.credits, pool, rank) == there[rank]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert"] * 5 + ["raise"] * 3 + ["remove", "turn", "grow"]),
            st.integers(0, 5),
            st.integers(1, 150),
        ),
        min_size=40,
        max_size=80,
    )
)
def test_credits_find_percentiles_as_a_sorted_list_does(steps):
    model = CreditModel(6, ring=4 * PAGE)
    for what, group, amount in steps:
        if what == "insert":
            for i in range(1 + amount % 3):
                model.widen(1)
                model.insert(group, ((amount * 7 + i) % 100) / 99)
        elif what == "raise":
            model.widen(amount)
            for _ in range(amount):
                model.raise_group(group)
        elif what == "remove":
            model.remove(group, (amount % 100) / 99)
        elif what == "turn":
            model.turn(group)
        elif model.credits.group.size < 12:
            model.grow()
        model.check()


def test_credits_stay_right_while_their_ring_goes_round_many_times():
    """Four groups gain 5,000 times each on a ring of 1,024: credits are kept modulo the ring."""
    model = CreditModel(4, ring=8 * PAGE)
    rng = np.random.default_rng(2)
    for group in range(4):
        for _ in range(20):
            model.widen(1)
            model.insert(group, float(rng.random()))
    for i in range(20_000):
        if i % 50 == 0:
            model.widen(50)
            model.check()
        model.raise_group(i % 4)
    assert model.credits.fine.shape[1] == 8 * PAGE  # the span stayed small: never widened


def test_widening_keeps_credits_that_are_far_apart():
    model = CreditModel(4, ring=4 * PAGE)
    for group in range(4):
        for _ in range(5):
            model.insert(group, 0.5)
    for _ in range(20):
        model.widen(300)
        for _ in range(300):
            model.raise_group(0)
            model.raise_group(1)
        model.check()
    assert model.credits.fine.shape[1] >= 6000


def test_widening_finds_credits_that_have_gone_round_the_ring():
    model = CreditModel(4, ring=8 * PAGE)
    for group in range(4):
        for _ in range(5):
            model.insert(group, 0.5)
    for i in range(12_000):  # 3,000 each: nearly three times round
        if i % 100 == 0:
            model.widen(100)
            model.check()  # a look-up takes the pointer along
        model.raise_group(i % 4)
    assert model.credits.fine.shape[1] == 8 * PAGE
    for _ in range(1000):
        model.widen(1)
        model.raise_group(0)
    assert model.credits.fine.shape[1] > 8 * PAGE
    model.check()


@given(st.integers(0, 2**32))
def test_pages_are_found_made_and_freed(seed):
    """60 pages of 64 in use: runs of the hash table collide and move up."""
    rng = np.random.default_rng(seed)
    credits = new_credits(1, 12, 64, 4 * PAGE)
    model: dict[tuple[int, int], list[int]] = {}
    for _ in range(400):
        if model and (len(model) >= 60 or rng.random() < 0.4):
            group, number = sorted(model)[rng.integers(len(model))]
            page_count(credits, group, model[group, number].pop(), -1)
            if not model[group, number]:
                del model[group, number]
        else:
            group, base = int(rng.integers(12)), int(rng.integers(-5 * PAGE, 5 * PAGE))
            page_count(credits, group, base, 1)
            model.setdefault((group, base // PAGE), []).append(base)
        number = int(rng.integers(-5, 5))
        for group in range(12):
            page = page_of(credits, group, number, False)
            if (group, number) not in model:
                assert page == NIL
                continue
            assert credits.page[page]["number"] == number
            assert credits.page[page]["rows"] == len(model[group, number])
    for group in range(12):
        pages = []
        page = credits.group[group]["first"]
        while page != NIL:
            pages.append(int(credits.page[page]["number"]))
            page = credits.page[page]["following"]
        assert sorted(pages) == sorted(number for g, number in model if g == group)
        assert credits.group[group]["pages"] == len(pages)


def test_more_pages_come_when_credits_are_enlarged():
    credits = new_credits(1, 4, 8, 4 * PAGE)
    for i in range(8):
        page_count(credits, i % 4, i * PAGE, 1)
    credits = grow_credits(credits, new_credits(1, 4, 16, 4 * PAGE))
    for i in range(8, 16):
        page_count(credits, i % 4, i * PAGE, 1)
    pages = [int(page_of(credits, i % 4, i, False)) for i in range(16)]
    assert sorted(pages) == list(range(16))
    same = grow_credits(credits, new_credits(1, 9, 16, 4 * PAGE))  # more groups alone
    assert [int(page_of(same, i % 4, i, False)) for i in range(16)] == pages
    page_count(same, 3, 3 * PAGE, -1)
    page_count(same, 8, 99 * PAGE, 1)
    assert page_of(same, 8, 99, False) == pages[3]
