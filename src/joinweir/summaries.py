"""Small summaries of long streams, from rows sorted by key: what `characterize` is made of.

`KeyRuns` reads one stream as runs of equal keys, each with the positions of its rows in rising
order, and keeps what the measures of locality need: how many keys occur how often, distances
between occurrences, equal rows k apart. `PairCounts` reads two streams as runs of equal keys by
time and counts the pairs of each window. Both take their rows in pieces of any size and can be
merged if no key is in both, so a cluster can summarise each shard of the keys apart. Their size
does not depend on the number of rows, but for the rows of one key in the longest window.

What a random order of the same rows would give needs no shuffling: `permuted_survival`,
`permuted_mean_log` and `permuted_drift` have it in closed form from the number of keys that
occur c times, as a mean over all permutations.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence

import numpy as np

from .compiling import kernel
from .errors import JoinweirError

PER_DECADE = 20  # points of a distribution function on a logarithmic axis
LARGEST_DISTANCE = 10**13
MOST_WINDOWS = 16  # bits of a row's flags
_SMALL = 1 << 16  # frequencies below are counted in an array, those above are listed


def log_grid(largest: int = LARGEST_DISTANCE, per_decade: int = PER_DECADE) -> np.ndarray:
    """Whole numbers from 1 to at least `largest`, evenly spaced on a logarithmic axis.

    >>> log_grid(10, per_decade=5)
    array([ 1,  2,  3,  4,  6, 10])
    """
    steps = max(0, math.ceil(per_decade * math.log10(max(1, largest)) - 1e-9))
    return np.unique(np.rint(10.0 ** (np.arange(steps + 1) / per_decade)).astype(np.int64))


GRID = log_grid()

# --- one stream ---------------------------------------------------------------------------------
# Places in the integers that `_scan_runs` keeps between calls.
_KEY, _COUNT, _EARLY, _OPEN, _N_LARGE, _N_SAMPLED, _N_DISTANCES, _RUN_SAMPLED = range(8)
_MEAN_LOG, _DRIFT = range(2)


@kernel
def _place(grid, value):
    """The first place of the grid whose value is at least this one, or the last."""
    low, high = 0, grid.size - 1
    while low < high:
        middle = (low + high) // 2
        if grid[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _mixed(key, position):
    """A hash of a row, so that which rows are sampled has nothing to do with the stream."""
    x = np.uint64(key) ^ (np.uint64(position) * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def _end_run(now, sums, small, large, sampled_count, early_rows, late_rows):
    """The current key has no more rows."""
    count = now[_COUNT]
    if count < small.size:
        small[count] += 1
    else:
        large[now[_N_LARGE]] = count
        now[_N_LARGE] += 1
    early = now[_EARLY]
    sums[_DRIFT] += abs(early / early_rows - (count - early) / late_rows) / 2
    for i in range(now[_RUN_SAMPLED], now[_N_SAMPLED]):
        sampled_count[i] = count
    now[_RUN_SAMPLED] = now[_N_SAMPLED]
    now[_OPEN] = 0


@kernel
def _scan_runs(
    key,
    position,
    begin,
    half,
    n_rows,
    now,
    sums,
    ring,
    grid,
    histogram,
    matches,
    small,
    large,
    threshold,
    sampled_count,
    sampled_lags,
):
    """Go on from row `begin`; stops before a row for which there may be no room, returns it.

    `ring` has the last h positions of the current key, `sampled_lags` a bit for each lag at which
    a sampled row repeats its key.
    """
    h = ring.size
    early_rows = max(1.0, float(half))
    late_rows = max(1.0, float(n_rows - half))
    for i in range(begin, key.size):
        if now[_N_LARGE] == large.size or now[_N_SAMPLED] == sampled_count.size:
            return i
        if now[_OPEN] and now[_KEY] != key[i]:
            _end_run(now, sums, small, large, sampled_count, early_rows, late_rows)
        if not now[_OPEN]:
            now[_OPEN] = 1
            now[_KEY] = key[i]
            now[_COUNT] = 0
            now[_EARLY] = 0
        at = position[i]
        count = now[_COUNT]
        sampled = at >= h and _mixed(key[i], at) < threshold
        if sampled:
            sampled_count[now[_N_SAMPLED]] = 0
            for word in range(sampled_lags.shape[1]):
                sampled_lags[now[_N_SAMPLED], word] = 0
        if count:
            distance = at - ring[(count - 1) % h]
            sums[_MEAN_LOG] += np.log(float(distance))
            now[_N_DISTANCES] += 1
            histogram[_place(grid, distance)] += 1
            for back in range(1, min(count, h) + 1):
                lag = at - ring[(count - back) % h]
                if lag > h:
                    break
                matches[lag - 1] += 1
                if sampled:
                    bit = np.uint64(1) << np.uint64((lag - 1) & 63)
                    sampled_lags[now[_N_SAMPLED], (lag - 1) >> 6] |= bit
        if sampled:
            now[_N_SAMPLED] += 1
        ring[count % h] = at
        now[_COUNT] = count + 1
        now[_EARLY] += at < half
    return key.size


class KeyRuns:
    """A stream's rows by key and position, summed up.

    Parameters
    ----------
    n_rows : int
        Rows of the whole stream, not only of those keys that come here; positions are below it.
    h : int
        Longest lag at which equal rows are counted.
    n_sampled : int
        About how many rows of the whole stream to sample, for `sample` and `log_loss`; none of
        the first h, which do not have all lags.

    Attributes
    ----------
    histogram : numpy.ndarray
        Distances up to `GRID` [i] that are above GRID[i-1].
    n_distances, sum_log : int, float
        How many there are, and the sum of their logarithms.
    matches : numpy.ndarray
        int64[h]; element k-1 is the number of pairs of equal rows k apart.
    drift : float
        Total variation distance between the keys of the first and of the second half.

    Examples
    --------
    >>> found = KeyRuns(4, h=2).update(np.array([7, 7, 7, 8]), np.array([0, 2, 3, 1])).end()
    >>> found.matches.tolist(), [values.tolist() for values in found.frequencies()]
    ([1, 1], [[3, 1], [1, 1]])
    """

    def __init__(self, n_rows: int, h: int, n_sampled: int = 0) -> None:
        self.n_rows, self.h = int(n_rows), int(h)
        share = min(1.0, n_sampled / max(1, n_rows))
        self._threshold = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._now = np.zeros(8, np.int64)
        self._sums = np.zeros(2)
        self._ring = np.zeros(self.h, np.int64)
        self.histogram = np.zeros(GRID.size, np.int64)
        self.matches = np.zeros(self.h, np.int64)
        self._small = np.zeros(_SMALL, np.int64)
        self._large = np.zeros(64, np.int64)
        self._sampled_count = np.zeros(64, np.int64)
        self._sampled_lags = np.zeros((64, (self.h + 63) // 64), np.uint64)

    def update(self, keys: np.ndarray, positions: np.ndarray) -> KeyRuns:
        """Take the rows that follow, sorted by key and position; returns itself."""
        at = 0
        while at < keys.size:
            at = _scan_runs(
                keys,
                positions,
                at,
                self.n_rows // 2,
                self.n_rows,
                self._now,
                self._sums,
                self._ring,
                GRID,
                self.histogram,
                self.matches,
                self._small,
                self._large,
                self._threshold,
                self._sampled_count,
                self._sampled_lags,
            )
            if at < keys.size:
                self._make_room()
        return self

    def _make_room(self) -> None:
        def longer(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values, np.zeros_like(values)])

        if self._now[_N_LARGE] == self._large.size:
            self._large = longer(self._large)
        if self._now[_N_SAMPLED] == self._sampled_count.size:
            self._sampled_count = longer(self._sampled_count)
            self._sampled_lags = longer(self._sampled_lags)

    def end(self) -> KeyRuns:
        """All rows were there; returns itself."""
        if self._now[_OPEN]:
            self._make_room()
            halves = (self.n_rows // 2, self.n_rows - self.n_rows // 2)
            _end_run(
                self._now,
                self._sums,
                self._small,
                self._large,
                self._sampled_count,
                *(max(1.0, float(n)) for n in halves),
            )
        return self

    def merge(self, other: KeyRuns) -> KeyRuns:
        """Add another's sums; both have ended, and no key was in both."""
        if (self.n_rows, self.h) != (other.n_rows, other.h):
            raise JoinweirError("can only merge summaries of the same stream and h")
        self.histogram += other.histogram
        self.matches += other.matches
        self._sums += other._sums
        self._small += other._small
        self._large = np.r_[self._listed(), other._listed(), 0]
        mine, others = self._now[_N_SAMPLED], other._now[_N_SAMPLED]
        for name in ("_sampled_count", "_sampled_lags"):
            parts = [getattr(self, name)[:mine], getattr(other, name)[:others]]
            setattr(self, name, np.concatenate([*parts, np.zeros_like(getattr(self, name)[:1])]))
        for place in (_N_LARGE, _N_SAMPLED, _N_DISTANCES):
            self._now[place] += other._now[place]
        return self

    def _listed(self) -> np.ndarray:
        return self._large[: self._now[_N_LARGE]]

    @property
    def n_distances(self) -> int:
        """Distances between occurrences: rows less keys."""
        return int(self._now[_N_DISTANCES])

    @property
    def sum_log(self) -> float:
        """Sum of the logarithms of the distances."""
        return float(self._sums[_MEAN_LOG])

    @property
    def drift(self) -> float:
        """Total variation distance between the keys of the two halves of the stream."""
        return float(self._sums[_DRIFT])

    def frequencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies that occur, falling, and how many keys have each."""
        values = np.flatnonzero(self._small)
        large, keys = np.unique(self._listed(), return_counts=True)
        values, keys = np.r_[values, large], np.r_[self._small[values], keys]
        return values[::-1].copy(), keys[::-1].copy()

    def _repeats(self, lag: int) -> np.ndarray:
        """Which of the sampled rows repeat the row `lag` before them."""
        n = int(self._now[_N_SAMPLED])
        bits = self._sampled_lags[:n, (lag - 1) // 64] >> np.uint64((lag - 1) % 64)
        return (bits & np.uint64(1)).astype(np.bool_)

    def sample(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sampled rows as `locality.fit_sample` takes them.

        Returns
        -------
        (numpy.ndarray, numpy.ndarray, numpy.ndarray)
            The share of each row's key in the stream; where its lags begin; lags.
        """
        n = int(self._now[_N_SAMPLED])
        rows = [np.flatnonzero(self._repeats(lag)) for lag in range(1, self.h + 1)]
        lags = np.repeat(np.arange(1, self.h + 1), [found.size for found in rows])
        rows = np.concatenate(rows)
        start = np.r_[0, np.cumsum(np.bincount(rows, minlength=n))]
        by_row = np.argsort(rows, kind="stable")
        return self._sampled_count[:n] / self.n_rows, start, lags[by_row]

    def log_loss(self, a: np.ndarray, b: float) -> tuple[float, float]:
        """Mean of -ln q over the sampled rows under a locality model, and its standard error.

        q is the model's probability of the row's key given the rows before it. NaN if no row was
        sampled.
        """
        n = int(self._now[_N_SAMPLED])
        if not n:
            return math.nan, math.nan
        q = b * self._sampled_count[:n] / self.n_rows
        for lag, weight in enumerate(a, 1):
            q = q + weight * self._repeats(lag)
        with np.errstate(divide="ignore"):
            losses = -np.log(q)
        return float(losses.mean()), float(losses.std() / math.sqrt(n))

    def to_bytes(self) -> bytes:
        """Everything that `merge` needs; `from_bytes` gives it back."""
        n = int(self._now[_N_SAMPLED])
        held = np.flatnonzero(self._small)
        return _packed(
            size=np.array([self.n_rows, self.h]),
            now=self._now,
            sums=self._sums,
            histogram=self.histogram,
            matches=self.matches,
            small=np.stack([held, self._small[held]]),
            large=self._listed(),
            sampled_count=self._sampled_count[:n],
            sampled_lags=self._sampled_lags[:n],
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> KeyRuns:
        """The summary that `to_bytes` wrote."""
        parts = _unpacked(packed)
        found = cls(*parts["size"].tolist())
        found._now, found._sums = parts["now"], parts["sums"]
        found.histogram, found.matches = parts["histogram"], parts["matches"]
        found._small[parts["small"][0]] = parts["small"][1]
        found._large = parts["large"]
        found._sampled_count = parts["sampled_count"]
        found._sampled_lags = parts["sampled_lags"]
        return found


def _packed(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpacked(packed: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(packed), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


# --- two streams --------------------------------------------------------------------------------
# Places in the integers that `_scan_pairs` keeps between calls; a count for each side.
_IN_KEY, _PAIR_KEY, _ROWS_OF_KEY, _N_EQUAL = 0, 1, 2, 4


@kernel
def _end_key(now, grid, by_partner):
    """The current key has no more rows on either side."""
    left, right = now[_ROWS_OF_KEY], now[_ROWS_OF_KEY + 1]
    now[_N_EQUAL] += left * right
    for s in range(2):
        partners = right if s == 0 else left
        place = 1 + _place(grid, partners) if partners else 0
        by_partner[s, place, 0] += now[_ROWS_OF_KEY + s]
        by_partner[s, place, 1] += float(left) * float(right)
        now[_ROWS_OF_KEY + s] = 0
    now[_IN_KEY] = 0


@kernel
def _scan_pairs(
    key,
    ts,
    side,
    counts,
    begin,
    windows,
    now,
    rows,
    first,
    marked,
    held,
    flags,
    grid,
    by_partner,
    pairs,
    matched,
):
    """Go on from row `begin`; stops before a row for which there is no room, returns it.

    `held` has the times of the current key's rows, a line a side, `rows` how many they are.
    `first` [side, w] is the first of them that is still in window w, `marked` the first that is
    not known to have a match yet. A row counts the pairs with the rows before it, if it `counts`.
    """
    n_windows = windows.size
    for i in range(begin, key.size):
        if now[_IN_KEY] and now[_PAIR_KEY] != key[i]:
            _end_key(now, grid, by_partner)
        if not now[_IN_KEY]:
            now[_IN_KEY] = 1
            now[_PAIR_KEY] = key[i]
            for s in range(2):
                rows[s] = 0
                for w in range(n_windows):
                    first[s, w] = 0
                    marked[s, w] = 0
        own = side[i]
        other = 1 - own
        if rows[own] == held.shape[1]:
            return i
        bits = 0
        if counts[i]:
            now[_ROWS_OF_KEY + own] += 1
            for w in range(n_windows):
                at = first[other, w]
                while at < rows[other] and ts[i] - held[other, at] >= windows[w]:
                    at += 1
                first[other, w] = at
                found = rows[other] - at
                if found:
                    pairs[w] += found
                    matched[own, w] += 1
                    bits |= 1 << w
                    for j in range(max(at, marked[other, w]), rows[other]):
                        if not flags[other, j] >> w & 1:
                            flags[other, j] |= np.uint16(1 << w)
                            matched[other, w] += 1
                    marked[other, w] = rows[other]
        held[own, rows[own]] = ts[i]
        flags[own, rows[own]] = bits
        rows[own] += 1
    return key.size


class PairCounts:
    """How many pairs of rows of two streams have one key and are less than a window apart.

    Parameters
    ----------
    windows : sequence of int
        Rows match if their times differ by less; in ticks, at least 1.

    Attributes
    ----------
    pairs : list of int
        Pairs in each window.
    matched : list of list of int
        For each side the number of its rows with at least one match, by window.
    n_equal : int
        Pairs of equal keys at any distance: Σ_v c_left(v) c_right(v).
    by_partner : numpy.ndarray
        float64[2, 1 + GRID.size, 2]; for each side, by how many rows the other side has of the
        key (none, then up to each point of `GRID`), its rows and their pairs at any distance.

    Examples
    --------
    >>> found = PairCounts([2, 10])
    >>> _ = found.update(np.array([1, 1, 1]), np.array([0, 1, 5]), np.array([0, 1, 0])).end()
    >>> found.pairs, found.matched, found.n_equal
    ([1, 2], [[1, 2], [1, 1]], 2)
    """

    def __init__(self, windows: Sequence[int]) -> None:
        if len(windows) > MOST_WINDOWS:
            raise JoinweirError(f"at most {MOST_WINDOWS} windows at once, not {len(windows)}")
        self.windows = [int(w) for w in windows]
        self.pairs = [0] * len(windows)
        self.matched = [[0] * len(windows) for _ in range(2)]
        self.n_equal = 0
        self.by_partner = np.zeros((2, 1 + GRID.size, 2))
        self._now = np.zeros(5, np.int64)
        self._rows = np.zeros(2, np.int64)
        self._first = np.zeros((2, len(windows)), np.int64)
        self._marked = np.zeros((2, len(windows)), np.int64)
        self._held = np.zeros((2, 1024), np.int64)
        self._flags = np.zeros((2, 1024), np.uint16)

    def update(
        self, keys: np.ndarray, ts: np.ndarray, side: np.ndarray, counts: np.ndarray | None = None
    ) -> PairCounts:
        """Take the rows that follow, sorted by key and time; returns itself.

        Rows for which `counts` is 0 are only there to be met by later ones.
        """
        if counts is None:
            counts = np.ones(keys.size, np.uint8)
        windows = np.asarray(self.windows, np.int64)
        at = 0
        while at < keys.size:
            pairs = np.zeros(len(self.windows), np.int64)
            matched = np.zeros((2, len(self.windows)), np.int64)
            at = _scan_pairs(
                keys,
                ts,
                side,
                counts,
                at,
                windows,
                self._now,
                self._rows,
                self._first,
                self._marked,
                self._held,
                self._flags,
                GRID,
                self.by_partner,
                pairs,
                matched,
            )
            self._add(pairs.tolist(), matched.tolist())
            if at < keys.size:
                self._make_room(int(ts[at]))
        return self

    def _add(self, pairs: list[int], matched: list[list[int]]) -> None:
        """Sums in Python's integers, which do not overflow."""
        self.pairs = [a + b for a, b in zip(self.pairs, pairs)]
        self.matched = [[a + b for a, b in zip(*both)] for both in zip(self.matched, matched)]
        self.n_equal += int(self._now[_N_EQUAL])
        self._now[_N_EQUAL] = 0

    def _make_room(self, now: int) -> None:
        """Drop the rows that are out of every window; take more memory if that is not half."""
        kept, longest = 0, max(self.windows, default=0)
        for s in range(2):
            rows = int(self._rows[s])
            out = int(np.searchsorted(self._held[s, :rows], now - longest, "right"))
            n = rows - out
            self._held[s, :n] = self._held[s, out:rows].copy()
            self._flags[s, :n] = self._flags[s, out:rows].copy()
            self._rows[s] = n
            self._first[s] = np.maximum(self._first[s] - out, 0)
            self._marked[s] = np.maximum(self._marked[s] - out, 0)
            kept = max(kept, n)
        if 2 * kept > self._held.shape[1]:
            self._held = np.concatenate([self._held, np.zeros_like(self._held)], axis=1)
            self._flags = np.concatenate([self._flags, np.zeros_like(self._flags)], axis=1)

    def end(self) -> PairCounts:
        """All rows were there; returns itself."""
        if self._now[_IN_KEY]:
            _end_key(self._now, GRID, self.by_partner)
            self._add([0] * len(self.windows), [[0] * len(self.windows)] * 2)
        return self

    def merge(self, other: PairCounts) -> PairCounts:
        """Add another's sums; both have ended, and no key was in both."""
        if self.windows != other.windows:
            raise JoinweirError("can only merge counts of the same windows")
        self._add(other.pairs, other.matched)
        self.n_equal += other.n_equal
        self.by_partner += other.by_partner
        return self

    def popular_share(self, share: float) -> float:
        """Of pairs that depend on the keys alone, those met by a share of the rows, well chosen.

        Rows whose key is most frequent on the other side are held, and all others are not. Which
        of a pair came first, and had to be held, is equally often either side.
        """
        kept = []
        for rows, pairs in self.by_partner.transpose(0, 2, 1):
            pairs_up_to = np.cumsum(pairs[::-1])
            rows_up_to = np.cumsum(rows[::-1])
            if not pairs_up_to[-1]:
                return 0.0
            at = np.interp(share * rows_up_to[-1], np.r_[0, rows_up_to], np.r_[0, pairs_up_to])
            kept.append(float(at / pairs_up_to[-1]))
        return sum(kept) / 2

    def to_bytes(self) -> bytes:
        """Everything that `merge` needs; `from_bytes` gives it back."""
        sums = {"pairs": self.pairs, "matched": self.matched, "n_equal": self.n_equal}
        text = json.dumps(sums).encode()  # whole numbers of any size
        return _packed(
            windows=np.asarray(self.windows, np.int64),
            by_partner=self.by_partner,
            sums=np.frombuffer(text, np.uint8),
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> PairCounts:
        """The counts that `to_bytes` wrote."""
        parts = _unpacked(packed)
        found = cls(parts["windows"].tolist())
        found.by_partner = parts["by_partner"]
        for name, value in json.loads(parts["sums"].tobytes()).items():
            setattr(found, name, value)
        return found


# --- a random order of the same rows ------------------------------------------------------------
@kernel
def _survival(frequency, keys, n, ks, found):
    """found[i] = Σ keys (c-1) C(n-k, c) / C(n, c), for k = ks[i]."""
    for i in range(ks.size):
        k = ks[i]
        top = math.lgamma(n - k + 1.0)
        total = 0.0
        for j in range(frequency.size):
            c = frequency[j]
            if c < 2.0 or n - k - c < 0.0:
                continue
            exponent = top - math.lgamma(n - k - c + 1.0)
            exponent -= math.lgamma(n + 1.0) - math.lgamma(n - c + 1.0)
            total += keys[j] * (c - 1.0) * np.exp(exponent)
        found[i] = total


def permuted_survival(frequency: np.ndarray, keys: np.ndarray, distances: object) -> np.ndarray:
    """Share of distances between occurrences above each given one, in a random order.

    Of n rows in random order the c of one key are a random subset, so that the gap between two
    neighbours among them exceeds k with probability C(n-k, c) / C(n, c). This is the mean over
    all permutations, for which li2006 eq. 1 is the limit of an endless stream.

    Parameters
    ----------
    frequency, keys : numpy.ndarray
        Frequencies and how many keys have each, as from `KeyRuns.frequencies`.
    distances : array of float
        At least 0.

    Returns
    -------
    numpy.ndarray
        Falling from 1 to 0; NaN if no key occurs twice.

    Examples
    --------
    >>> permuted_survival(np.array([2]), np.array([2]), [1, 2, 3]).round(3)
    array([0.5  , 0.167, 0.   ])
    """
    n = float((frequency * keys).sum())
    found = np.empty(np.size(distances))
    _survival(
        frequency.astype(np.float64),
        keys.astype(np.float64),
        n,
        np.asarray(distances, np.float64),
        found,
    )
    n_distances = float(((frequency - 1) * keys).sum())
    return found / n_distances if n_distances else np.full(found.size, np.nan)


def permuted_mean_log(frequency: np.ndarray, keys: np.ndarray) -> float:
    """Mean logarithm of the distances between occurrences, in a random order.

    E ln D = Σ_k ln((k+1)/k) P(D > k); term by term up to 1,000, and beyond as an integral over
    100 points a decade, with an error below 1e-5.

    Examples
    --------
    >>> round(math.exp(permuted_mean_log(np.array([2]), np.array([2]))), 4)  # 3 × 1, 2 × 2, 1 × 3
    1.5131
    """
    n = int((frequency * keys).sum())
    near = np.arange(1, min(n, 1000) + 1)
    total = float(np.log1p(1 / near) @ permuted_survival(frequency, keys, near))
    if n > 1000:
        far = np.geomspace(1001, n + 1, 2 + int(100 * math.log10(n / 1000)))
        # The sum's terms stand in the middle of their steps, hence ½.
        survival = permuted_survival(frequency, keys, np.minimum(far - 0.5, n))
        total += float(np.diff(np.log(far)) @ (survival[1:] + survival[:-1]) / 2)
    return total


@kernel
def _mean_deviations(frequency, found):
    """found[j] = E |X - c/2| for X ~ Bin(c, ½), which is c C(c-1, ⌊c/2⌋) / 2^c."""
    for j in range(frequency.size):
        c = frequency[j]
        half = np.floor(c / 2)
        log_binomial = math.lgamma(c) - math.lgamma(half + 1.0) - math.lgamma(c - half)
        found[j] = c * np.exp(log_binomial - c * np.log(2.0))


def permuted_drift(frequency: np.ndarray, keys: np.ndarray) -> float:
    """Mean distance in total variation between the halves of a stream in random order.

    A key's rows fall into the first half as by tossing coins, but for a factor √((n-c)/(n-1)),
    since the halves have a fixed size.

    Examples
    --------
    >>> permuted_drift(np.array([1]), np.array([1000]))  # each key is in one half only
    1.0
    """
    n = float((frequency * keys).sum())
    deviation = np.empty(frequency.size)
    _mean_deviations(frequency.astype(np.float64), deviation)
    finite = np.sqrt((n - frequency) / max(1.0, n - 1))
    return float((keys * 2 * deviation * finite).sum() / n)
