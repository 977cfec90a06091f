"""How good an approximate join was: recall, importance, distortion of the key histogram.

Running example: the exact join has 6 results for key 1 and 4 for key 2, of importance 50 in
total; under a memory limit 3 + 1 of them were found, of importance 30.

>>> exact, approx = [1] * 6 + [2] * 4, [1, 1, 1, 2]
>>> recall(len(approx), len(exact)), approximation_error(30, 50)
(0.4, 0.4)
>>> round(distortion_sse(approx, exact), 6)
0.045
"""

import math

import numpy as np

Histogram = tuple[np.ndarray, np.ndarray]


def recall(n_out: float, n_exact: float) -> float:
    """Share of the exact join's results that were produced; 1 when there were none.

    Parameters
    ----------
    n_out, n_exact : float
        Results produced, and results of the exact join.

    Returns
    -------
    float
        n_out / n_exact. It may exceed 1 only when `n_exact` is itself an estimate.

    Examples
    --------
    >>> recall(4, 10), recall(0, 0)
    (0.4, 1.0)
    """
    return _share("n_out", n_out, "n_exact", n_exact)


def relative_importance(importance_out: float, importance_exact: float) -> float:
    """Share of the exact join's total importance that was produced; 1 when it was 0.

    Parameters
    ----------
    importance_out, importance_exact : float
        Sums over the results produced and over those of the exact join.

    Returns
    -------
    float
        importance_out / importance_exact.

    Examples
    --------
    >>> relative_importance(30, 50)
    0.6
    """
    return _share("importance_out", importance_out, "importance_exact", importance_exact)


def approximation_error(importance_out: float, importance_exact: float) -> float:
    """Share of the exact join's total importance that was lost (ojewole2006).

    Parameters
    ----------
    importance_out, importance_exact : float
        Sums over the results produced and over those of the exact join.

    Returns
    -------
    float
        1 - `relative_importance`.

    Examples
    --------
    >>> approximation_error(30, 50)
    0.4
    """
    return 1.0 - relative_importance(importance_out, importance_exact)


def _share(name: str, part: float, whole_name: str, whole: float) -> float:
    for each, value in ((name, part), (whole_name, whole)):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{each} must be a finite number >= 0, got {value!r}")
    return float(part / whole) if whole else 1.0


def key_histogram(keys) -> Histogram:
    """How often each key occurs.

    Parameters
    ----------
    keys : array_like
        Join key of each result.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        The distinct keys in order, and their counts.

    Examples
    --------
    >>> key_histogram([2, 1, 1, 1])
    (array([1, 2]), array([3, 1]))
    """
    return np.unique(np.asarray(keys), return_counts=True)


def _aligned_shares(approx, exact) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys of either histogram, and the share of each in the one and in the other."""
    histograms = []
    for name, given in (("approx", approx), ("exact", exact)):
        keys, counts = map(np.asarray, given if _is_histogram(given) else key_histogram(given))
        if keys.ndim != 1 or keys.shape != counts.shape or np.unique(keys).size != keys.size:
            raise ValueError(
                f"{name} must pair distinct keys with as many counts,"
                f" got {keys.size} keys and {counts.size} counts"
            )
        if counts.size and not (np.isfinite(counts).all() and (counts >= 0).all()):
            raise ValueError(f"{name} must have finite counts >= 0, got {counts!r}")
        # An empty list arrives as float64; dropping empty parts keeps integer keys integers.
        histograms.append((keys[counts > 0], counts[counts > 0]))
    filled = [keys for keys, _ in histograms if keys.size]
    every_key = np.unique(np.concatenate(filled)) if filled else np.empty(0)
    shares = []
    for keys, counts in histograms:
        share = np.zeros(every_key.size)
        if keys.size:
            share[np.searchsorted(every_key, keys)] = counts / counts.sum()
        shares.append(share)
    return every_key, shares[0], shares[1]


def _is_histogram(given) -> bool:
    return isinstance(given, tuple) and len(given) == 2


def distortion_sse(approx, exact) -> float:
    """Sum of squared differences of the two normalised key histograms (chang2004 §5.4).

    Parameters
    ----------
    approx, exact : array_like, or tuple (keys, counts)
        Key of each result produced and of each exact result, or their histograms as
        `key_histogram` returns them. A 2-tuple is always read as a histogram.

    Returns
    -------
    float
        0 for equal shapes, at most 2. A side without results counts as all zeros.

    Examples
    --------
    (3/4 - 6/10)² + (1/4 - 4/10)²:

    >>> round(distortion_sse([1, 1, 1, 2], ([1, 2], [6, 4])), 6)
    0.045
    """
    _, p, q = _aligned_shares(approx, exact)
    return float(np.sum((p - q) ** 2))


def distortion_kl(approx, exact) -> float:
    """Kullback-Leibler divergence D(approx ‖ exact) of the key histograms, in nats.

    This direction is finite because approximate results are a subset of the exact ones; the
    other is infinite as soon as one key was lost altogether.

    Parameters
    ----------
    approx, exact : array_like, or tuple (keys, counts)
        As in `distortion_sse`.

    Returns
    -------
    float
        0 for equal shapes; nan when there are exact results but no approximate ones, since
        nothing has no shape.

    Raises
    ------
    ValueError
        When `approx` has a key that `exact` has not.

    Examples
    --------
    3/4 ln(0.75 / 0.6) + 1/4 ln(0.25 / 0.4):

    >>> round(distortion_kl([1, 1, 1, 2], ([1, 2], [6, 4])), 6)
    0.049857
    """
    keys, p, q = _aligned_shares(approx, exact)
    foreign = keys[(p > 0) & (q == 0)]
    if foreign.size:
        raise ValueError(
            f"approx must have no key that exact lacks, got {foreign.size}, first {foreign[0]}"
        )
    if keys.size and not p.any():
        return math.nan
    found = p > 0
    # Rounding may leave -1e-17 for equal shapes; the divergence is never negative.
    return max(0.0, float(np.sum(p[found] * np.log(p[found] / q[found]))))
