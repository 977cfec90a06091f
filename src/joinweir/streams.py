"""Seeded synthetic streams: skew, correlation, locality, drift and importance to order.

A *stream* is a dict of numpy arrays of one length: ``ts`` (int64, non-decreasing) and ``key``
(int64, ``0 … domain-1``). Functions named ``*_pair`` return ``(left, right)``, which
``jw.simulate(left, right, on="key", time="ts", ...)`` takes as it is. Wherever nothing else is
said the key of Zipf rank r is ``r-1``, so key 0 is the most frequent one.

Which join policy wins depends on what the two streams have in common. Locality inside each of
two independent streams does not help a locality-aware policy against exact frequency counts;
locality that both share, or popularity that drifts jointly, does. So the locality generators
come single and as a pair, and a pair can share its process (``shared=True``) or not.

Same seed, same bits. Each random role ("zipf keys", "importance values", …) has a generator of
its own, derived from the seed *and* the role's name: ``zipf(n, seed=0)`` and
``importance(n, seed=0)`` are independent although both seeds are 0.

Sources: chang2004 §5.1.1 (GISMO-like streams), li2006 (copy model), ojewole2006 (importance),
naeem2016 (interval locality).

Example
-------
>>> left, right = zipf_pair(4, rate=(1.0, 2.0), correlation="inverse", seed=7)
>>> left["ts"], right["ts"]
(array([0, 1, 2, 3]), array([0, 0, 1, 1]))
"""

import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real

import numpy as np
from numba import njit

Stream = dict[str, np.ndarray]

ARRIVALS = ("constant", "poisson", "bursty")
CORRELATIONS = ("direct", "inverse", "none")

# A bursty cycle is "on" for a fifth of the time at 4x the rate and "off" at 0.25x:
# 0.2 * 4 + 0.8 * 0.25 = 1, so every whole cycle carries the average rate exactly.
ON_SHARE, ON_FACTOR, OFF_FACTOR = 0.2, 4.0, 0.25

# Times pass through float64, which holds whole numbers exactly up to here.
_LARGEST = 2**53

GENERATORS: dict[str, Callable] = {}


def _generator(function: Callable) -> Callable:
    """Enter a stream generator in ``GENERATORS`` under its own name."""
    GENERATORS[function.__name__] = function
    return function


# --- checking what a caller passes -------------------------------------------------------------


