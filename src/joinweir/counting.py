"""Frequent keys of a stream in little memory, and how little: lossy counting and its size.

`LossyCounting` keeps (key, f, Δ) for the keys that may be frequent. The stream is cut into
buckets of w = ⌈1/ε⌉ keys; b is the number of buckets that have ended. A key that is held gets
f += 1, another one enters as (key, 1, b); at the end of a bucket all entries with f + Δ <= b go.
At any time, with N keys counted::

    f <= true count <= f + Δ,   Δ <= N // w <= εN,   a key that is not held came <= N // w times

The rest of the module says how many entries that takes. Call f + Δ - b an entry's *surplus*: an
arrival adds one to it, the end of a bucket takes one, and at 0 the entry goes, like a queue that
serves one customer a bucket. Two facts follow, and everything here is built on them:

- *Conservation*, for any stream whatever and exactly: the sizes before the prunes so far add up
  to N - Σ surplus (`conservation_gap`). So the mean size before a prune tends to
  Σ min(1, w p) for every stationary stream, with or without locality (`mean_size`).
- For independent keys the size after a prune is known exactly too (`stationary_size`).

Short-term locality hence changes the mean size not at all in the long run; it lowers it in finite
runs and raises the size after a prune. What drives the memory is the skew of the marginal law.

Source: li2006 §4.2, §5.2 (Manku and Motwani 2002 for the algorithm and the bound 7/ε). Deviations:
the bucket number is ⌈N/w⌉ (printed ⌈N/ε⌉); the expectation of a bucket is a difference of
cumulative ones (the printed difference of matrix powers is not); Algorithm 3 bisects bucket widths
(as printed it does not terminate).

Example
-------
Ten keys at ε = 1/4, so two buckets of four have ended. Key 7 came six times, key 5 last:

>>> counter = LossyCounting(0.25).update([7, 7, 1, 2, 7, 7, 7, 3, 7, 5])
>>> [column.tolist() for column in counter.entries()]
[[7, 5], [6, 1], [0, 2]]
>>> counter.frequent(0.5)
Frequent(keys=array([7]), lower=array([6]), upper=array([6]))
>>> counter.sizes.mean_before, conservation_gap(counter)  # {7, 1, 2} and {7, 3}
(2.5, 0)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from .compiling import kernel
from .errors import JoinweirError, StateError, unknown
from .layout import NIL, record

FORMAT = "joinweir.counting 1"
METHODS = ("mean", "distinct", "monte_carlo", "paper")

ENTRY = record(
    key="i8",
    f="i8",  # arrivals counted
    delta="i8",  # arrivals that may have come before the entry was made
)

# Counter.reg: scalars
(
    N,  # keys counted
    SIZE,  # entries held
    WIDTH,  # keys in a bucket, w
    BUCKETS,  # buckets ended, b = N // w
    SUM_BEFORE,  # over the prunes so far: entries just before ...
    MAX_BEFORE,
    SUM_AFTER,  # ... and just after
    MAX_AFTER,
    REG_SIZE,
) = range(9)
_STATE = ("n", "size", "width", "buckets", "sum_before", "max_before", "sum_after", "max_after")

_WIDEST = 2**53  # float64 holds whole numbers exactly up to here; nobody will fill that bucket
_ROUNDING = 1e-12  # relative; a threshold s*N may be a whole number that float64 just misses
_CHUNK = 1 << 20  # keys simulated at a time
_MOST_BUCKETS = 8  # that method="paper" looks ahead; beyond the lags all buckets are alike


class Frequent(NamedTuple):
    """Keys that may be frequent, most frequent first, with bounds of their counts."""

    keys: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Sizes(NamedTuple):
    """Entries held just before ("Max" in li2006) and just after ("Prune") the prunes so far."""

    prunes: int
    mean_before: float
    max_before: int
    mean_after: float
    max_after: int


@dataclass(frozen=True)
class SizeEstimate:
    """How many entries a stream will take; None is what the method does not tell.

    Attributes
    ----------
    method : str
        What made the estimate, see `expected_size`.
    before, after : float or None
        Mean size just before and just after a prune.
    peak_before, peak_after : float or None
        The largest over the run; `peak_before` is the memory that is needed.
    """

    method: str
    before: float
    after: float | None = None
    peak_before: float | None = None
    peak_after: float | None = None


@dataclass(frozen=True)
class EpsilonChoice:
    """The error bound to count with under a memory limit.

    Attributes
    ----------
    epsilon : float
        The smallest 1/w whose mean size before a prune keeps to the limit; when even the coarsest
        does not, that one: the largest 1/w below the support.
    expected_entries : float
        That mean size.
    feasible : bool
        Whether `expected_entries` keeps to the limit.
    reason : str
        What decided, in a line for people.
    """

    epsilon: float
    expected_entries: float
    feasible: bool
    reason: str


# --- checking what a caller passes --------------------------------------------------------------


def _real(name: str, value: object, good: Callable[[float], bool], allowed: str) -> float:
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not number or not math.isfinite(value) or not good(value):
        raise JoinweirError(f"{name} must be a number {allowed}, not {value!r}")
    return float(value)


def _integer(name: str, value: object, low: int) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not whole or not low <= value <= _WIDEST:
        raise JoinweirError(f"{name} must be a whole number from {low} to 2**53, not {value!r}")
    return int(value)


def _epsilon(value: object) -> float:
    return _real("epsilon", value, lambda x: 0 < x < 1, "above 0 and below 1")


def _support(value: object, epsilon: float | None = None) -> float:
    support = _real("support", value, lambda x: 0 < x <= 1, "above 0 and at most 1")
    if epsilon is not None and support <= epsilon:
        raise JoinweirError(
            f"support must be above epsilon={epsilon:g}, not {value!r};"
            " count with a smaller epsilon"
        )
    return support


def _keys(keys: object) -> np.ndarray:
    """The keys as a writable int64 array; anything that is not whole numbers is an error."""
    if isinstance(keys, list | tuple) and not keys:
        return np.empty(0, np.int64)
    try:
        array = np.asarray(keys)
    except ValueError:  # ragged
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise JoinweirError(f"keys must be a 1-d array of integers, not {array.ndim}-d")
    if array.dtype.kind not in "iu":
        raise JoinweirError(
            f"keys must be integers, not {array.dtype}; encode other keys, or hash them to 64 bits"
            " where a collision does no harm"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size:
        if array.max() > np.iinfo(np.int64).max:
            raise JoinweirError(
                f"keys must be below 2**63, not {array.max()}; use keys.view('int64')"
            )
    # A read-only array is another type to numba: copying is cheaper than compiling twice.
    return np.require(array, np.int64, ["C", "W"])


def _probabilities(values: object) -> np.ndarray:
    try:
        p = np.asarray(list(values.values()) if isinstance(values, Mapping) else values)
    except ValueError:  # ragged
        p = np.empty((0, 0))
    if p.ndim != 1 or p.size == 0 or p.dtype.kind not in "fiu":
        raise JoinweirError(
            f"probabilities must be a 1-d array of numbers, not {p.ndim}-d {p.dtype} of {p.size}"
        )
    p = p.astype(np.float64)
    total = p.sum()
    if not np.isfinite(p).all() or (p < 0).any() or abs(total - 1) > 1e-6:
        raise JoinweirError(f"probabilities must be >= 0 and sum to 1; these sum to {total:g}")
    return p / total


def _model(model: object) -> tuple[np.ndarray, float, np.ndarray]:
    """(a, b, P) of a fitted locality model; bare probabilities mean independent keys."""
    for name in ("popularity", "probabilities", "p"):
        if hasattr(model, "a") and hasattr(model, "b") and hasattr(model, name):
            break
    else:
        if hasattr(model, "a") or isinstance(model, str):
            raise JoinweirError(
                "model must have the attributes a, b and popularity, or be an array of"
                f" probabilities, not {type(model).__name__}"
            )
        return np.empty(0), 1.0, _probabilities(model)
    try:
        a = np.array(model.a, np.float64, ndmin=1)
    except (TypeError, ValueError):
        raise JoinweirError(f"model.a must be a 1-d array of numbers, not {model.a!r}") from None
    b = _real("model.b", model.b, lambda x: 0 <= x <= 1, "from 0 to 1")
    if a.ndim != 1 or not np.isfinite(a).all() or (a < 0).any() or abs(a.sum() + b - 1) > 1e-6:
        raise JoinweirError(f"model.a must be >= 0 and sum to 1 - b; it sums to {a.sum():g}, b={b}")
    return a, b, _probabilities(getattr(model, name))


def bucket_width(epsilon: float) -> int:
    """Keys in a bucket: the smallest whole w with 1/w <= epsilon, as float64 divides.

    So ``bucket_width(1 / w) == w``, which ⌈1/ε⌉ in floating point misses for w = 49.

    >>> bucket_width(0.001), bucket_width(0.3), bucket_width(1 / 49)
    (1000, 4, 49)
    """
    epsilon = _epsilon(epsilon)
    if epsilon <= 1 / _WIDEST:
        return _WIDEST
    width = math.ceil(1 / epsilon)
    while width > 1 and 1 / (width - 1) <= epsilon:
        width -= 1
    while 1 / width > epsilon:
        width += 1
    return width


# --- the compiled core --------------------------------------------------------------------------


@kernel
def _seek(table, entry, key):
    """The place of the key in the table, or the free one where it would go."""
    z = np.uint64(key)  # splitmix64, Steele et al. 2014
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    place = np.int64((z ^ (z >> np.uint64(31))) & np.uint64(table.size - 1))
    while table[place] != NIL and entry[table[place]].key != key:
        place = (place + 1) & (table.size - 1)
    return place


@kernel
def _index(table, entry, size):
    """Fill the table anew: open addressing knows no cheap way to take out many at once."""
    for place in range(table.size):
        table[place] = NIL
    for i in range(size):
        table[_seek(table, entry, entry[i].key)] = i


@kernel
def _prune(reg, table, entry):
    """A bucket has ended: drop the entries with f + Δ <= b; the others keep their order."""
    reg[BUCKETS] += 1
    before, kept = reg[SIZE], 0
    for i in range(before):
        if entry[i].f + entry[i].delta > reg[BUCKETS]:
            entry[kept].key = entry[i].key
            entry[kept].f = entry[i].f
            entry[kept].delta = entry[i].delta
            kept += 1
    reg[SIZE] = kept
    if kept < before:
        _index(table, entry, kept)
    reg[SUM_BEFORE] += before
    reg[SUM_AFTER] += kept
    reg[MAX_BEFORE] = max(reg[MAX_BEFORE], before)
    reg[MAX_AFTER] = max(reg[MAX_AFTER], kept)


@kernel
def _count(reg, table, entry, keys, start):
    """Count keys[start:] until the entries are full; returns where it stopped.

    li2006, Algorithm 2:
        if s is in D: increase its frequency by one
        else: insert a new entry (e, 1, b_current - 1)
        increase N by one
        if N % w == 0: delete entries in D if f + Δ <= b_current
    """
    n, left = reg[N], reg[WIDTH] - reg[N] % reg[WIDTH]
    for at in range(start, keys.size):
        place = _seek(table, entry, keys[at])
        i = table[place]
        if i == NIL:
            i = reg[SIZE]
            if i == entry.size:
                reg[N] = n
                return at
            entry[i].key = keys[at]
            entry[i].f = 1
            entry[i].delta = reg[BUCKETS]
            table[place] = i
            reg[SIZE] = i + 1
        else:
            entry[i].f += 1
        n += 1
        left -= 1
        if left == 0:
            _prune(reg, table, entry)
            left = reg[WIDTH]
    reg[N] = n
    return keys.size


@kernel
def _copy(keys, lags, start, history):
    """x_i = x_{i-lag} in place; what stands there is the fresh draw, kept for lag 0.

    keys[:start] came before; of them the last `history` are known.
    """
    for i in range(start, keys.size):
        if 0 < lags[i] <= i - start + history:
            keys[i] = keys[i - lags[i]]


@kernel
def _renewal(a, u):
    """u_0 = 1, u_k = Σ_i a_i u_{k-i} in place, and then their running sums U (A2.4)."""
    u[0] = 1.0
    for k in range(1, u.size):
        u[k] = 0.0
        for i in range(1, min(a.size, k) + 1):
            u[k] += a[i - 1] * u[k - i]
    for k in range(1, u.size):
        u[k] += u[k - 1]


# --- lossy counting -----------------------------------------------------------------------------


class LossyCounting:
    """Counts of the keys that may be frequent, short by at most εN (li2006 Algorithm 2).

    Parameters
    ----------
    epsilon : float
        How short a count may be, as a share of all keys; in (0, 1). Memory goes as 1/ε.

    Attributes
    ----------
    epsilon, width
        ε, and the keys in a bucket (`bucket_width`).
    n : int
        Keys counted.
    size : int
        Entries held.
    sizes : Sizes
        Mean and largest size before and after the prunes so far.
    surplus : int
        Σ (f + Δ - b) over the entries.

    Notes
    -----
    Keys are whole numbers. Texts would have to be hashed, and then two of them could share a
    count without anyone noticing; encode them with a dictionary of your own, or hash them to 64
    bits knowing that.

    Examples
    --------
    Counted apart and merged, the guarantees hold for the whole:

    >>> left = LossyCounting(0.5).update([1, 1, 2])
    >>> right = LossyCounting(0.5).update([1, 3, 1])
    >>> left.merge(right).frequent(0.6)
    Frequent(keys=array([1]), lower=array([3]), upper=array([4]))
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = _epsilon(epsilon)
        self._reg = np.zeros(REG_SIZE, np.int64)
        self._reg[WIDTH] = bucket_width(self.epsilon)
        self._hold(np.empty(0, ENTRY), 16)

    def _hold(self, entries: np.ndarray, capacity: int) -> None:
        """Take these entries, with room for `capacity` (or the next power of two)."""
        capacity = 1 << (max(capacity, 16) - 1).bit_length()
        self._entry = np.zeros(capacity, ENTRY)
        self._entry[: entries.size] = entries
        self._table = np.empty(2 * capacity, np.int64)
        self._reg[SIZE] = entries.size
        _index(self._table, self._entry, entries.size)

    def __repr__(self) -> str:
        return f"<LossyCounting epsilon={self.epsilon:g}: {self.size:,} entries of {self.n:,} keys>"

    @property
    def n(self) -> int:
        return int(self._reg[N])

    @property
    def size(self) -> int:
        return int(self._reg[SIZE])

    @property
    def width(self) -> int:
        return int(self._reg[WIDTH])

    @property
    def surplus(self) -> int:
        _, f, delta = self.entries()
        return int((f + delta - self._reg[BUCKETS]).sum())

    @property
    def sizes(self) -> Sizes:
        reg = [int(x) for x in self._reg]
        prunes = max(reg[BUCKETS], 1)
        return Sizes(
            reg[BUCKETS],
            reg[SUM_BEFORE] / prunes,
            reg[MAX_BEFORE],
            reg[SUM_AFTER] / prunes,
            reg[MAX_AFTER],
        )

    def update(self, keys) -> LossyCounting:
        """Count more keys; how a stream is cut into updates makes no difference.

        Parameters
        ----------
        keys : array_like of int
            1-d; any integer type, below 2**63.

        Returns
        -------
        LossyCounting
            This one.
        """
        keys = _keys(keys)
        at = 0
        while (at := _count(self._reg, self._table, self._entry, keys, at)) < keys.size:
            self._hold(self._entry, 2 * self._entry.size)
        return self

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(keys, f, delta) of all entries, in the order in which they entered; copies."""
        held = self._entry[: self.size]
        return held["key"].copy(), held["f"].copy(), held["delta"].copy()

    def frequent(self, support: float) -> Frequent:
        """The keys with f >= (s-ε)N: all whose share is at least `support`, none below s-ε.

        Parameters
        ----------
        support : float
            s, in (ε, 1].

        Returns
        -------
        Frequent
            ``keys``, most frequent first, and the bounds ``lower`` = f and ``upper`` = f + Δ of
            their true counts.

        Examples
        --------
        >>> LossyCounting(0.1).update([4, 4, 9]).frequent(0.5).keys
        array([4])
        """
        support = _support(support, self.epsilon)
        key, f, delta = self.entries()
        least = (support - self.epsilon) * self.n * (1 - _ROUNDING)
        chosen = np.flatnonzero(f >= least)
        chosen = chosen[np.lexsort((key[chosen], -f[chosen]))]
        return Frequent(key[chosen], f[chosen], f[chosen] + delta[chosen])

    def merge(self, other: LossyCounting) -> LossyCounting:
        """Add the counts of another part of the stream; `other` stays as it is.

        A key's f add up, and so do its Δ, where a part that does not hold the key adds the most
        that it can have missed, its number b = N // w of ended buckets. Then Δ <= b1 + b2 <=
        (N1 + N2) // w, so the merged entries keep all guarantees for N = N1 + N2, and are a state
        that counting (and merging) can go on from. When the two unfinished buckets together fill
        one, that bucket ends here, with a prune.

        The merged summary may hold as many entries as both together: an entry that its own part
        could not spare is none that the whole can spare. Later prunes remove the excess. The
        statistics of sizes are those of the parts taken together.

        Parameters
        ----------
        other : LossyCounting
            With the same epsilon.

        Returns
        -------
        LossyCounting
            This one.
        """
        if not isinstance(other, LossyCounting) or other.epsilon != self.epsilon:
            what = getattr(other, "epsilon", type(other).__name__)
            raise JoinweirError(
                f"merge needs a LossyCounting of epsilon={self.epsilon}, not {what}"
            )
        mine, theirs = self._entry[: self.size].copy(), other._entry[: other.size].copy()
        _, at_mine, at_theirs = np.intersect1d(
            mine["key"], theirs["key"], assume_unique=True, return_indices=True
        )
        mine["delta"] += other._reg[BUCKETS]
        theirs["delta"] += self._reg[BUCKETS]
        mine["f"][at_mine] += theirs["f"][at_theirs]
        # Both have had the other's b added: Δ1 + b2 and Δ2 + b1. A key of both has Δ1 + Δ2.
        mine["delta"][at_mine] += (
            theirs["delta"][at_theirs] - self._reg[BUCKETS] - other._reg[BUCKETS]
        )
        merged = np.concatenate([mine, np.delete(theirs, at_theirs)])
        added = [N, BUCKETS, SUM_BEFORE, SUM_AFTER]
        larger = [MAX_BEFORE, MAX_AFTER]
        reg = other._reg.copy()  # other may be this one
        self._reg[added] += reg[added]
        self._reg[larger] = np.maximum(self._reg[larger], reg[larger])
        self._hold(merged, max(merged.size, self._entry.size))
        if self._reg[BUCKETS] < self._reg[N] // self._reg[WIDTH]:
            _prune(self._reg, self._table, self._entry)
        return self

    def to_json(self) -> str:
        """The whole state as JSON text, for `from_json`."""
        keys, f, delta = (column.tolist() for column in self.entries())
        state = {"format": FORMAT, "epsilon": self.epsilon}
        state |= {name: int(x) for name, x in zip(_STATE, self._reg) if name != "size"}
        return json.dumps(state | {"keys": keys, "f": f, "delta": delta})

    @classmethod
    def from_json(cls, text: str) -> LossyCounting:
        """The counter that `to_json` wrote; damage is found by the laws that a state obeys.

        Examples
        --------
        >>> LossyCounting.from_json(LossyCounting(0.1).update([4, 4, 9]).to_json())
        <LossyCounting epsilon=0.1: 2 entries of 3 keys>
        """
        try:
            state = json.loads(text)
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise StateError(f"the text is no saved LossyCounting of format {FORMAT!r}")
            counter = cls(state["epsilon"])
            columns = [_saved_integers(state[name]) for name in ("keys", "f", "delta")]
            scalars = _saved_integers([state[name] for name in _STATE if name != "size"])
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            what = str(error).splitlines()[0]
            raise StateError(f"the saved LossyCounting is damaged: {what}") from None
        key, f, delta = columns
        reg = np.insert(scalars, SIZE, key.size)
        buckets = reg[BUCKETS]
        lawful = (
            key.size == f.size == delta.size == np.unique(key).size
            and (reg >= 0).all()
            and (reg <= _WIDEST).all()
            and reg[WIDTH] == counter.width
            and buckets == reg[N] // reg[WIDTH]
            and ((f >= 1) & (f <= reg[N]) & (delta >= 0) & (delta <= buckets)).all()
            and (f + delta > buckets).all()
            and reg[SUM_AFTER] <= reg[SUM_BEFORE]
            and reg[MAX_AFTER] <= reg[MAX_BEFORE] <= reg[SUM_BEFORE]
        )
        if lawful:
            entries = np.empty(key.size, ENTRY)
            entries["key"], entries["f"], entries["delta"] = key, f, delta
            counter._reg[:REG_SIZE] = reg
            counter._hold(entries, key.size)
            lawful = conservation_gap(counter) == 0
        if not lawful:
            raise StateError(
                "the saved LossyCounting is damaged: its numbers contradict each other"
            )
        return counter


def _saved_integers(values: object) -> np.ndarray:
    if not isinstance(values, list) or any(type(x) is not int for x in values):
        raise StateError("the saved LossyCounting is damaged: a list of whole numbers is not one")
    return np.array(values, np.int64)


def conservation_gap(counter: LossyCounting) -> int:
    """N - Σ surplus - Σ (size before a prune, over the prunes so far): 0 for any stream, always.

    Each arrival adds one to the surplus of one entry, and each prune takes one from every entry
    held, so both sides count arrivals. It holds in the middle of a bucket and after merges too.

    >>> conservation_gap(LossyCounting(0.5).update([1, 2, 2, 2, 3]))
    0
    """
    return counter.n - counter.surplus - int(counter._reg[SUM_BEFORE])


# --- bounds -------------------------------------------------------------------------------------


def worst_case_bound(epsilon: float, n: int) -> float:
    """(1/ε) ln(εN), the bound of Manku and Motwani on the size after a prune, for any stream.

    What their proof gives is w (1/2 + 1/3 + … + 1/(b+1)) after b buckets. For whole 1/ε that is
    below the printed form from the third bucket on; before, the printed one can be exceeded (after
    one bucket it is 0, but w/2 keys may have come twice).

    >>> round(worst_case_bound(0.001, 100_000), 1)
    4605.2
    """
    epsilon, n = _epsilon(epsilon), _integer("n", n, 1)
    if n < bucket_width(epsilon):
        raise JoinweirError(
            f"n must be at least 1/epsilon={1 / epsilon:g}, not {n}: no bucket ends"
        )
    return max(math.log(epsilon * n), 0.0) / epsilon


def independent_bound(epsilon: float) -> float:
    """7/ε, the bound of Manku and Motwani on the expected size for independent keys.

    >>> round(independent_bound(0.001))
    7000
    """
    return 7 / _epsilon(epsilon)


def zipf_bound(epsilon: float, z: float) -> float:
    """2/ε + 4/(2^(z-1) ε^(2-z)): li2006 Theorem 2, for independent Zipf keys with 1 < z <= 2.

    >>> [round(zipf_bound(0.001, z), 1) for z in (1.1, 1.3, 1.5)]  # Table 1: 3869, 2409, 2089
    [3870.5, 2409.0, 2089.4]
    """
    epsilon = _epsilon(epsilon)
    z = _real("z", z, lambda x: 1 < x <= 2, "above 1 and at most 2")
    return 2 / epsilon + 4 / (2 ** (z - 1) * epsilon ** (2 - z))


# --- the size to expect -------------------------------------------------------------------------


def mean_size(probabilities, epsilon: float) -> float:
    """Mean size just before a prune, Σ min(1, w p), for any stationary stream.

    Parameters
    ----------
    probabilities : array_like
        Share p of each key.
    epsilon : float
        Error bound; w = `bucket_width`, that is 1/ε.

    Examples
    --------
    >>> mean_size([0.5, 0.3, 0.2], 0.25)  # w p = 2, 1.2, 0.8
    2.8
    """
    return _mean_size(_probabilities(probabilities), bucket_width(epsilon))


def _mean_size(p: np.ndarray, width: int) -> float:
    return float(np.minimum(1.0, width * p).sum())


def stationary_size(probabilities, epsilon: float) -> tuple[float, float]:
    """Expected size (before a prune, after it) for independent keys, exactly.

    A key's surplus s obeys s ← max(0, s + c - 1) with c ~ Bin(w, p) arrivals in a bucket: a
    slotted queue, which is empty after a slot with probability (1 - wp)⁺ / (1-p)^w.

    Parameters
    ----------
    probabilities : array_like
        Share p of each key.
    epsilon : float
        Error bound; w = `bucket_width`, that is 1/ε.

    Examples
    --------
    >>> before, after = stationary_size([0.5, 0.3, 0.2], 0.25)
    >>> before, round(after, 3)  # 2 + 1 - (1 - 0.8) / 0.8**4 = 2.512
    (2.8, 2.512)
    """
    p, width = _probabilities(probabilities), bucket_width(epsilon)
    return _mean_size(p, width), _size_after(p, 1.0, width)


def _size_after(p: np.ndarray, b: float, width: int) -> float:
    """Σ 1 - (1 - wp)⁺ / (1 - bp)^w, in logarithms: most terms are near 0."""
    p, kept = p[width * p < 1], np.count_nonzero(width * p >= 1)
    return float(kept - np.expm1(np.log1p(-width * p) - width * np.log1p(-b * p)).sum())


def expected_size(
    model, epsilon: float, n: int | None = None, method: str = "mean", seed: int = 0, *, recent=None
) -> SizeEstimate:
    """How many entries lossy counting will take on a stream with this model (EpsilonToM).

    Parameters
    ----------
    model : object or array_like
        A locality model with the attributes ``a`` (probabilities of copying the key 1 … h places
        back), ``b`` (of a fresh draw) and ``popularity`` (the law P of fresh draws, an array; also
        ``probabilities`` or ``p``). An array is the law of independent keys.
    epsilon : float
        Error bound.
    n : int, optional
        Keys that will be counted; 100 buckets by default. Only ``monte_carlo`` and ``paper``
        depend on it.
    method : {"mean", "distinct", "monte_carlo", "paper"}
        ``mean``: the conservation law, Σ min(1, wP), blind to locality as the truth is in the
        long run; its `after` takes buckets as independent, which is exact for b = 1 and too high
        for small b. ``distinct``: the distinct keys of one bucket, each absent unless drawn
        afresh or among the last h; below the size by the entries that live on without an arrival.
        ``monte_carlo``: simulate the model and count; the only one that tells the peaks.
        ``paper``: li2006 §4.2 with the bucket expectation put right: `peak_before` is the largest
        number, over the next buckets, of keys expected at least once; `before` is the mean of
        Σ min(1, expectation). It undercounts skewed streams, whose many rare keys share a bucket.
    seed : int
        Of the simulation. Same seed, same estimate.
    recent : array_like of int, optional
        For ``paper``: the last keys, newest last, as positions in the law. Without it the
        expectations are those of a stationary stream.

    Returns
    -------
    SizeEstimate

    Examples
    --------
    >>> expected_size([0.5, 0.3, 0.2], 0.25).before
    2.8
    >>> expected_size([0.5, 0.3, 0.2], 0.25, method="paper").peak_before
    2.0
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    a, b, p = _model(model)
    width = bucket_width(epsilon)
    n = 100 * width if n is None else _integer("n", n, 1)
    if method == "mean":
        return SizeEstimate(method, _mean_size(p, width), _size_after(p, b, width))
    if method == "distinct":
        return SizeEstimate(method, _distinct(a, b, p, width))
    if method == "paper":
        return _paper_size(a, b, p, width, min(max(n // width, 1), _MOST_BUCKETS), recent)
    if n < width:
        raise JoinweirError(f"n must be at least 1/epsilon={width}, not {n}: no bucket ends")
    sizes = _simulated(a, b, p, epsilon, n, _integer("seed", seed, 0))
    return SizeEstimate(
        method, sizes.mean_before, sizes.mean_after, float(sizes.max_before), float(sizes.max_after)
    )


def _distinct(a: np.ndarray, b: float, p: np.ndarray, width: int) -> float:
    """Σ P(key in a bucket). Absent from h places, a key returns by a fresh draw alone.

    So P(absent from k places) = c (1-bP)^k for k >= h. The boundary, c, is approximate: the first
    place is a draw from P, and what the others copy from before the bucket counts as 2 Σ i a_i
    more places. For equal lags and w >= 10 h that is within 3 % of simulations; exact for b = 1.
    """
    places = width - 1 + 2 * a @ np.arange(1, a.size + 1)
    with np.errstate(divide="ignore"):  # a key with P = 1
        return float(-np.expm1(np.log1p(-p) + places * np.log1p(-b * p)).sum())


def _paper_size(a, b, p, width, buckets, recent) -> SizeEstimate:
    """E_T(e) = Σ_{k: x_{n-k}=e} cs_k + cs_{T+1} P(e) for T = w, 2w, …; a bucket's is the step."""
    recent = np.empty(0, np.int64) if recent is None else _keys(recent)
    if recent.size and (recent.min() < 0 or recent.max() >= p.size):
        raise JoinweirError(f"recent must be positions in the law, 0 to {p.size - 1}")
    recent = recent[::-1][: a.size]  # recent[k-1] is the key k places back
    if recent.size < a.size or a.size == 0:  # not known: the stationary law
        expectations = [width * p] * buckets
    else:
        sums = np.empty(buckets * width)
        _renewal(a, sums)
        expectations, so_far = [], np.zeros(p.size)
        for t in range(width, buckets * width + 1, width):
            steps = min(t, a.size)
            weight = sums[t - 1 - np.arange(steps)]  # U(T-1-i)
            column = [a[j : j + steps] @ weight[: a.size - j] for j in range(a.size)]
            total = np.bincount(recent, column, p.size) + b * sums[:t].sum() * p
            expectations.append(total - so_far)
            so_far = total
    expected = np.array(expectations)
    return SizeEstimate(
        "paper",
        float(np.minimum(1.0, expected).sum(axis=1).mean()),
        peak_before=float((expected >= 1 - 1e-9).sum(axis=1).max()),
    )


def _simulated(a, b, p, epsilon, n, seed) -> Sizes:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"counting")))
    counter, h = LossyCounting(epsilon), a.size
    law, lag_law = np.cumsum(p), np.cumsum(np.r_[b, a])
    # The last key with weight takes the rounding error, or one of weight 0 might be drawn.
    law[np.flatnonzero(p)[-1] :] = 1.0
    lag_law[np.flatnonzero(np.r_[b, a])[-1] :] = 1.0
    past = np.empty(0, np.int64)
    for start in range(0, n, _CHUNK):
        rows = min(_CHUNK, n - start)
        fresh = np.searchsorted(law, rng.random(rows), side="right")
        keys = np.r_[past, fresh]
        if h:
            lags = np.searchsorted(lag_law, rng.random(rows), side="right")
            _copy(keys, np.r_[np.zeros_like(past), lags], past.size, past.size)
        counter.update(keys[past.size :])
        past = keys[keys.size - min(h, keys.size) :]
    return counter.sizes


