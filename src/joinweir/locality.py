"""Reference locality: how far a stream repeats itself, and what that says about its next keys.

Locality has two causes (li2006 §2): *popularity*, since some keys are frequent for ever, and
*correlation*, since a key that was just here comes back soon. `iad` and `stack_distance` measure
both together; on a `permuted` stream only popularity is left, so the difference is correlation.

The model of li2006 §3.1 weighs the two: with probability a_i (i = 1 … h) a row repeats the key
i rows before it, with probability b it is a fresh draw from the popularity P,

    P(x_n = c | past) = b P(c) + Σ_j a_j 1[x_{n-j} = c],      b + Σ_j a_j = 1,

and a lag that reaches before the first row counts as a fresh draw. `fit` estimates (a, b). The
`LocalityModel` gives the expected number of occurrences of each key in the next T rows (LBA's
utility of a held row) and the entropy of a stream.

Where this differs from the paper: b and a are estimated by maximum likelihood unless
``estimator="paper"`` asks for its least squares, which depends on how keys are numbered; the
matrix power M^T of lemma 2 is replaced by its closed form, which also holds for T < h; lemma 3
counts the popularity term once, not once per occurrence; entropy is in nats.

Example
-------
>>> keys = np.array(["a", "a", "b", "a", "b", "b"])
>>> iad(keys), stack_distance(keys)
(array([1, 2, 2, 1]), array([0, 1, 1, 0]))
>>> keys, expected = LocalityModel([0.5], 0.5, popularity(keys)).expected_occurrences(["a"], 2)
>>> keys.tolist(), expected.tolist()
(['a', 'b'], [1.375, 0.625])
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from .compiling import kernel
from .errors import JoinweirError, unknown

ESTIMATORS = ("em", "yule_walker", "paper")
UNITS = {"nats": 1.0, "bits": math.log(2.0)}
ENTROPIES = ("conditional", "log_loss")

_LARGEST_H = 2000  # Yule–Walker and least squares solve h equations: 5 s at 2000
_LARGEST_T = 10**8  # the closed form keeps T numbers
_LARGEST_EXPONENT = 64.0  # rank 2 would be 2**64 times rarer than rank 1
_SIMPLEX_SLACK = 1e-9  # how far b + Σ a may be from 1
_FORMAT, _VERSION = "joinweir-locality", 1


# --- checking what a caller passes -------------------------------------------------------------


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        raise JoinweirError(f"{name} must be an integer in [{low}, {high}], not {value!r}")
    return int(value)


def _is_null(value: object) -> bool:
    """None, NaN, NaT and pandas' NA (by name, since comparing it gives no truth value)."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and value != value


def _array(keys: object) -> np.ndarray:
    """The keys as a one-dimensional array without nulls."""
    if isinstance(keys, str | bytes):
        raise JoinweirError(f"keys must be a 1-d array, not one {type(keys).__name__}")
    try:
        array = np.asarray(keys)
    except ValueError:
        raise JoinweirError("keys must be a 1-d array, not rows of several lengths") from None
    if array.dtype.kind in "US" and not hasattr(keys, "dtype"):
        array = np.asarray(keys, dtype=object)  # numpy would turn a NaN among texts into "nan"
    if array.ndim != 1:
        raise JoinweirError(f"keys must be a 1-d array, not {array.ndim}-d")
    if np.ma.isMaskedArray(keys):
        nulls = int(np.ma.getmaskarray(keys).sum())
    elif array.dtype.kind == "f":
        nulls = int(np.isnan(array).sum())
    elif array.dtype.kind in "mM":
        nulls = int(np.isnat(array).sum())
    elif array.dtype.kind == "O":
        nulls = sum(map(_is_null, array.tolist()))
    elif array.dtype.kind in "iubUS":
        nulls = 0
    else:
        raise JoinweirError(f"keys must be whole numbers, texts or bytes, not {array.dtype}")
    if nulls:
        raise JoinweirError(f"keys hold {nulls} null(s); drop these rows first")
    return array


def _plain(labels: list) -> np.ndarray:
    """Sorted labels as an array of texts, bytes or integers where that loses nothing."""
    kinds = {type(label) for label in labels}
    # numpy drops NULs at the end of texts and bytes.
    if kinds == {str} and not any(label.endswith("\0") for label in labels):
        return np.asarray(labels)
    if kinds == {bytes} and not any(label.endswith(b"\0") for label in labels):
        return np.asarray(labels)
    if kinds == {int} and labels[0] >= -(2**63) and labels[-1] < 2**63:
        return np.asarray(labels, dtype=np.int64)
    return _boxed(labels)


def _boxed(labels: list) -> np.ndarray:
    boxed = np.empty(len(labels), dtype=object)
    boxed[:] = labels
    return boxed