def _integer(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= _LARGEST:
        raise ValueError(f"{name} must be an integer in [{low}, 2**53], got {value!r}")
    return int(value)


def _real(
    name: str, value: object, low: float = 0.0, high: float = math.inf, *, above: bool = False
) -> float:
    """A finite number in [low, high], or with ``above`` in (low, high]."""
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or value > high or (above and value == low):
        if high < math.inf:
            allowed = f"in {'(' if above else '['}{low:g}, {high:g}]"
        else:
            allowed = f"{'>' if above else '>='} {low:g}"
        raise ValueError(f"{name} must be a number {allowed}, got {value!r}")
    return float(value)


def _both(check: Callable, name: str, value: object, *limits, **more) -> tuple:
    """The values for left and right, from one value for both or from a pair."""
    if not isinstance(value, tuple | list | np.ndarray):
        value = (value, value)
    if len(value) != 2:
        raise ValueError(f"{name} must be one value or a (left, right) pair, got {value!r}")
    return tuple(check(name, each, *limits, **more) for each in value)


def _choice(name: str, value: object, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _rate(value: object, n: int) -> float:
    rate = _real("rate", value, above=True)
    if n / rate >= _LARGEST:
        raise ValueError(
            f"rate must be a number > {n / _LARGEST:g} so that {n} rows end before 2**53,"
            f" got {value!r}"
        )
    return rate


def _rates(value: object, sizes: tuple[int, int]) -> tuple[float, float]:
    rates = _both(_real, "rate", value, above=True)
    return _rate(rates[0], sizes[0]), _rate(rates[1], sizes[1])


def _random(seed: object, role: str) -> np.random.Generator:
    seed = _integer("seed", seed, 0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(role.encode())))


# --- keys: Zipf draws ---------------------------------------------------------------------------


def zipf_probabilities(domain: int, skew: float) -> np.ndarray:
    """The Zipf law P(r) ∝ r^(-skew) of the ranks 1 … domain; element k belongs to key k.

    Parameters
    ----------
    domain : int
        Number of keys.
    skew : float
        Exponent; 0 is uniform.

    Returns
    -------
    numpy.ndarray
        float64, falling, with sum 1.

    Examples
    --------
    >>> zipf_probabilities(3, 1.0) * 11
    array([6., 3., 2.])
    """
    domain, skew = _integer("domain", domain, 1), _real("skew", skew)
    weights = np.arange(1, domain + 1, dtype=np.float64) ** -skew
    return weights / weights.sum()


def _zipf_table(domain: int, skew: float) -> tuple[np.ndarray, np.ndarray]:
    """The inverse CDF and a guide into it: ``guide[j]`` is the first k with cdf[k] > j/size."""
    cdf = np.cumsum(zipf_probabilities(domain, skew))
    cdf[-1] = 1.0
    # A power of two, so that u * size and j / size are exact and the guide never overshoots.
    size = 1 << (domain - 1).bit_length()
    return cdf, np.searchsorted(cdf, np.arange(size) / size, side="right")


@njit(cache=True)
def _invert_cdf(cdf, guide, uniform):
    """np.searchsorted(cdf, uniform, side="right"), O(1) a draw on average.

    10 M draws take 0.12 s over 100 keys and 0.20 s over a million; searchsorted itself takes
    0.42 s and 2.6 s.
    """
    keys = np.empty(uniform.size, np.int64)
    for i in range(uniform.size):
        k = guide[int(uniform[i] * guide.size)]
        while cdf[k] <= uniform[i]:
            k += 1
        keys[i] = k
    return keys


def _zipf_keys(rng: np.random.Generator, n: int, domain: int, skew: float) -> np.ndarray:
    return _invert_cdf(*_zipf_table(domain, skew), rng.random(n))


# --- arrival times ------------------------------------------------------------------------------


@njit(cache=True)
def _constant_times(n, rate):
    """floor(i / rate), where a quotient four ulps below a whole number counts as that number.

    Without this 1 / 1e-9 = 999999999.9999999 would arrive at 999999999.
    """
    times = np.empty(n, np.int64)
    for i in range(n):
        exact = i / rate
        whole = np.rint(exact)
        times[i] = whole if abs(exact - whole) <= 2.0**-51 * whole else np.floor(exact)
    return times


def _arrival_times(
    n: int, rate: float, arrivals: str, cycle: float, rng: np.random.Generator
) -> np.ndarray:
    if arrivals == "constant" or n == 0:
        return _constant_times(n, rate)
    if arrivals == "poisson":
        return np.floor(np.cumsum(rng.exponential(1 / rate, n))).astype(np.int64)
    # Bursty: even spacing on a clock that runs at the momentary rate, read back in real time.
    # The two clocks agree at every multiple of `cycle`; np.interp needs only the two corners
    # of each cycle's on phase, because between them the relation is linear.
    begin = np.arange(int(n / (rate * cycle)) + 2) * cycle
    on = rng.uniform(0, (1 - ON_SHARE) * cycle, begin.size)
    real = np.column_stack([begin + on, begin + on + ON_SHARE * cycle]).ravel()
    work_on = begin + OFF_FACTOR * on
    work = np.column_stack([work_on, work_on + ON_FACTOR * ON_SHARE * cycle]).ravel()
    times = np.interp(np.arange(n) / rate, np.r_[0.0, work], np.r_[0.0, real])
    # Rounding at a corner may step back by one ulp, which floor could turn into one unit.
    return np.maximum.accumulate(np.floor(times).astype(np.int64))


def _check_arrivals(arrivals: object, cycle: object, slowest: float) -> tuple[str, float]:
    arrivals, cycle = _choice("arrivals", arrivals, ARRIVALS), _real("cycle", cycle, above=True)
    if arrivals == "bursty" and cycle * slowest < 1:
        raise ValueError(
            f"cycle must be a number >= 1/rate = {1 / slowest:g} for bursty arrivals, got {cycle:g}"
        )
    return arrivals, cycle


def _deal(n: int, rng: np.random.Generator) -> np.ndarray:
    """Mask of the rows that go left: of each two consecutive rows a coin sends one there.

    The sides differ by at most one row, which independent coins would not give; strict
    alternation would, but it turns a copy process with even lags into two unrelated streams.
    """
    coins = rng.random((n + 1) // 2) < 0.5
    goes_left = np.empty(n, np.bool_)
    goes_left[0::2] = coins
    goes_left[1::2] = ~coins[: n // 2]
    return goes_left


# --- independent draws --------------------------------------------------------------------------


@_generator
def zipf(
    n: int,
    *,
    domain: int = 100,
    skew: float = 0.75,
    rate: float = 1.0,
    arrivals: str = "constant",
    cycle: float = 1000.0,
    seed: int = 0,
) -> Stream:
    """One stream of independent Zipf keys.

    Parameters
    ----------
    n : int
        Rows.
    domain : int
        Number of keys; rank r is key r-1.
    skew : float
        Zipf exponent; 0 is uniform.
    rate : float
        Average rows per time unit.
    arrivals : {"constant", "poisson", "bursty"}
        ``constant``: row i arrives at floor(i / rate). ``poisson``: exponential gaps.
        ``bursty``: each `cycle` holds one on phase (20 % of the cycle, at a random place in
        it) at 4 x `rate`; the rest runs at `rate` / 4, so every whole cycle still carries
        `rate` * `cycle` rows.
    cycle : float
        Length of one bursty cycle in time units, at least 1 / rate; ignored otherwise.
    seed : int
        Same seed, same bits.

    Returns
    -------
    dict of numpy.ndarray
        ``ts`` and ``key``, int64.

    Examples
    --------
    >>> zipf(6, rate=2.0)["ts"]
    array([0, 0, 1, 1, 2, 2])
    """
    n, domain = _integer("n", n, 0), _integer("domain", domain, 1)
    rate, skew = _rate(rate, n), _real("skew", skew)
    arrivals, cycle = _check_arrivals(arrivals, cycle, rate)
    return {
        "ts": _arrival_times(n, rate, arrivals, cycle, _random(seed, "zipf times")),
        "key": _zipf_keys(_random(seed, "zipf keys"), n, domain, skew),
    }


@_generator
def zipf_pair(
    n: int | tuple[int, int],
    *,
    domain: int = 100,
    skew: float | tuple[float, float] = 0.75,
    correlation: str = "direct",
    rate: float | tuple[float, float] = 1.0,
    arrivals: str = "constant",
    cycle: float = 1000.0,
    seed: int = 0,
) -> tuple[Stream, Stream]:
    """Two streams of independent Zipf keys whose frequencies agree, oppose or are unrelated.

    Parameters
    ----------
    n : int or pair of int
        Rows of each stream. With unequal rates pass a pair, such as n=(1000, 2000) for
        rate=(1.0, 2.0), if both are to cover the same time.
    domain : int
        Number of keys, the same on both sides.
    skew : float or pair of float
        Zipf exponents of left and right.
    correlation : {"direct", "inverse", "none"}
        Which key has rank r: on the left always r-1; on the right r-1 (``direct``),
        domain-r (``inverse``), or a random permutation (``none``).
    rate : float or pair of float
        Average rows per time unit of left and right.
    arrivals, cycle
        As in `zipf`; the bursts of the two sides are independent.
    seed : int
        Same seed, same bits.

    Returns
    -------
    (dict, dict)
        Left and right, each with ``ts`` and ``key``.

    Examples
    --------
    >>> left, right = zipf_pair(1000, domain=5, skew=2.0, correlation="inverse")
    >>> int(np.bincount(left["key"]).argmax()), int(np.bincount(right["key"]).argmax())
    (0, 4)
    """
    sizes = _both(_integer, "n", n, 0)
    domain = _integer("domain", domain, 1)
    skews = _both(_real, "skew", skew)
    rates = _rates(rate, sizes)
    _choice("correlation", correlation, CORRELATIONS)
    arrivals, cycle = _check_arrivals(arrivals, cycle, min(rates))
    key_of_rank = np.arange(domain)
    if correlation == "inverse":
        key_of_rank = key_of_rank[::-1]
    elif correlation == "none":
        key_of_rank = _random(seed, "zipf_pair permutation").permutation(domain)
    left, right = (
        {
            "ts": _arrival_times(
                sizes[i], rates[i], arrivals, cycle, _random(seed, f"zipf_pair {side} times")
            ),
            "key": _zipf_keys(_random(seed, f"zipf_pair {side} keys"), sizes[i], domain, skews[i]),
        }
        for i, side in enumerate(("left", "right"))
    )
    right["key"] = key_of_rank[right["key"]]
    return left, right


# --- GISMO-like: exact popularity, bounded Pareto gaps ------------------------------------------


@njit(cache=True)
def _cyclic_positions(counts, phases, gaps, horizon):
    """Walk each key once around a circle of length `horizon`, by its rescaled gaps."""
    positions = np.empty(gaps.size, np.float64)
    keys = np.empty(gaps.size, np.int64)
    first = 0
    for key in range(counts.size):
        last = first + counts[key]
        scale = horizon / gaps[first:last].sum() if last > first else 0.0
        at = phases[key] * horizon
        for i in range(first, last):
            at += gaps[i] * scale
            if at >= horizon:
                at -= horizon
            positions[i] = at
            keys[i] = key
        first = last
    return positions, keys


def _gismo_process(
    rng: np.random.Generator, n: int, domain: int, skew: float, burst: float, horizon: int
) -> Stream:
    counts = np.rint(zipf_probabilities(domain, skew) * n).astype(np.int64)
    # Inverse CDF of the Pareto law bounded to 1 … horizon; expm1 and log1p keep it exact as
    # burst → 0, where the law tends to horizon**u.
    uniform = rng.random(int(counts.sum()))
    gaps = np.exp(-np.log1p(uniform * np.expm1(-burst * np.log(horizon))) / burst)
    positions, keys = _cyclic_positions(counts, rng.random(domain), gaps, float(horizon))
    # Sorting the real-valued positions also orders, at random, the rows of one time unit.
    # Stable, so that the order never depends on the machine's sort kernel.
    order = np.argsort(positions, kind="stable")
    ts = np.minimum(positions[order].astype(np.int64), horizon - 1)
    return {"ts": ts, "key": keys[order]}


def _check_gismo(n, domain, skew, burst, horizon) -> tuple[int, int, float, float, int]:
    return (
        _integer("n", n, 0),
        _integer("domain", domain, 1),
        _real("skew", skew),
        _real("burst", burst, above=True),
        _integer("horizon", horizon, 1),
    )


@_generator
def gismo(
    n: int,
    *,
    domain: int = 100,
    skew: float = 0.75,
    burst: float = 1.0,
    horizon: int = 1440,
    seed: int = 0,
) -> Stream:
    """One GISMO-like stream: exact Zipf counts, each key in bursts with Pareto gaps.

    Key r-1 occurs exactly round(P(r) * n) times. Its gaps follow the Pareto law with shape
    `burst` bounded to 1 … horizon, are rescaled to go once around the horizon, and start at a
    random phase; all keys are then merged by time. This is the temporal-locality model of
    chang2004 §5.1.1, whose exact generator is not published.

    Parameters
    ----------
    n : int
        Rows aimed at. The length is the sum of the rounded counts, within domain / 2 of `n`.
    domain : int
        Number of keys.
    skew : float
        Zipf exponent of the counts.
    burst : float
        Shape of the gap law, > 0. Smaller is burstier; a large value spaces a key evenly,
        more so than independent draws would.
    horizon : int
        Length of the stream in time units (chang2004: one day of 1440 minutes).
    seed : int
        Same seed, same bits.

    Returns
    -------
    dict of numpy.ndarray
        ``ts`` (0 … horizon-1) and ``key``, int64.

    Examples
    --------
    >>> np.bincount(gismo(110, domain=3, skew=1.0)["key"])
    array([60, 30, 20])
    """
    checked = _check_gismo(n, domain, skew, burst, horizon)
    return _gismo_process(_random(seed, "gismo"), *checked)


@_generator
def gismo_pair(
    n: int,
    *,
    domain: int = 100,
    skew: float = 0.75,
    burst: float = 1.0,
    horizon: int = 1440,
    shared: bool = False,
    seed: int = 0,
) -> tuple[Stream, Stream]:
    """Two GISMO-like streams, independent or with shared bursts.

    Parameters
    ----------
    n : int
        Rows aimed at for each side (see `gismo`).
    domain, skew, burst, horizon
        As in `gismo`.
    shared : bool
        False: two independent processes with the same counts. True: one process of 2n rows,
        in which a coin sends one of each two consecutive rows to the left and the other to
        the right, so that a key bursts on both sides at once.
    seed : int
        Same seed, same bits.

    Returns
    -------
    (dict, dict)
        Left and right, each with ``ts`` and ``key``.

    Examples
    --------
    >>> left, right = gismo_pair(110, domain=3, skew=1.0, shared=True)
    >>> np.bincount(left["key"]) + np.bincount(right["key"])
    array([120,  60,  40])
    """
    n, *law = _check_gismo(n, domain, skew, burst, horizon)
    if not _flag("shared", shared):
        left = _gismo_process(_random(seed, "gismo_pair left"), n, *law)
        return left, _gismo_process(_random(seed, "gismo_pair right"), n, *law)
    both = _gismo_process(_random(seed, "gismo_pair shared"), 2 * n, *law)
    goes_left = _deal(both["key"].size, _random(seed, "gismo_pair deal"))
    left = {name: column[goes_left] for name, column in both.items()}
    return left, {name: column[~goes_left] for name, column in both.items()}


# --- the copy model -----------------------------------------------------------------------------


@njit(cache=True)
def _copy(fresh_keys, lags):
    """x_i = x_{i-lag}; a fresh draw where the lag is 0 or reaches before the start."""
    keys = np.empty(fresh_keys.size, np.int64)
    for i in range(keys.size):
        if 0 < lags[i] <= i:
            keys[i] = keys[i - lags[i]]
        else:
            keys[i] = fresh_keys[i]
    return keys


def _check_copy(n, domain, skew, lags, fresh, weights) -> tuple[int, int, float, np.ndarray]:
    """Checked values, the last one P(lag = 0, 1, …, h) with 0 meaning fresh."""
    n, lags = _integer("n", n, 0), _integer("lags", lags, 1)
    domain, skew = _integer("domain", domain, 1), _real("skew", skew)
    fresh = _real("fresh", fresh, 0.0, 1.0)
    if weights is None:
        shares = np.full(lags, 1 / lags)
    else:
        shares = np.asarray(weights)
        if shares.dtype.kind not in "iuf" or shares.shape != (lags,):
            raise ValueError(f"weights must be {lags} numbers, one per lag, got {weights!r}")
        if not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
            raise ValueError(f"weights must be >= 0 and not all 0, got {weights!r}")
        shares = shares / shares.sum()
    return n, domain, skew, np.r_[fresh, (1 - fresh) * shares]


def _copy_process(
    rng: np.random.Generator, n: int, domain: int, skew: float, law: np.ndarray
) -> np.ndarray:
    fresh_keys = _zipf_keys(rng, n, domain, skew)
    cdf = np.cumsum(law)
    # The last lag with weight takes the rounding error, or a lag of weight 0 might be drawn.
    cdf[np.flatnonzero(law)[-1] :] = 1.0
    size = 1 << (cdf.size - 1).bit_length()
    guide = np.searchsorted(cdf, np.arange(size) / size, side="right")
    return _copy(fresh_keys, _invert_cdf(cdf, guide, rng.random(n)))


@_generator
def copy_model(
    n: int,
    *,
    domain: int = 100,
    skew: float = 0.75,
    lags: int = 50,
    fresh: float = 0.2,
    weights: Sequence[float] | None = None,
    rate: float = 1.0,
    seed: int = 0,
) -> Stream:
    """One stream that mostly repeats its recent keys (the locality model of li2006).

    x_n = x_{n-i} with probability a_i for i = 1 … h, else a fresh Zipf draw, with probability
    b; b + Σ a_i = 1. A lag that reaches before the first row is a fresh draw too. Whatever
    (a, b), each row alone is Zipf distributed.

    Parameters
    ----------
    n : int
        Rows.
    domain, skew
        Of the fresh draws, as in `zipf`.
    lags : int
        h, the longest lag.
    fresh : float
        b, in [0, 1]. 1 gives independent draws.
    weights : sequence of float, optional
        Relative weights of the lags 1 … h, rescaled to sum to 1 - `fresh`; equal by default.
    rate : float
        Rows per time unit, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    dict of numpy.ndarray
        ``ts`` and ``key``, int64.

    Examples
    --------
    With lag 2 alone and no fresh draws the first two keys alternate for ever:

    >>> keys = copy_model(6, lags=2, weights=[0, 1], fresh=0.0)["key"]
    >>> bool((keys[2:] == keys[:-2]).all())
    True
    """
    checked = _check_copy(n, domain, skew, lags, fresh, weights)
    ts = _constant_times(checked[0], _rate(rate, checked[0]))
    return {"ts": ts, "key": _copy_process(_random(seed, "copy_model"), *checked)}


@_generator
def copy_pair(
    n: int,
    *,
    domain: int = 100,
    skew: float = 0.75,
    lags: int = 50,
    fresh: float = 0.2,
    weights: Sequence[float] | None = None,
    shared: bool = False,
    rate: float = 1.0,
    seed: int = 0,
) -> tuple[Stream, Stream]:
    """Two copy-model streams, independent or dealt from one process.

    Parameters
    ----------
    n : int
        Rows of each side.
    domain, skew, lags, fresh, weights
        As in `copy_model`.
    shared : bool
        False: two independent processes. True: one process of 2n rows (lags count its rows),
        in which a coin sends one of each two consecutive rows to the left and the other to
        the right.
    rate : float
        Rows per time unit of each side, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    (dict, dict)
        Left and right, each with ``ts`` and ``key``.

    Examples
    --------
    When every row copies the one before it, both sides hold one and the same key:

    >>> left, right = copy_pair(5, lags=1, fresh=0.0, shared=True)
    >>> bool((left["key"] == right["key"]).all())
    True
    """
    n, *law = _check_copy(n, domain, skew, lags, fresh, weights)
    ts = _constant_times(n, _rate(rate, n))
    if _flag("shared", shared):
        keys = _copy_process(_random(seed, "copy_pair shared"), 2 * n, *law)
        goes_left = _deal(2 * n, _random(seed, "copy_pair deal"))
        left, right = keys[goes_left], keys[~goes_left]
    else:
        left = _copy_process(_random(seed, "copy_pair left"), n, *law)
        right = _copy_process(_random(seed, "copy_pair right"), n, *law)
    return {"ts": ts, "key": left}, {"ts": ts.copy(), "key": right}


# --- drift and random walks ---------------------------------------------------------------------


@_generator
def drift_pair(
    n: int | tuple[int, int],
    *,
    domain: int = 100,
    skew: float | tuple[float, float] = 0.75,
    period: int = 500,
    rate: float | tuple[float, float] = 1.0,
    seed: int = 0,
) -> tuple[Stream, Stream]:
    """Two streams of Zipf keys whose popularity changes jointly, at once, every period.

    Keys are independent draws, but which key has which rank is permuted anew every `period`
    time units; at any time the permutation is the same on both sides.

    Parameters
    ----------
    n : int or pair of int
        Rows of each stream.
    domain : int
        Number of keys.
    skew : float or pair of float
        Zipf exponents of left and right.
    period : int
        Time units between re-permutations; times t and t' share one iff
        t // period == t' // period.
    rate : float or pair of float
        Rows per time unit of left and right, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    (dict, dict)
        Left and right, each with ``ts`` and ``key``.

    Examples
    --------
    With a skew this steep only rank 1 is ever drawn, so each period has one key:

    >>> left, right = drift_pair(6, domain=1000, skew=60.0, period=3)
    >>> len(set(left["key"][:3])), len(set(left["key"]))
    (1, 2)
    >>> bool((left["key"] == right["key"]).all())
    True
    """
    sizes = _both(_integer, "n", n, 0)
    domain = _integer("domain", domain, 1)
    skews = _both(_real, "skew", skew)
    rates = _rates(rate, sizes)
    period = _integer("period", period, 1)
    sides = [
        {
            "ts": _constant_times(sizes[i], rates[i]),
            "key": _zipf_keys(_random(seed, f"drift_pair {side} keys"), sizes[i], domain, skews[i]),
        }
        for i, side in enumerate(("left", "right"))
    ]
    # Only epochs in which a row arrives get a permutation, so a slow rate costs nothing.
    epochs = [side["ts"] // period for side in sides]
    occupied = np.unique(np.concatenate([e[np.r_[True, e[1:] > e[:-1]][: e.size]] for e in epochs]))
    epochs = [np.searchsorted(occupied, epoch) for epoch in epochs]
    rng = _random(seed, "drift_pair permutations")
    step = max(1, (1 << 22) // domain)  # at most 4 M table entries (32 MB) at a time
    for start in range(0, occupied.size, step):
        stop = min(start + step, occupied.size)
        table = rng.permuted(np.tile(np.arange(domain), (stop - start, 1)), axis=1)
        for side, epoch in zip(sides, epochs, strict=True):
            rows = slice(*np.searchsorted(epoch, (start, stop)))
            side["key"][rows] = table[epoch[rows] - start, side["key"][rows]]
    return sides[0], sides[1]


@njit(cache=True)
def _bounded_walk(shocks, start, centre, persistence, top):
    path = np.empty(shocks.size, np.float64)
    at = start
    for i in range(shocks.size):
        path[i] = at
        at = centre + persistence * (at - centre) + shocks[i]
        at = min(max(at, 0.0), top)
    return path


def _walk(
    rng: np.random.Generator, n: int, domain: int, step: float, persistence: float
) -> np.ndarray:
    top = float(domain - 1)
    # Start in the long-run law, so that the stream has no warm-up: normal around the centre,
    # or uniform for a pure random walk, which has no other long-run law between two walls.
    if persistence < 1:
        start = rng.normal(top / 2, step / math.sqrt(1 - persistence**2))
    else:
        start = rng.uniform(0, top)
    shocks = rng.normal(0, step, n)
    return _bounded_walk(shocks, min(max(start, 0.0), top), top / 2, persistence, top)


def _check_walk(n, domain, step, persistence) -> tuple[int, int, float, float]:
    return (
        _integer("n", n, 0),
        _integer("domain", domain, 1),
        _real("step", step),
        _real("persistence", persistence, 0.0, 1.0),
    )


@_generator
def random_walk(
    n: int,
    *,
    domain: int = 100,
    step: float = 1.0,
    persistence: float = 0.99,
    rate: float = 1.0,
    seed: int = 0,
) -> Stream:
    """One stream whose key wanders like a temperature (AR(1), rounded).

    y' = centre + persistence * (y - centre) + step * N(0, 1), held inside 0 … domain-1; the
    key is y rounded.

    Parameters
    ----------
    n : int
        Rows.
    domain : int
        Number of keys; the centre is (domain - 1) / 2.
    step : float
        Standard deviation of one step, in keys.
    persistence : float
        In [0, 1]; 1 is a pure random walk, 0 independent draws around the centre.
    rate : float
        Rows per time unit, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    dict of numpy.ndarray
        ``ts`` and ``key``, int64.

    Examples
    --------
    >>> keys = random_walk(1000, step=0.5)["key"]
    >>> bool(abs(np.diff(keys)).max() <= 3)
    True
    """
    checked = _check_walk(n, domain, step, persistence)
    ts = _constant_times(checked[0], _rate(rate, checked[0]))
    path = _walk(_random(seed, "random_walk"), *checked)
    return {"ts": ts, "key": np.rint(path).astype(np.int64)}


@_generator
def random_walk_pair(
    n: int,
    *,
    domain: int = 100,
    step: float = 1.0,
    persistence: float = 0.99,
    noise: float = 1.0,
    shared: bool = True,
    rate: float = 1.0,
    seed: int = 0,
) -> tuple[Stream, Stream]:
    """Two noisy observations of one random walk, or of two.

    Parameters
    ----------
    n : int
        Rows of each side; row i of both sides arrives at the same time.
    domain, step, persistence
        Of the walk, as in `random_walk`.
    noise : float
        Standard deviation of what each observation adds to the walk, in keys.
    shared : bool
        True: both sides observe the same walk. False: each has its own.
    rate : float
        Rows per time unit of each side, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    (dict, dict)
        Left and right, each with ``ts`` and ``key``.

    Examples
    --------
    >>> left, right = random_walk_pair(1000, noise=0.0)
    >>> bool((left["key"] == right["key"]).all())
    True
    """
    n, *law = _check_walk(n, domain, step, persistence)
    noise, shared = _real("noise", noise), _flag("shared", shared)
    ts = _constant_times(n, _rate(rate, n))
    streams = []
    for side in ("left", "right"):
        walker = "shared" if shared else side
        path = _walk(_random(seed, f"random_walk_pair {walker}"), n, *law)
        path += _random(seed, f"random_walk_pair {side} noise").normal(0, noise, n)
        keys = np.rint(np.clip(path, 0, law[0] - 1)).astype(np.int64)
        streams.append({"ts": ts.copy(), "key": keys})
    return streams[0], streams[1]


# --- a stream against a master table ------------------------------------------------------------


@_generator
def interval_locality(
    n: int,
    *,
    master_rows: int,
    repeats: int = 1,
    intervals: int = 25,
    skew: float = 1.0,
    rate: float = 1.0,
    seed: int = 0,
) -> Stream:
    """One stream that sweeps over a master table, interval by interval (naeem2016).

    The master table holds the keys 0 … K-1 with K = master_rows // repeats, each `repeats`
    times. The stream is cut into equal intervals; rows of interval I (from 0, the paper's
    1 … 25 overruns the table) are Zipf over the keys I*K/intervals … (I+1)*K/intervals - 1,
    the first key of the block being the most frequent.

    Parameters
    ----------
    n : int
        Rows.
    master_rows : int
        Rows of the master table.
    repeats : int
        How often each key stands in the master table. More repeats, fewer keys, more locality.
    intervals : int
        Number of intervals, at most K.
    skew : float
        Zipf exponent inside an interval.
    rate : float
        Rows per time unit, evenly spaced.
    seed : int
        Same seed, same bits.

    Returns
    -------
    dict of numpy.ndarray
        ``ts`` and ``key``, int64.

    Examples
    --------
    Four rows, two intervals, eight keys:

    >>> interval_locality(4, master_rows=8, intervals=2)["key"] // 4
    array([0, 0, 1, 1])
    """
    n, skew = _integer("n", n, 0), _real("skew", skew)
    n_keys = _integer("master_rows", master_rows, 1) // _integer("repeats", repeats, 1)
    intervals = _integer("intervals", intervals, 1)
    if n_keys < intervals:
        raise ValueError(
            f"intervals must be at most master_rows // repeats = {n_keys} keys, got {intervals}"
        )
    rate = _rate(rate, n)
    uniform = _random(seed, "interval_locality").random(n)
    keys = np.empty(n, np.int64)
    tables = {}  # blocks differ by at most one key, so two tables serve all of them
    for i in range(intervals):
        rows = slice(i * n // intervals, (i + 1) * n // intervals)
        first, last = i * n_keys // intervals, (i + 1) * n_keys // intervals
        if last - first not in tables:
            tables[last - first] = _zipf_table(last - first, skew)
        keys[rows] = first + _invert_cdf(*tables[last - first], uniform[rows])
    return {"ts": _constant_times(n, rate), "key": keys}


# --- importance ---------------------------------------------------------------------------------


def _hash_unit(keys: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for each key, the same wherever the key occurs (splitmix64)."""
    x = keys.astype(np.uint64) + _random(seed, "importance keys").integers(
        0, 2**64, 1, dtype=np.uint64
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def importance(
    n_or_keys: int | np.ndarray,
    *,
    rare: float = 0.05,
    usual: tuple[float, float] = (1, 10),
    high: tuple[float, float] = (50, 100),
    by_key: bool = False,
    key_seed: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Importance of each row: uniform in `usual`, or for a rare share uniform in `high`.

    This is a column to add to a stream, not a stream, so it is not among `GENERATORS`.

    Parameters
    ----------
    n_or_keys : int or integer numpy.ndarray
        Number of rows, or their keys.
    rare : float
        Probability of high importance, in [0, 1].
    usual, high : pair of float
        Ranges (low, high), 0 <= low <= high. ojewole2006 uses high = (50, 100) or (500, 1000).
    by_key : bool
        False: each row is high with probability `rare`, whatever its key. True: each *key* is
        high with probability `rare`, and then all of its rows are; the keys are needed.
    key_seed : int
        Decides which keys are high. It is apart from `seed` so that left and right can agree
        on the keys and still have different values.
    seed : int
        Decides everything else. Same seeds, same bits.

    Returns
    -------
    numpy.ndarray
        float64, one value a row.

    Examples
    --------
    >>> left, right = zipf_pair(1000)
    >>> left["importance"] = importance(left["key"], by_key=True, seed=1)
    >>> right["importance"] = importance(right["key"], by_key=True, seed=2)
    >>> high = set(left["key"][left["importance"] >= 50])
    >>> high == set(right["key"][right["importance"] >= 50])
    True
    """
    rare = _real("rare", rare, 0.0, 1.0)
    ranges = []
    for name, bounds in (("usual", usual), ("high", high)):
        if not isinstance(bounds, tuple | list | np.ndarray) or len(bounds) != 2:
            raise ValueError(f"{name} must be a (low, high) pair of numbers, got {bounds!r}")
        low = _real(name, bounds[0])
        ranges.append((low, _real(name, bounds[1], low)))
    if isinstance(n_or_keys, np.ndarray):
        if n_or_keys.dtype.kind not in "iu" or n_or_keys.ndim != 1:
            raise ValueError(
                f"keys must be a 1-d integer array, got {n_or_keys.ndim}-d {n_or_keys.dtype}"
            )
        n = n_or_keys.size
    else:
        n = _integer("n", n_or_keys, 0)
        if _flag("by_key", by_key):
            raise ValueError(f"by_key=True needs the array of keys, got n={n}")
    if _flag("by_key", by_key):
        is_high = _hash_unit(n_or_keys, key_seed) < rare
    else:
        is_high = _random(seed, "importance choice").random(n) < rare
    values = _random(seed, "importance values").random(n)
    (usual_low, usual_high), (high_low, high_high) = ranges
    return np.where(
        is_high,
        high_low + values * (high_high - high_low),
        usual_low + values * (usual_high - usual_low),
    )


def with_importance(
    made: Stream | tuple[Stream, ...], *, name: str = "imp", seed: int = 0, **options
) -> Stream | tuple[Stream, ...]:
    """A stream, or several, with a column of importances added.

    Parameters
    ----------
    made : dict, or tuple of dict
        What a generator returned; it is not changed.
    name : str
        The new column.
    seed : int
        Streams of a tuple draw different values from it. Same seed, same bits.
    **options
        As in `importance`: rare, usual, high, by_key, key_seed.

    Returns
    -------
    dict, or tuple of dict
        The same columns and the new one.

    Examples
    --------
    >>> left, right = with_importance(zipf_pair(1000), high=(500, 1000))
    >>> list(left), bool((left["imp"] == right["imp"]).any())
    (['ts', 'key', 'imp'], False)
    """
    seed = _integer("seed", seed, 0)
    parts = made if isinstance(made, tuple) else (made,)
    weighed = tuple(
        part | {name: importance(part["key"], seed=len(parts) * seed + i, **options)}
        for i, part in enumerate(parts)
    )
    return weighed if isinstance(made, tuple) else weighed[0]


# --- by name ------------------------------------------------------------------------------------


def summary(kind: str) -> str:
    """The one-line summary of a generator, for a list of them.

    Parameters
    ----------
    kind : str
        A name from `GENERATORS`.

    Examples
    --------
    >>> summary("zipf")
    'One stream of independent Zipf keys.'
    """
    return inspect.getdoc(_named(kind)).splitlines()[0]


def options(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a generator: name → ``inspect.Parameter`` (default, annotation).

    Parameters
    ----------
    kind : str
        A name from `GENERATORS`.

    Examples
    --------
    >>> {name: option.default for name, option in options("drift_pair").items()}
    {'domain': 100, 'skew': 0.75, 'period': 500, 'rate': 1.0, 'seed': 0}
    """
    parameters = inspect.signature(_named(kind)).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def generate(kind: str, n: int, **chosen) -> Stream | tuple[Stream, Stream]:
    """Run the generator called `kind`, after checking the names of its options.

    Parameters
    ----------
    kind : str
        A name from `GENERATORS`.
    n : int
        Rows (of each side).
    **chosen
        Options of that generator, see `options`. Values are checked by the generator.

    Returns
    -------
    dict or (dict, dict)
        One stream or a pair, whichever the generator makes.

    Raises
    ------
    ValueError
        One line that names the culprit and what is allowed.

    Examples
    --------
    >>> generate("zipf", 3, rate=0.5)["ts"]
    array([0, 2, 4])
    """
    allowed = options(kind)
    for name in chosen:
        if name not in allowed:
            raise ValueError(
                f"generator {kind} has no option {name!r}, choose from {', '.join(allowed)}"
            )
    for name, option in allowed.items():
        if option.default is option.empty and name not in chosen:
            raise ValueError(f"generator {kind} needs the option {name!r}")
    return GENERATORS[kind](n, **chosen)


def _named(kind: str) -> Callable:
    if kind not in GENERATORS:
        raise ValueError(f"unknown generator {kind!r}, choose from {', '.join(GENERATORS)}")
    return GENERATORS[kind]