# --- the error bound for a memory limit ---------------------------------------------------------


def _coarsest(support: float) -> int:
    """The smallest bucket width whose 1/w is below the support."""
    width = bucket_width(support) if support < 1 else 1
    return width if 1 / width < support else width + 1


def epsilon_for_memory(entries: float, support: float, model) -> EpsilonChoice:
    """The smallest ε whose expected size keeps to a memory limit (li2006 Algorithm 3).

    Σ min(1, wP) grows with w, so the widest bucket that fits is found by bisection: the lower
    width fits, the upper one does not, until they are neighbours. (As printed the algorithm moves
    both ends of its interval to one point, and runs for ever.)

    The limit is on the *mean* size before a prune. Peaks of 10^5 Zipf keys were higher by 37 % for
    30 entries, 16 % for 100 and 3 % for 1000;
    ``expected_size(..., method="monte_carlo")`` tells by how much.

    Parameters
    ----------
    entries : float
        Memory limit, in entries.
    support : float
        s; ε stays below it.
    model : object or array_like
        As in `expected_size`. Only its law counts.

    Returns
    -------
    EpsilonChoice
        With ``feasible=False`` and the coarsest ε when that one exceeds the limit already.

    Examples
    --------
    >>> law = [0.4, 0.3, 0.2, 0.05, 0.05]
    >>> epsilon_for_memory(4, 0.3, law)
    EpsilonChoice(epsilon=0.1, expected_entries=4.0, feasible=True, reason='4 of 4 entries')
    >>> epsilon_for_memory(2, 0.3, law).reason
    'even epsilon=0.25 below support=0.3 takes 3.2 entries, the limit is 2'
    """
    entries = _real("entries", entries, lambda x: x > 0, "above 0")
    support = _support(support)
    _, _, p = _model(model)
    limit = entries * (1 + _ROUNDING)
    low = _coarsest(support)
    if (least := _mean_size(p, low)) > limit:
        return EpsilonChoice(
            1 / low,
            least,
            False,
            f"even epsilon={1 / low:g} below support={support:g} takes {least:g} entries,"
            f" the limit is {entries:g}",
        )
    rarest = p[p > 0].min()
    high = max(low, _WIDEST if rarest * _WIDEST <= 1 else math.ceil(1 / rarest))
    if _mean_size(p, high) <= limit:
        reason = f"all {np.count_nonzero(p)} keys fit into {entries:g} entries"
        return EpsilonChoice(1 / high, _mean_size(p, high), True, reason)
    while high - low > 1:
        middle = (low + high) // 2
        if _mean_size(p, middle) <= limit:
            low = middle
        else:
            high = middle
    size = _mean_size(p, low)
    return EpsilonChoice(1 / low, size, True, f"{size:g} of {entries:g} entries")