def _encode(keys: object) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys in order, and for each row the place of its key among them."""
    array = _array(keys)
    if array.dtype.kind != "O":
        labels, codes = np.unique(array, return_inverse=True)
        return labels, codes.astype(np.int64, copy=False).reshape(-1)
    found: dict = {}
    try:
        codes = np.array([found.setdefault(key, len(found)) for key in array.tolist()], np.int64)
        labels = sorted(found)
    except TypeError:
        kinds = sorted({type(key).__name__ for key in array.tolist()})
        raise JoinweirError(f"keys must be of one sortable type, not {', '.join(kinds)}") from None
    place = np.empty(len(labels), np.int64)
    place[[found[label] for label in labels]] = np.arange(len(labels))
    return _plain(labels), place[codes] if codes.size else codes


def _frozen(values: object, dtype: type | None = None) -> np.ndarray:
    """A copy that nobody can write to."""
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


# --- distances to the previous occurrence -------------------------------------------------------


@kernel
def _previous_rows(codes, last, previous):
    """previous[n] = the row before n with the same key, or -1; `last` is -1 for every key."""
    for n in range(codes.size):
        previous[n] = last[codes[n]]
        last[codes[n]] = n


def _previous(codes: np.ndarray, n_labels: int) -> np.ndarray:
    previous = np.empty(codes.size, np.int64)
    _previous_rows(codes, np.full(n_labels, -1, np.int64), previous)
    return previous


@kernel
def _stack_distances(previous, tree, distances):
    """A Fenwick tree marks the latest row of each key; those after previous[n] are counted."""
    found = 0
    size = tree.size - 1
    n_marks = 0
    for n in range(previous.size):
        before = previous[n]
        if before >= 0:
            older = 0  # marks at rows <= before
            at = before + 1
            while at > 0:
                older += tree[at]
                at -= at & -at
            distances[found] = n_marks - older
            found += 1
            at = before + 1
            while at <= size:
                tree[at] -= 1
                at += at & -at
        else:
            n_marks += 1
        at = n + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return found


def iad(keys: object) -> np.ndarray:
    """Inter-arrival distances: rows since the previous row of the same key.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls.

    Returns
    -------
    numpy.ndarray
        int64 >= 1, in the order of the stream; a key's first row has none.

    Examples
    --------
    >>> iad([7, 8, 7, 7])
    array([2, 1])
    """
    labels, codes = _encode(keys)
    previous = _previous(codes, labels.size)
    again = np.flatnonzero(previous >= 0)
    return again - previous[again]


def stack_distance(keys: object) -> np.ndarray:
    """Distinct other keys since the previous row of the same key, in O(N log N).

    An LRU cache of C keys hits exactly the rows of distance < C.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls.

    Returns
    -------
    numpy.ndarray
        int64 >= 0, in the order of the stream; a key's first row has none.

    Examples
    --------
    >>> stack_distance(["a", "b", "b", "a", "a"])
    array([0, 1, 0])
    """
    labels, codes = _encode(keys)
    distances = np.empty(codes.size, np.int64)
    tree = np.zeros(codes.size + 1, np.int64)
    return distances[: _stack_distances(_previous(codes, labels.size), tree, distances)].copy()


def permuted(keys: object, seed: int = 0) -> np.ndarray:
    """The same rows in random order: popularity stays, correlation goes.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls.
    seed : int
        Same seed, same order.

    Returns
    -------
    numpy.ndarray
        A shuffled copy.

    Examples
    --------
    >>> sorted(permuted([3, 1, 2]).tolist())
    [1, 2, 3]
    """
    seed = _integer("seed", seed, 0, 2**63)
    role = np.random.SeedSequence(seed, spawn_key=tuple(b"permuted"))
    return np.random.default_rng(role).permutation(_array(keys))


def cdf(distances: object) -> tuple[np.ndarray, np.ndarray]:
    """The empirical distribution function of distances.

    Parameters
    ----------
    distances : 1-d array
        Numbers, such as from `iad`.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        The distinct values, rising, and the share of distances <= each; both may be empty.

    Examples
    --------
    >>> cdf([2, 1, 2, 5])
    (array([1, 2, 5]), array([0.25, 0.75, 1.  ]))
    """
    values, counts = np.unique(_array(distances), return_counts=True)
    return values, np.cumsum(counts) / max(1, counts.sum())


@kernel
def _geometric_mixture(probabilities, multiplicities, density):
    """density[k-1] += m p² (1-p)^(k-1); the power by exp and log1p, exact to an ulp or so."""
    for i in range(probabilities.size):
        p = probabilities[i]
        log_miss = np.log1p(-p)
        for k in range(density.size):
            exponent = k * log_miss
            if exponent < -745.0:  # e**-745.2 is the smallest positive float
                break
            density[k] += multiplicities[i] * p * p * np.exp(exponent)


def iad_independent(popularity: Popularity | np.ndarray, k_max: int) -> np.ndarray:
    """The law of inter-arrival distances if rows were independent (li2006 eq. 1).

    d(k) = Σ_i p_i² (1 - p_i)^(k-1); it sums to 1 over all k >= 1.

    Parameters
    ----------
    popularity : Popularity or array of float
        The probabilities p_i.
    k_max : int
        Largest distance, at least 1.

    Returns
    -------
    numpy.ndarray
        d(1) … d(k_max).

    Examples
    --------
    >>> iad_independent([0.5, 0.5], 3)
    array([0.5  , 0.25 , 0.125])
    """
    k_max = _integer("k_max", k_max, 1, _LARGEST_T)
    if not isinstance(popularity, Popularity):
        popularity = Popularity.known(popularity)
    # Keys of one frequency share their terms: of N rows at most √(2N) frequencies differ.
    values, counts = np.unique(popularity.probabilities, return_counts=True)
    density = np.zeros(k_max)
    density[0] = counts[values >= 1.0].sum()  # one certain key: log1p(-1) is -∞
    below = values < 1.0
    _geometric_mixture(values[below], counts[below].astype(np.float64), density)
    return density


# --- popularity ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZipfFit:
    """How well P(rank r) ∝ r^(-s) describes a popularity.

    NaN stands where the ranks leave a value open: all but `ks` with one key, the standard error
    with two.
    """

    exponent: float  # s by least squares of ln P on ln r, as the papers do
    standard_error: float  # of `exponent`, by the usual formula (ranks are not independent)
    r_squared: float  # of the same line
    mle: float  # s of largest likelihood over the ranks present, in [0, 64]
    ks: float  # Kolmogorov–Smirnov distance between the ranks and Zipf(mle)


@dataclass(frozen=True, eq=False)
class Popularity:
    """How often each key occurs, most frequent first.

    Attributes
    ----------
    keys : numpy.ndarray
        Distinct keys by falling probability, equals in key order.
    counts : numpy.ndarray or None
        Rows of each key; None when the probabilities are known rather than counted.
    probabilities : numpy.ndarray
        float64, falling; with `rest` their sum is 1.
    rest : float
        Probability of all keys that are not listed, where only the frequent ones are.
    """

    keys: np.ndarray
    counts: np.ndarray | None
    probabilities: np.ndarray
    rest: float = 0.0

    def __post_init__(self) -> None:
        keys = _frozen(self.keys)
        counts = None if self.counts is None else _frozen(self.counts, np.int64)
        p = _frozen(self.probabilities, np.float64)
        if p.ndim != 1 or p.size == 0 or not np.isfinite(p).all() or (p < 0).any():
            raise JoinweirError("probabilities must be a 1-d array of numbers >= 0, not empty")
        if isinstance(self.rest, bool) or not isinstance(self.rest, Real) or not self.rest >= 0:
            raise JoinweirError(f"rest must be a number >= 0, not {self.rest!r}")
        if abs(p.sum() + self.rest - 1) > 1e-6:
            raise JoinweirError(f"probabilities must sum to 1, not {p.sum() + self.rest:.9g}")
        if keys.shape != p.shape or (counts is not None and counts.shape != p.shape):
            raise JoinweirError("keys, counts and probabilities must be of one length")
        if (np.diff(p) > 0).any():
            raise JoinweirError("probabilities must fall; Popularity.known sorts them")
        for name, value in (("keys", keys), ("counts", counts), ("probabilities", p)):
            object.__setattr__(self, name, value)

    @classmethod
    def known(cls, probabilities: object, keys: object = None) -> Popularity:
        """A popularity given by its probabilities; keys are 0, 1, … unless given.

        Examples
        --------
        >>> Popularity.known([0.25, 0.75]).keys
        array([1, 0])
        """
        try:
            p = np.asarray(probabilities, dtype=np.float64)
        except (TypeError, ValueError):
            raise JoinweirError("probabilities must be a 1-d array of numbers >= 0") from None
        labels = np.arange(p.size) if keys is None else _array(keys)
        if p.ndim != 1 or labels.size != p.size:
            raise JoinweirError("keys and probabilities must be 1-d and of one length")
        order = np.argsort(-p, kind="stable")
        return cls(labels[order], None, p[order])

    @classmethod
    def _counted(cls, labels: np.ndarray, counts: np.ndarray) -> Popularity:
        order = np.argsort(-counts, kind="stable")
        return cls(labels[order], counts[order], counts[order] / counts.sum())

    def zipf(self) -> ZipfFit:
        """Fit a Zipf law to the ranks that are listed.

        The exponent by least squares weighs each rank alike, so the many rare keys, whose counts
        are mostly noise, decide it; the likelihood weighs each row alike. Both see ranks that
        come from the same rows, which makes a short stream look more skewed than it is.

        Examples
        --------
        >>> fit = popularity([1] * 60 + [2] * 30 + [3] * 20).zipf()
        >>> round(fit.exponent, 6), round(fit.mle, 6), round(fit.ks, 6)
        (1.0, 1.0, 0.0)
        """
        p = self.probabilities[self.probabilities > 0]
        p = p / p.sum()
        if p.size == 1:
            return ZipfFit(math.nan, math.nan, math.nan, math.nan, 0.0)
        x, y = np.log(np.arange(1, p.size + 1)), np.log(p)
        dx, dy = x - x.mean(), y - y.mean()
        slope = (dx @ dy) / (dx @ dx)
        residual = float(((dy - slope * dx) ** 2).sum())
        error = math.sqrt(residual / (p.size - 2) / (dx @ dx)) if p.size > 2 else math.nan
        r_squared = 1.0 - residual / float(dy @ dy) if dy @ dy > 0 else 1.0
        # The likelihood is concave; it is largest where the law's mean of ln r is the ranks'.
        target, low, high = float(p @ x), 0.0, _LARGEST_EXPONENT
        while high - low > 1e-12 * max(1.0, high):
            middle = (low + high) / 2
            weights = np.exp(-middle * x)
            low, high = (middle, high) if weights @ x > target * weights.sum() else (low, middle)
        law = np.cumsum(np.exp(-high * x))
        ks = float(np.abs(np.cumsum(p) - law / law[-1]).max())
        return ZipfFit(float(-slope), error, float(r_squared), high, ks)


_TABLED_RANKS = 1000  # sums over ranks are taken term by term up to here
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _rank_sums(ranks: np.ndarray, exponent: float, power: int) -> np.ndarray:
    """Σ_{i <= r} i^(-exponent) (ln i)^power for each of the rising whole ranks r >= 0.

    Term by term for small ranks; beyond, by the formula of Euler and Maclaurin, whose error is
    below 1e-12 of a term at rank 1000. So a law over 10^9 ranks costs no more than one over 10^3.
    """
    near = np.arange(1, _TABLED_RANKS + 1, dtype=np.float64)
    table = np.r_[0.0, np.cumsum(near**-exponent * np.log(near) ** power)]
    found = table[np.minimum(ranks, _TABLED_RANKS)]
    far = ranks > _TABLED_RANKS
    if not far.any():
        return found
    x = np.r_[float(_TABLED_RANKS), ranks[far].astype(np.float64)]
    logs = np.log(x)
    value = x**-exponent * logs**power
    slope = (power / logs - exponent) * value / x
    width = np.diff(logs)
    at = logs[:-1, None] + width[:, None] * (_NODES + 1) / 2  # ∫ f dx = ∫ f(e^u) e^u du
    inside = np.exp((1 - exponent) * at) * at**power
    integral = np.cumsum(width / 2 * (inside @ _WEIGHTS))
    found[far] += integral + (value[1:] - value[0]) / 2 + (slope[1:] - slope[0]) / 12
    return found


def zipf_of_counts(frequency: np.ndarray, keys: np.ndarray) -> ZipfFit:
    """Fit a Zipf law to the number of keys of each frequency; `Popularity.zipf` without the keys.

    Its cost depends on how many frequencies differ, at most √(2N) of N rows, not on the number of
    keys.

    Parameters
    ----------
    frequency : array of int
        Rows of a key, falling, all different, at least 1.
    keys : array of int
        How many keys have that many rows.

    Returns
    -------
    ZipfFit

    Examples
    --------
    >>> fit = zipf_of_counts(np.array([60, 30, 20]), np.array([1, 1, 1]))
    >>> round(fit.exponent, 6), round(fit.mle, 6), round(fit.ks, 6)
    (1.0, 1.0, 0.0)
    """
    frequency, keys = np.asarray(frequency, np.int64), np.asarray(keys, np.int64)
    last = np.cumsum(keys)  # rank of the last key of each frequency
    n_keys, n_rows = int(last[-1]), float((frequency * keys).sum())
    if n_keys == 1:
        return ZipfFit(math.nan, math.nan, math.nan, math.nan, 0.0)
    y = np.log(frequency / n_rows)
    logs = np.diff(np.r_[0.0, _rank_sums(last, 0.0, 1)])  # Σ ln r over each frequency's ranks
    mean_x, mean_y = logs.sum() / n_keys, float(y @ keys) / n_keys
    xx = float(_rank_sums(last[-1:], 0.0, 2)[0]) - n_keys * mean_x**2
    xy = float((y - mean_y) @ (logs - keys * mean_x))
    yy = float((y - mean_y) ** 2 @ keys)
    slope = xy / xx
    residual = max(0.0, yy - slope * xy)
    error = math.sqrt(residual / (n_keys - 2) / xx) if n_keys > 2 else math.nan
    r_squared = 1.0 - residual / yy if yy > 0 else 1.0
    target, low, high = float(frequency @ logs) / n_rows, 0.0, _LARGEST_EXPONENT
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        mean = _rank_sums(last[-1:], middle, 1)[0] / _rank_sums(last[-1:], middle, 0)[0]
        low, high = (middle, high) if mean > target else (low, middle)
    total = _rank_sums(last[-1:], high, 0)[0]
    # Within one frequency the ranks' share rises in a line and the law's in a concave curve: they
    # are farthest apart at an end or where their slopes agree.
    first = last - keys + 1
    with np.errstate(divide="ignore", over="ignore"):
        same = (frequency / n_rows * total) ** (-1 / high) if high > 0 else first * 1.0
    same = np.clip(np.nan_to_num(same, posinf=n_keys), first, last)
    ranks = np.unique(np.r_[first, last, np.floor(same), np.ceil(same)].astype(np.int64))
    place = np.searchsorted(last, ranks)
    before = np.r_[0, np.cumsum(frequency * keys)][place]
    share = (before + (ranks - first[place] + 1) * frequency[place]) / n_rows
    ks = float(np.abs(share - _rank_sums(ranks, high, 0) / total).max())
    return ZipfFit(float(-slope), error, float(r_squared), high, ks)


def zipf_law(exponent: float, n_keys: int, ranks: object) -> np.ndarray:
    """P(rank) = rank^(-exponent) / Σ_{r <= n_keys} r^(-exponent).

    Examples
    --------
    >>> zipf_law(1.0, 2, [1, 2]).round(6)
    array([0.666667, 0.333333])
    """
    total = _rank_sums(np.array([n_keys]), exponent, 0)[0]
    return np.asarray(ranks, np.float64) ** -exponent / total


def popularity(keys: object) -> Popularity:
    """Count the keys of a stream.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls; at least one row.

    Returns
    -------
    Popularity
        Keys by falling count; its ``zipf()`` fits a Zipf law.

    Examples
    --------
    >>> found = popularity(["b", "a", "b"])
    >>> found.keys.tolist(), found.counts.tolist()
    (['b', 'a'], [2, 1])
    """
    labels, codes = _encode(keys)
    if not codes.size:
        raise JoinweirError("keys are empty; a popularity needs at least 1 row")
    return Popularity._counted(labels, np.bincount(codes))


# --- the model ----------------------------------------------------------------------------------


@kernel
def _renewal_sums(a, u, sums):
    """u_0 = 1, u_k = Σ_{i <= min(h, k)} a_i u_{k-i}; sums[k] = U(k) = u_0 + … + u_k.

    Once h values of u in a row are lost in rounding, U stays what it is. Returned is how many
    places were computed; the last one stands for all that follow.
    """
    total = 0.0
    lost = 0
    for k in range(u.size):
        value = 1.0 if k == 0 else 0.0
        for i in range(min(a.size, k)):
            value += a[i] * u[k - 1 - i]
        u[k] = value
        total += value
        sums[k] = total
        lost = lost + 1 if value < 1e-18 * total else 0
        if lost == a.size:
            return k + 1
    return u.size


def renewal_sums(a: np.ndarray, n: int) -> np.ndarray:
    """U(0) … U(n-1) of the closed form in `LocalityModel.weights`, or fewer.

    U(k) is the expected number of repeats, direct or through other repeats, that a row has within
    the next k rows, itself included. Values that are equal to the last one are left out.
    """
    room = min(n, 4096)
    while True:
        u, sums = np.empty(room), np.empty(room)
        done = _renewal_sums(a, u, sums)
        if done < room or room == n:
            return sums[:done]
        room = min(n, 4 * room)


def occurrence_weights(a: np.ndarray, b: float, T: int) -> tuple[np.ndarray, float]:
    """cs_1 … cs_h and cs_{T+1} of `LocalityModel.weights`, of a model without its popularity."""
    sums = renewal_sums(a, T)
    recent = np.zeros(a.size)
    if not T:
        return recent, 0.0
    for i in range(min(T, a.size)):
        recent[: a.size - i] += a[i:] * sums[min(T - 1 - i, sums.size - 1)]
    return recent, float(b) * (float(sums.sum()) + (T - sums.size) * float(sums[-1]))


@kernel
def _conditional_entropy(codes, a, fresh, probability, entropy_p, mass, table):
    """Σ_n H(q_n), from the entropy of b·P and a correction for each of the <= h recent keys.

    `mass` is 0 for every key, before and after; `table` = b P ln(b P).
    """
    h = a.size
    total = 0.0
    for n in range(codes.size):
        lags = min(n, h)
        b = fresh[lags]
        value = b * entropy_p
        if b > 0.0:
            value -= b * np.log(b)
        for j in range(lags):
            mass[codes[n - 1 - j]] += a[j]
        for j in range(lags):
            c = codes[n - 1 - j]
            if mass[c] > 0.0:
                q = b * probability[c]
                if lags == h:
                    value += table[c]
                elif q > 0.0:
                    value += q * np.log(q)
                q += mass[c]
                value -= q * np.log(q)
                mass[c] = 0.0
        total += value
    return total


@kernel
def _log_loss(codes, previous, a, fresh, probability):
    """-Σ_n ln q_n(x_n)."""
    h = a.size
    total = 0.0
    for n in range(codes.size):
        q = fresh[min(n, h)] * probability[codes[n]]
        m = previous[n]
        while m >= 0 and n - m <= h:
            q += a[n - m - 1]
            m = previous[m]
        if q <= 0.0:
            return np.inf
        total -= np.log(q)
    return total


@dataclass(frozen=True, eq=False)
class LocalityModel:
    """Repeat the key i rows back with probability a_i, else draw from the popularity (b).

    Attributes
    ----------
    a : numpy.ndarray
        a_1 … a_h, each >= 0.
    b : float
        Share of fresh draws; b + Σ a = 1. 1: independent rows, 0: nothing but repeats.
    popularity : Popularity
        What fresh draws are drawn from.
    """

    a: np.ndarray
    b: float
    popularity: Popularity

    def __post_init__(self) -> None:
        try:
            a = _frozen(self.a, np.float64)
        except (TypeError, ValueError):
            raise JoinweirError("a must be a 1-d array of numbers >= 0") from None
        if a.ndim != 1 or not a.size or not np.isfinite(a).all() or (a < 0).any():
            raise JoinweirError("a must be a 1-d array of numbers >= 0, one per lag, not empty")
        if isinstance(self.b, bool) or not isinstance(self.b, Real) or not 0 <= self.b <= 1:
            raise JoinweirError(f"b must be a number in [0, 1], not {self.b!r}")
        if abs(self.b + a.sum() - 1) > _SIMPLEX_SLACK:
            raise JoinweirError(f"b + sum(a) must be 1, not {self.b + a.sum():.9g}")
        if not isinstance(self.popularity, Popularity):
            raise JoinweirError("popularity must be a Popularity, see popularity(keys)")
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", float(self.b))

    @property
    def h(self) -> int:
        """The longest lag."""
        return self.a.size

    def weights(self, T: int) -> tuple[np.ndarray, float]:
        """What each recent row, and the popularity, adds to the expected next T rows.

        The column sums cs_j of M^T (li2006 lemma 2) without the matrix, also for T < h:
        with u_0 = 1, u_k = Σ_{i <= min(h, k)} a_i u_{k-i} and U(k) = u_0 + … + u_k,
        cs_j = Σ_{i=0}^{T-1} a_{i+j} U(T-1-i) and cs_{T+1} = b Σ_{i=0}^{T-1} U(i).

        Parameters
        ----------
        T : int
            Rows to look ahead. Time is O(T h), memory O(T), T being at most the number of rows
            after which a repeat of a repeat has become as rare as rounding errors.

        Returns
        -------
        (numpy.ndarray, float)
            cs_1 … cs_h for the rows 1 … h back, and cs_{T+1} for the popularity. They sum to T.

        Examples
        --------
        >>> LocalityModel([0.5], 0.5, popularity([1, 2])).weights(2)
        (array([0.75]), 1.25)
        """
        return occurrence_weights(self.a, self.b, _integer("T", T, 0, _LARGEST_T))

    def expected_occurrences(self, recent: object, T: int) -> tuple[np.ndarray, np.ndarray]:
        """The expected number of rows of every key among the next T.

        E_T(e) = Σ_{j: x_{n-j} = e} cs_j + cs_{T+1} P(e) (li2006 lemma 3, right-hand side).

        Parameters
        ----------
        recent : 1-d array
            The last keys, newest last. More than h are cut; with fewer the missing lags count
            as fresh draws.
        T : int
            Rows to look ahead.

        Returns
        -------
        (numpy.ndarray, numpy.ndarray)
            The popularity's keys by rank, then recent keys it does not know, and what to expect
            of each. The sum is T, less what fresh draws give to keys that are not listed.

        Examples
        --------
        >>> model = LocalityModel([0.5], 0.5, popularity([1, 2]))
        >>> model.expected_occurrences([2], 1)
        (array([1, 2]), array([0.25, 0.75]))
        """
        cs, fresh = self.weights(T)
        recent = _array(recent)[-self.h :][::-1]  # by lag
        keys, codes, p = self._codes(recent)
        expected = (fresh + cs[recent.size :].sum()) * p
        np.add.at(expected, codes, cs[: recent.size])
        return keys, expected

    def entropy(self, keys: object, unit: str = "nats", method: str = "conditional") -> float:
        """Entropy per row of a stream under this model (li2006 definition 3).

        Parameters
        ----------
        keys : 1-d array
            The stream, at least one row.
        unit : {"nats", "bits"}
            Natural logarithms, as in the paper's table 2, or binary ones.
        method : {"conditional", "log_loss"}
            ``conditional``: the mean of H(q_n), where q_n is the model's law of row n given the
            rows before. ``log_loss``: the mean of -ln q_n(x_n), which also punishes a wrong
            model (∞ if a key comes that the model rules out).

        Returns
        -------
        float
            In O(h) per row.

        Examples
        --------
        >>> keys = np.arange(1000) % 4
        >>> round(LocalityModel([0.0], 1.0, popularity(keys)).entropy(keys, unit="bits"), 9)
        2.0
        """
        if unit not in UNITS:
            raise unknown("unit", unit, UNITS)
        if method not in ENTROPIES:
            raise unknown("method", method, ENTROPIES)
        if self.popularity.rest > _SIMPLEX_SLACK:
            raise JoinweirError("an entropy needs the probability of every key, not of some only")
        labels, codes, p = self._codes(keys)
        if not codes.size:
            raise JoinweirError("keys are empty; an entropy needs at least 1 row")
        # Of row n only n lags exist; the others are fresh draws.
        fresh = self.b + np.r_[np.cumsum(self.a[::-1])[::-1], 0.0]
        if method == "log_loss":
            total = _log_loss(codes, _previous(codes, labels.size), self.a, fresh, p)
        else:
            entropy_p = -float(_x_log_x(p).sum())
            table = _x_log_x(self.b * p)
            mass = np.zeros(labels.size)
            total = _conditional_entropy(codes, self.a, fresh, p, entropy_p, mass, table)
        return total / codes.size / UNITS[unit]

    def _codes(self, keys: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All keys (known ones by rank, then unknown), the rows as places, all probabilities."""
        known, p = self.popularity.keys, self.popularity.probabilities
        labels, codes = _encode(keys)
        place = {key: i for i, key in enumerate(known.tolist())}
        places = [place.get(label, -1) for label in labels.tolist()]
        places = np.asarray(places, dtype=np.int64)
        strange = np.flatnonzero(places < 0)
        if not strange.size:
            return known, places[codes], p
        places[strange] = p.size + np.arange(strange.size)
        if known.dtype.kind == labels.dtype.kind:
            merged = np.concatenate([known, labels[strange]])
        else:
            merged = _boxed(known.tolist() + labels[strange].tolist())
        return merged, places[codes], np.r_[p, np.zeros(strange.size)]

    def to_json(self) -> str:
        """The model as JSON text; ``LocalityModel.from_json`` gives it back bit by bit.

        Examples
        --------
        >>> model = LocalityModel([0.5], 0.5, popularity(["x", "y"]))
        >>> LocalityModel.from_json(model.to_json()).popularity.keys.tolist()
        ['x', 'y']
        """
        counts = self.popularity.counts
        kind, keys = _keys_to_json(self.popularity.keys)
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "a": self.a.tolist(),
                "b": self.b,
                "popularity": {
                    "type": kind,
                    "keys": keys,
                    "counts": None if counts is None else counts.tolist(),
                    "probabilities": self.popularity.probabilities.tolist(),
                    "rest": float(self.popularity.rest),
                },
            }
        )

    @classmethod
    def from_json(cls, text: str) -> LocalityModel:
        """The model that `to_json` wrote."""
        try:
            content = json.loads(text)
        except (TypeError, ValueError) as error:
            raise JoinweirError(f"not a locality model in JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise JoinweirError(f"not a locality model in JSON: no format {_FORMAT!r}")
        if content.get("version") != _VERSION:
            raise JoinweirError(
                f"locality model of version {content.get('version')!r}, this reads {_VERSION}"
            )
        try:
            inner = content["popularity"]
            keys = _keys_from_json(inner["type"], inner["keys"])
            rest = inner.get("rest", 0.0)
            found = Popularity(keys, inner["counts"], inner["probabilities"], rest)
            return cls(content["a"], content["b"], found)
        except JoinweirError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise JoinweirError(f"damaged locality model: {error!r}") from None


def _x_log_x(x: np.ndarray) -> np.ndarray:
    return x * np.log(np.where(x > 0, x, 1.0))


def _keys_to_json(keys: np.ndarray) -> tuple[str, list]:
    kind = keys.dtype.kind
    if kind == "O":
        name = ", ".join(sorted({type(key).__name__ for key in keys.tolist()}))
        if name not in ("str", "bytes", "int"):
            raise JoinweirError(f"keys of type {name} cannot be written as JSON")
        listed = keys.tolist()
        return name, [key.hex() for key in listed] if name == "bytes" else listed
    if kind in "mM":
        return keys.dtype.str, keys.astype(np.int64).tolist()
    if kind == "S":
        return keys.dtype.str, [key.hex() for key in keys.tolist()]
    return keys.dtype.str, keys.tolist()


def _keys_from_json(kind: str, listed: list) -> np.ndarray:
    if kind == "bytes" or np.dtype(kind).kind == "S":
        listed = [bytes.fromhex(key) for key in listed]
    if kind in ("str", "bytes", "int"):
        return _boxed(listed)
    if np.dtype(kind).kind not in "iufbUSmM":
        raise JoinweirError(f"damaged locality model: keys of type {kind!r}")
    return np.asarray(listed, dtype=kind)


# --- estimating it ------------------------------------------------------------------------------


def _project(raw: np.ndarray) -> np.ndarray:
    """The nearest point (Euclid) with all parts >= 0 and sum 1."""
    falling = np.sort(raw)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, raw.size + 1)
    point = np.maximum(raw - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
    return point / point.sum()


def _usable_h(h: object, n_rows: int) -> int:
    h = _integer("h", h, 1, _LARGEST_H)
    if n_rows < 2:
        raise JoinweirError(f"keys have {n_rows} row(s); a locality model needs at least 2")
    return min(h, n_rows - 1)


@kernel
def _count_matches(previous, begin, cut, matches):
    """matches[k-1] += pairs (m, m+k) of equal keys with m < cut and m+k >= begin."""
    h = matches.size
    for n in range(begin, previous.size):
        m = previous[n]
        while m >= 0 and n - m <= h:
            if m < cut:
                matches[n - m - 1] += 1
            m = previous[m]


class EqualityCounts:
    """How often rows k apart are equal, for k = 1 … h: what Yule–Walker needs of a stream.

    Counts in one pass, chunk by chunk, O(h) per row at most. Two parts of a stream, one right
    after the other, can be counted apart and merged: each keeps its first and last h keys, so
    the pairs across the border are counted exactly.

    Parameters
    ----------
    h : int
        Longest lag, at least 1.

    Attributes
    ----------
    n_rows : int
        Rows counted.
    matches : numpy.ndarray
        int64[h]; element k-1 is the number of pairs of equal rows k apart.

    Examples
    --------
    >>> early = EqualityCounts(2).update(["a", "b", "a"])
    >>> early.merge(EqualityCounts(2).update(["a", "b"])).matches
    array([1, 1])
    """

    def __init__(self, h: int = 50) -> None:
        self.h = _integer("h", h, 1, _LARGEST_H)
        self.n_rows = 0
        self.matches = np.zeros(self.h, np.int64)
        self._labels = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._first = self._last = self._labels

    def update(self, keys: object) -> EqualityCounts:
        """Count the rows that follow; returns itself."""
        labels, codes = _encode(keys)
        chunk = EqualityCounts(self.h)
        chunk.n_rows = codes.size
        chunk._labels, chunk._counts = labels, np.bincount(codes, minlength=labels.size)
        chunk._first = labels[codes[: self.h]]
        chunk._last = labels[codes[-self.h :]]
        _count_matches(_previous(codes, labels.size), 0, codes.size, chunk.matches)
        self.__dict__.update(self.merge(chunk).__dict__)
        return self

    def merge(self, other: EqualityCounts) -> EqualityCounts:
        """The counts of this part of a stream followed by the other part."""
        if not isinstance(other, EqualityCounts) or other.h != self.h:
            raise JoinweirError(f"can only merge EqualityCounts of the same h={self.h}")
        both = EqualityCounts(self.h)
        both.n_rows = self.n_rows + other.n_rows
        both.matches = self.matches + other.matches
        labels, codes = np.unique(_joined(self._labels, other._labels), return_inverse=True)
        counts = np.zeros(labels.size, np.int64)
        np.add.at(counts, codes.reshape(-1), np.r_[self._counts, other._counts])
        both._labels, both._counts = labels, counts
        both._first = _joined(self._first, other._first)[: self.h]
        both._last = _joined(self._last, other._last)[-self.h :]
        border, codes = np.unique(_joined(self._last, other._first), return_inverse=True)
        previous = _previous(codes.reshape(-1).astype(np.int64), border.size)
        _count_matches(previous, self._last.size, self._last.size, both.matches)
        return both

    @property
    def popularity(self) -> Popularity:
        """The counted keys by rank."""
        if not self.n_rows:
            raise JoinweirError("no rows counted yet; a popularity needs at least 1 row")
        return Popularity._counted(self._labels, self._counts)

    def model(self, h: int | None = None) -> LocalityModel:
        """The Yule–Walker model of the rows so far.

        With ρ(k) the share of equal pairs k apart and s₂ that of unrelated pairs,
        γ(k) = ρ(k) - s₂ and γ(0) = 1 - s₂ obey Σ_j a_j γ(|k-j|) = γ(k). No numbering of the
        keys is involved. s₂ is measured on all pairs more than h apart: ΣP², the obvious
        estimate, also holds the near pairs and each row paired with itself. A solution outside
        of the simplex is moved to the nearest point of it.

        Parameters
        ----------
        h : int, optional
            Longest lag, at most the counted one, which is the default.
        """
        h = _usable_h(self.h if h is None else _integer("h", h, 1, self.h), self.n_rows)
        found = self.popularity
        if found.keys.size == 1:  # every (a, b) gives this stream; independence says the least
            return LocalityModel(np.zeros(h), 1.0, found)
        # In Python's integers: n² overflows an int64 at 3e9 rows.
        squares = sum(count * count for count in self._counts.tolist())
        return _model(_yule_walker(self.n_rows, self.matches[:h], squares), found)


def _yule_walker(n: int, matches: np.ndarray, squares: int) -> np.ndarray:
    """(b, a_1 … a_h), not yet in the simplex; `squares` is the sum of the keys' squared counts."""
    h = matches.size
    lags = np.arange(1, h + 1)
    far_pairs = n * n - n - 2 * sum(n - k for k in range(1, h + 1))
    far_equal = squares - n - 2 * int(matches.sum())
    s2 = far_equal / far_pairs if far_pairs > 0 else squares / (n * n)
    gamma = np.r_[1.0, matches / (n - lags)] - s2
    system = gamma[np.abs(lags[:, None] - lags)]
    a = np.linalg.lstsq(system, gamma[1:], rcond=1e-10)[0]
    return np.r_[1 - a.sum(), a]


def _joined(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Two arrays of keys as one; numpy itself would turn 1 and "1" into the same text."""
    if not one.size or not two.size:
        return one if one.size else two
    if one.dtype.kind != two.dtype.kind:
        raise JoinweirError(f"keys must keep their type: {one.dtype} and then {two.dtype}")
    return np.concatenate([one, two])


def _model(raw: np.ndarray, found: Popularity) -> LocalityModel:
    """The model at the point of the simplex nearest to the raw (b, a_1 … a_h)."""
    point = _project(raw)
    return LocalityModel(point[1:], point[0], found)


def _least_squares(codes: np.ndarray, h: int) -> np.ndarray:
    """Regress the code of a row on its h predecessors and the constant Y (li2006 eq. 2).

    Codes are 1 … D in key order, Y is their mean. Solved around Y, where it is well conditioned;
    the constant found there is worth b - (1 - Σ a) in units of Y.
    """
    mean = float(codes.mean()) + 1.0
    centred = codes + 1.0 - mean
    scale = float(centred.std())
    centred /= scale
    # Column 0 is the row itself, h the farthest, the last the constant.
    gram = np.zeros((h + 2, h + 2))
    windows = np.lib.stride_tricks.sliding_window_view(centred, h + 1)[:, ::-1]
    step = max(1, 2**22 // (h + 2))  # 32 MB at a time
    for begin in range(0, windows.shape[0], step):
        block = windows[begin : begin + step]
        block = np.c_[block, np.ones(block.shape[0])]
        gram += block.T @ block
    solution = np.linalg.lstsq(gram[1:, 1:], gram[1:, 0], rcond=1e-12)[0]
    a, constant = solution[:h], solution[h] * scale
    return np.r_[1 - a.sum() + constant / mean, a]


@kernel
def _em_gradient(previous, codes, probability, w, gradient, curvature):
    """Mean over rows n >= h of ∂ ln q_n(x_n) / ∂w, and the mean of ln q_n(x_n) itself.

    w = (b, a_1 … a_h). One EM step is w * gradient: w_j times it is the mean posterior
    probability that lag j (0: a fresh draw) made the row. Only lags that match are visited, by
    walking from each row to the one before it with the same key. `curvature` is the mean of the
    squared derivatives.
    """
    h = w.size - 1
    likelihood = 0.0
    for j in range(w.size):
        gradient[j] = 0.0
        curvature[j] = 0.0
    for n in range(h, codes.size):
        p = probability[codes[n]]
        q = w[0] * p
        m = previous[n]
        while m >= 0 and n - m <= h:
            q += w[n - m]
            m = previous[m]
        if q <= 0.0:
            return -np.inf
        likelihood += np.log(q)
        share = 1.0 / q
        gradient[0] += p * share
        curvature[0] += p * share * p * share
        m = previous[n]
        while m >= 0 and n - m <= h:
            gradient[n - m] += share
            curvature[n - m] += share * share
            m = previous[m]
    for j in range(w.size):
        gradient[j] /= codes.size - h
        curvature[j] /= codes.size - h
    return likelihood / (codes.size - h)


@kernel
def _em_hessian(previous, codes, probability, w, rows, hessian):
    """Mean over `rows` of the products of derivatives, less the diagonal; `hessian` is 0."""
    h = w.size - 1
    for i in range(rows.size):
        n = rows[i]
        p = probability[codes[n]]
        q = w[0] * p
        m = previous[n]
        while m >= 0 and n - m <= h:
            q += w[n - m]
            m = previous[m]
        share = 1.0 / q / q / rows.size
        m = previous[n]
        while m >= 0 and n - m <= h:
            hessian[0, n - m] += p * share
            hessian[n - m, 0] += p * share
            k = previous[m]
            while k >= 0 and n - k <= h:
                hessian[n - m, n - k] += share
                hessian[n - k, n - m] += share
                k = previous[k]
            m = previous[m]


@kernel
def _quadratic_minimum(hessian, linear, y, sweeps):
    """Minimise ½ y'Hy - linear'y over y >= 0 by coordinate descent from the given y."""
    for _ in range(sweeps):
        moved = 0.0
        for j in range(y.size):
            if hessian[j, j] <= 0.0:  # a lag that never matches
                y[j] = 0.0
                continue
            value = linear[j]
            for k in range(y.size):
                value -= hessian[j, k] * y[k]
            value = max(0.0, y[j] + value / hessian[j, j])
            moved = max(moved, abs(value - y[j]))
            y[j] = value
        if moved < 1e-10:
            break


def _maximise(look, bend, n: int, w, tolerance: float, max_iterations: int) -> np.ndarray:
    """The maximum of the likelihood that EM climbs, by Newton steps with EM as the fallback.

    `look` gives the mean log-likelihood of the n rows at a point, its slope and curvature, `bend`
    the mean products of derivatives without their diagonal.

    The mean of ln q_n - Σ w is concave and has the same maximum over w >= 0 as the likelihood
    has over the simplex (mixsqp, Kim et al. 2020). Its second derivatives are taken from a
    sample of the rows, so a step costs little more than one pass of EM. A million rows and 50
    lags take 4 or 5 passes; EM alone takes 50 over 100,000 rows of b = 0.1 and 450 over as many
    independent ones, where most weights creep towards 0.
    """
    value, slope, curvature = look(w)
    passes = 1
    while passes < max_iterations:
        hessian = bend(w)
        hessian[np.diag_indices(w.size)] = curvature
        target = w.copy()
        _quadratic_minimum(hessian, hessian @ w + slope - 1, target, 2000)
        direction = target - w
        gain = float((slope - 1) @ direction)
        if gain * n <= tolerance:
            break
        size, found = 1.0, None
        while passes < max_iterations and size > 1e-3:
            point = w + size * direction
            total = point.sum()
            passes += 1
            if total > 0:
                found = look(point / total)
                if found[0] >= value + 1e-4 * size * gain:
                    w = point / total
                    break
            found = None
            size /= 4
        if found is None:
            w = w * slope
            w /= w.sum()
            found = look(w)
            passes += 1
        value, slope, curvature = found
    return w / w.sum()


def _rows_to_bend(n: int, h: int) -> np.ndarray:
    """A sample of n rows that is large enough for second derivatives."""
    n_sampled = min(n, max(2000, 2 * 10**8 // (h + 1) ** 2))
    return np.sort(np.random.default_rng(0).choice(n, min(n_sampled, 50_000), replace=False))


def _likeliest(
    codes: np.ndarray,
    previous: np.ndarray,
    probability: np.ndarray,
    moments: np.ndarray,
    tolerance: float = 0.01,
    max_iterations: int = 1000,
) -> np.ndarray:
    """(b, a_1 … a_h) of largest likelihood, from the moments' as a start."""
    h = moments.size - 1
    rows = _rows_to_bend(codes.size - h, h) + h

    def look(point):
        slope, curvature = np.empty(h + 1), np.empty(h + 1)
        value = _em_gradient(previous, codes, probability, point, slope, curvature)
        return value, slope, curvature

    def bend(point):
        hessian = np.zeros((h + 1, h + 1))
        _em_hessian(previous, codes, probability, point, rows, hessian)
        return hessian

    start = 0.9 * moments + 0.1 / (h + 1)
    return _maximise(look, bend, codes.size - h, start, tolerance, max_iterations)


@kernel
def _sample_gradient(probability, start, lag, w, gradient, curvature):
    """`_em_gradient` of rows that are given by the lags at which they repeat, h at most."""
    h = w.size - 1
    likelihood = 0.0
    n = probability.size
    for j in range(w.size):
        gradient[j] = 0.0
        curvature[j] = 0.0
    for i in range(n):
        p = probability[i]
        q = w[0] * p
        for at in range(start[i], start[i + 1]):
            if lag[at] <= h:
                q += w[lag[at]]
        if q <= 0.0:
            return -np.inf
        likelihood += np.log(q)
        share = 1.0 / q
        gradient[0] += p * share
        curvature[0] += p * share * p * share
        for at in range(start[i], start[i + 1]):
            if lag[at] <= h:
                gradient[lag[at]] += share
                curvature[lag[at]] += share * share
    for j in range(w.size):
        gradient[j] /= n
        curvature[j] /= n
    return likelihood / n


@kernel
def _sample_hessian(probability, start, lag, w, rows, hessian):
    """`_em_hessian` of rows that are given by their lags."""
    h = w.size - 1
    for r in range(rows.size):
        i = rows[r]
        p = probability[i]
        q = w[0] * p
        for at in range(start[i], start[i + 1]):
            if lag[at] <= h:
                q += w[lag[at]]
        share = 1.0 / q / q / rows.size
        for at in range(start[i], start[i + 1]):
            if lag[at] > h:
                continue
            hessian[0, lag[at]] += p * share
            hessian[lag[at], 0] += p * share
            for also in range(at + 1, start[i + 1]):
                if lag[also] <= h:
                    hessian[lag[at], lag[also]] += share
                    hessian[lag[also], lag[at]] += share


def fit_sample(
    probability: np.ndarray,
    start: np.ndarray,
    lag: np.ndarray,
    moments: np.ndarray,
    *,
    tolerance: float = 0.01,
    max_iterations: int = 1000,
) -> tuple[np.ndarray, float]:
    """The likeliest (a, b) of a sample of a stream's rows, which need not lie side by side.

    The likelihood of a row depends on the rows before it only through the lags at which they have
    its key, so a sample of rows with their lags is enough, wherever the stream itself lies.

    Parameters
    ----------
    probability : array of float
        Of each sampled row's key.
    start, lag : array of int
        Row i repeats the rows lag[start[i]] … lag[start[i+1] - 1] before it. Lags beyond the
        model's h do not count.
    moments : array of float
        h + 1 weights (b, a_1 … a_h) to start from, with sum 1.
    tolerance, max_iterations
        As in `fit`.

    Returns
    -------
    (numpy.ndarray, float)
        a_1 … a_h and b.

    Examples
    --------
    >>> a, b = fit_sample(np.full(4, 0.25), np.array([0, 1, 2, 2, 2]), np.array([1, 1]), [0.5, 0.5])
    >>> round(float(b), 2)  # of 4 rows 2 repeat, and a fresh draw repeats 1 in 4
    0.67
    """
    moments = np.asarray(moments, np.float64)
    h = moments.size - 1
    rows = _rows_to_bend(probability.size, h)

    def look(point):
        slope, curvature = np.empty(h + 1), np.empty(h + 1)
        value = _sample_gradient(probability, start, lag, point, slope, curvature)
        return value, slope, curvature

    def bend(point):
        hessian = np.zeros((h + 1, h + 1))
        _sample_hessian(probability, start, lag, point, rows, hessian)
        return hessian

    begin = 0.9 * moments + 0.1 / (h + 1)
    w = _maximise(look, bend, probability.size, begin, tolerance, max_iterations)
    return w[1:], float(w[0])


def thinned(a: np.ndarray, share: float) -> np.ndarray:
    """The model of a part of a stream: a random `share` of its keys, and all their rows.

    A repeat at lag i stays one; of the i - 1 rows between, each is part of it with that chance.

    Examples
    --------
    >>> thinned(np.array([0.0, 0.0, 0.4]), 0.5)
    array([0.1, 0.2, 0.1])
    """
    found, chance = np.zeros(a.size), np.zeros(a.size)
    chance[:1] = 1.0  # of each lag in the part, for a lag i in the whole
    for weight in a:
        found += weight * chance
        chance = (1 - share) * chance + share * np.r_[0.0, chance[:-1]]
    return found


@kernel
def _plain_em(previous, codes, counts, w, sums, steps):
    """`steps` steps of EM from w = (b, a_1 … a_h) on, in place, over rows n >= h.

    Nothing but additions, multiplications and divisions in a fixed order: the same bits on every
    machine, which logarithms and linear algebra do not promise.
    """
    h = w.size - 1
    for _ in range(steps):
        for j in range(w.size):
            sums[j] = 0.0
        for n in range(h, codes.size):
            fresh = counts[codes[n]] / codes.size
            q = w[0] * fresh
            m = previous[n]
            while m >= 0 and n - m <= h:
                q += w[n - m]
                m = previous[m]
            share = 1.0 / q
            sums[0] += fresh * share
            m = previous[n]
            while m >= 0 and n - m <= h:
                sums[n - m] += share
                m = previous[m]
        for j in range(w.size):
            w[j] *= sums[j] / (codes.size - h)


def fit_by_steps(keys: np.ndarray, h: int, steps: int = 30) -> tuple[np.ndarray, float]:
    """(a, b) after a fixed number of EM steps from b = 1/2 and equal a: for policies.

    `fit` goes to the maximum; this stops early, and gives the same bits on every machine, so a
    join that is replayed elsewhere decides as before. A step visits only lags that match.

    Parameters
    ----------
    keys : int64 array
        More than h rows.
    h, steps : int
        Longest lag; how many steps.

    Returns
    -------
    (numpy.ndarray, float)
        a_1 … a_h and b, with sum 1. Of a stream of one key: no repeats, b = 1.

    Examples
    --------
    >>> keys = np.repeat(np.random.default_rng(0).integers(50, size=5000), 2)
    >>> a, b = fit_by_steps(keys, h=2)
    >>> a.round(1), round(b, 1)
    (array([0.5, 0. ]), 0.5)
    """
    labels, codes = np.unique(keys, return_inverse=True)
    if labels.size < 2:
        return np.zeros(h), 1.0
    w = np.full(h + 1, 0.5 / h)
    w[0] = 0.5
    codes = codes.reshape(-1).astype(np.int64, copy=False)
    counts = np.bincount(codes).astype(np.float64)
    _plain_em(_previous(codes, labels.size), codes, counts, w, np.empty(h + 1), steps)
    w /= math.fsum(w)
    return w[1:].copy(), float(w[0])


def fit(
    keys: object,
    h: int = 50,
    estimator: str = "em",
    *,
    tolerance: float = 0.01,
    max_iterations: int = 1000,
) -> LocalityModel:
    """Estimate how far a stream repeats its recent keys.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls; at least 2 rows.
    h : int
        Longest lag; of N rows at most N - 1 is used.
    estimator : {"em", "yule_walker", "paper"}
        ``em``: maximum likelihood, given the first h rows; the maximum that EM climbs to,
        reached by Newton steps in a few passes of at worst O(N h).
        ``yule_walker``: moments, one pass, see `EqualityCounts`, which can also be streamed and
        merged. ``paper``: least squares on the keys' numbers (li2006 §3.1); noisy, and another
        order of the keys gives another answer. The last two may leave the simplex; the nearest
        point (Euclid) of it is returned then.
    tolerance : float
        ``em`` stops when another step promises to raise the log-likelihood of the stream by
        less than this.
    max_iterations : int
        ``em`` stops after this many passes in any case.

    Returns
    -------
    LocalityModel
        With b = 1 for a stream of one key, which every (a, b) explains alike.

    Examples
    --------
    >>> keys = np.repeat(np.random.default_rng(0).integers(50, size=20000), 2)
    >>> [round(fit(keys, h=1, estimator=name).b, 1) for name in ESTIMATORS]
    [0.5, 0.5, 0.5]
    """
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not tolerance > 0:
        raise JoinweirError(f"tolerance must be a number > 0, not {tolerance!r}")
    max_iterations = _integer("max_iterations", max_iterations, 1, 2**31)
    labels, codes = _encode(keys)
    h = _usable_h(h, codes.size)
    counts = np.bincount(codes)
    found = Popularity._counted(labels, counts)
    if labels.size == 1:
        return LocalityModel(np.zeros(h), 1.0, found)
    if estimator == "paper":
        return _model(_least_squares(codes, h), found)
    moments = EqualityCounts(h).update(codes).model()
    if estimator == "yule_walker":
        return LocalityModel(moments.a, moments.b, found)
    w = _likeliest(
        codes,
        _previous(codes, labels.size),
        counts / codes.size,
        np.r_[moments.b, moments.a],
        float(tolerance),
        max_iterations,
    )
    return LocalityModel(w[1:], w[0], found)


def models_over_h(keys: object, hs: Sequence[int]) -> list[tuple[np.ndarray, float]]:
    """The likeliest (a, b) for each of several longest lags, with one preparation for all.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls; at least 2 rows.
    hs : sequence of int
        Longest lags; of N rows at most N - 1 is used.

    Returns
    -------
    list of (numpy.ndarray, float)
        a_1 … a_h and b, as `fit` has them.

    Examples
    --------
    >>> [round(b, 1) for a, b in models_over_h(np.repeat(np.arange(1000) % 50, 2), [1, 2])]
    [0.5, 0.5]
    """
    labels, codes = _encode(keys)
    hs = [_usable_h(h, codes.size) for h in hs]
    if labels.size == 1:
        return [(np.zeros(h), 1.0) for h in hs]
    counts = np.bincount(codes)
    squares = sum(count * count for count in counts.tolist())
    previous = _previous(codes, labels.size)
    matches = np.zeros(max(hs, default=1), np.int64)
    _count_matches(previous, 0, codes.size, matches)
    found = []
    for h in hs:
        moments = _project(_yule_walker(codes.size, matches[:h], squares))
        w = _likeliest(codes, previous, counts / codes.size, moments)
        found.append((w[1:], float(w[0])))
    return found


def b_over_h(keys: object, hs: Sequence[int], estimator: str = "em") -> np.ndarray:
    """The share of fresh draws that each longest lag leaves (li2006 figure 2).

    b falls with h until h covers the stream's correlation, and stays near 1 on the `permuted`
    stream, which has none.

    Parameters
    ----------
    keys : 1-d array
        Integers, texts or bytes, without nulls; at least 2 rows.
    hs : sequence of int
        Longest lags to try.
    estimator : {"em", "yule_walker", "paper"}
        As in `fit`; ``yule_walker`` counts once for all.

    Returns
    -------
    numpy.ndarray
        b for each of `hs`.

    Examples
    --------
    >>> keys = np.repeat(np.arange(1000) % 50, 2)
    >>> b_over_h(keys, [1, 2]).round(1)
    array([0.5, 0.5])
    """
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    codes = _encode(keys)[1]
    hs = [_usable_h(h, codes.size) for h in hs]
    if estimator == "yule_walker" and hs:
        counted = EqualityCounts(max(hs)).update(codes)
        return np.array([counted.model(h).b for h in hs])
    if estimator == "em":
        return np.array([b for _, b in models_over_h(codes, hs)])
    return np.array([fit(codes, h, estimator).b for h in hs])