def epsilon_by_bound(entries: float, support: float) -> float:
    """ε = 7/B, what the bound for independent keys allows, held below the support.

    >>> epsilon_by_bound(1000, 0.05), epsilon_by_bound(100, 0.3)
    (0.007, 0.07)
    >>> epsilon_by_bound(10, 0.3)  # 7/10 is no use
    0.25
    """
    entries = _real("entries", entries, lambda x: x > 0, "above 0")
    return min(7 / entries, 1 / _coarsest(_support(support)))


def false_positives(reported, true_counts, support: float, n: int) -> float:
    """Share of the reported keys whose true count is below s N; 0 when none is reported.

    Parameters
    ----------
    reported : Frequent or array_like of int
        Keys.
    true_counts : mapping, or pair of array_like
        True count of each key: ``{key: count}``, or (keys, counts) as from
        ``np.unique(stream, return_counts=True)``. A key that is missing never came.
    support : float
        s.
    n : int
        N, all keys counted.

    Examples
    --------
    >>> false_positives([7, 8, 9], {7: 60, 8: 30, 9: 10}, 0.25, 100)
    0.3333333333333333
    """
    keys = _keys(reported.keys if isinstance(reported, Frequent) else reported)
    support, n = _support(support), _integer("n", n, 0)
    if not isinstance(true_counts, Mapping):
        if not isinstance(true_counts, tuple | list) or len(true_counts) != 2:
            raise JoinweirError("true_counts must map keys to counts, or pair keys with counts")
        named, counts = _keys(true_counts[0]), _keys(true_counts[1])
        if named.size != counts.size:
            raise JoinweirError(
                f"true_counts must pair as many counts as keys, not {counts.size} and {named.size}"
            )
        true_counts = dict(zip(named.tolist(), counts.tolist()))
    if keys.size == 0:
        return 0.0
    least = support * n * (1 - _ROUNDING)
    return sum(true_counts.get(key, 0) < least for key in keys.tolist()) / keys.size
