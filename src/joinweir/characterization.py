"""What streams are like: the object that `characterize` returns, and its verdict.

A `StreamProfile` has the measures of li2006 and of chang2004 §3: how uneven the keys are, how soon
they come again in the stream as it is and in a random order of the same rows, and the model that
says how much of it is repeating. For two streams a `Characterization` also has, for several
windows, the size of the exact join and its *lift*: how many times as large it is as if the keys
of each stream were shuffled among its rows. Lift is what the streams have in common in time, and
`verdict` says in plain words which policies all that favours.

Everything is exact, or `notes` says what it is. `joinweir.characterize` makes it from tables in
this process, `joinweir.spark.characterize` from DataFrames.

Example
-------
>>> import joinweir as jw
>>> left, right = jw.streams.zipf_pair(20_000, domain=100, skew=1.0, seed=1)
>>> found = jw.characterize(left, right, key="key", time="ts", within=[100, 1000])
>>> [round(window.lift, 1) for window in found.windows]
[1.0, 1.0]
>>> found.favoured
('prob', 'lba:horizon=50')
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import report
from .errors import JoinweirError
from .locality import LocalityModel, Popularity, ZipfFit, zipf_law

MEMORY_SHARE = 0.1  # of the window's rows, for which the verdict guesses
LBA = "lba:horizon=50"  # looks as far ahead as its model looks back
LBA_OF_LATE = "lba:statistics=window,horizon=50"  # … and forgets what was popular long ago
_FORMAT, _VERSION = "joinweir-characterization", 1


# --- what is known of one stream ----------------------------------------------------------------
@dataclass(frozen=True)
class Curve:
    """A distribution function at some points: the `share` of all that is at most `at`."""

    at: tuple[int, ...] = ()
    share: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entropy:
    """Nats per row; divide by ln 2 for bits. Falls from the first to the last.

    `conditional` is the mean entropy of the next key under the fitted model (li2006 definition 3),
    `log_loss` the mean of -ln of the probability that the model gave to the key that came (None
    if that was 0 for one of them, as it can be in a stream of a few rows).
    """

    uniform: float  # ln of the number of keys
    popularity: float  # of independent draws with the keys' frequencies: of a random order
    conditional: float | None
    log_loss: float | None
    log_loss_error: float  # standard error, 0 if all rows were looked at


@dataclass(frozen=True)
class StreamProfile:
    """What is known of one stream.

    Attributes
    ----------
    n_rows, n_null, n_out_of_order
        Rows with a key, which all else is about; rows without, set aside; rows whose time is
        before that of an earlier row (None: not known, a Spark frame has no order of its own).
    n_distinct
        Keys.
    key_columns, key_types, keys, counts
        The most frequent keys (a scalar each, or a tuple for a composite key) and their rows.
        Types are Arrow's; bytes are in hex, dates and times in ISO format, decimals as text.
    first, last, ticks_per_unit, timestamps, rate
        Time of the first and the last row in ticks (microseconds, of timestamps), and rows per
        unit of time (second, of timestamps); None without a time column.
    zipf, skew, top_tenth
        The fit of a Zipf law; how many times as likely two random rows have one key as if all
        keys were equally frequent; the share of rows that the most frequent tenth of keys has.
    ranks, rank_counts
        The popularity curve, thinned.
    iad, iad_permuted, mean_iad, mean_iad_permuted
        Inter-arrival distances in rows: distribution functions, thinned, and geometric means. In
        a random order they are the mean over all permutations, in closed form.
    stack, stack_permuted, n_stack
        Distinct other keys between occurrences, of the first `n_stack` rows and of a random order
        of those; `at` is distance + 1, the size of an LRU cache that hits.
    hs, b, b_permuted
        Share of fresh draws that models with the longest lags `hs` leave.
    model_a, model_b
        The locality model with the longest lag.
    entropy
        See `Entropy`.
    drift, drift_permuted
        Total variation distance between the keys of the first and of the second half of the
        rows; what a random order would give.
    notes
        What was sampled or cut.
    """

    name: str
    n_rows: int
    n_null: int
    n_out_of_order: int | None
    n_distinct: int
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...]
    keys: tuple[Any, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)
    first: int | None
    last: int | None
    ticks_per_unit: int | None
    timestamps: bool
    rate: float | None
    zipf: ZipfFit
    skew: float
    top_tenth: float
    ranks: tuple[int, ...] = field(repr=False)
    rank_counts: tuple[int, ...] = field(repr=False)
    iad: Curve = field(repr=False)
    iad_permuted: Curve = field(repr=False)
    mean_iad: float | None
    mean_iad_permuted: float | None
    stack: Curve = field(repr=False)
    stack_permuted: Curve = field(repr=False)
    n_stack: int
    hs: tuple[int, ...]
    b: tuple[float, ...]
    b_permuted: tuple[float, ...]
    model_a: tuple[float, ...] = field(repr=False)
    model_b: float
    entropy: Entropy
    drift: float
    drift_permuted: float
    notes: tuple[str, ...]

    @property
    def locality(self) -> float | None:
        """Geometric-mean distance between occurrences, over that of a random order.

        Below 1 keys come in bursts, above 1 they are spaced out. None if no key occurs twice.
        """
        if self.mean_iad is None:
            return None
        return self.mean_iad / self.mean_iad_permuted

    @property
    def excess_drift(self) -> float:
        """`drift` beyond that of a random order, from 0 (the halves are alike) to 1."""
        room = 1 - self.drift_permuted
        return max(0.0, (self.drift - self.drift_permuted) / room) if room > 1e-9 else 0.0

    def popularity(self) -> Popularity:
        """The frequent keys with their probabilities; ``rest`` is that of all others."""
        labels = np.empty(len(self.keys), object)
        labels[:] = list(self.keys)
        if len(self.key_types) == 1 and re.fullmatch(r"u?int(8|16|32)|int64", self.key_types[0]):
            labels = labels.astype(np.int64)
        counts = np.asarray(self.counts, np.int64)
        rest = max(0.0, 1 - int(counts.sum()) / self.n_rows)
        return Popularity(labels, counts, counts / self.n_rows, rest)

    def locality_model(self) -> LocalityModel:
        """The fitted model over the frequent keys."""
        return LocalityModel(self.model_a, self.model_b, self.popularity())

    def key_table(self) -> pa.Table:
        """The frequent keys in the columns and types they came in, and their ``count``."""
        listed = [(key,) if len(self.key_columns) == 1 else key for key in self.keys]
        columns = {
            name: _typed([key[i] for key in listed], kind)
            for i, (name, kind) in enumerate(zip(self.key_columns, self.key_types))
        }
        return pa.table(columns | {"count": pa.array(self.counts, pa.int64())})


@dataclass(frozen=True)
class WindowProfile:
    """The exact join of two streams over one window.

    Attributes
    ----------
    within, ticks
        The window as it was given, and in ticks: rows match if their times differ by less.
    n_pairs
        Results of the exact join.
    n_matched
        Rows of each stream that have at least one match.
    n_close
        Pairs of rows in the window, whatever their keys.
    n_expected
        Results to expect if the keys of each stream were shuffled among its rows:
        n_close · Σ_v c_left(v) c_right(v) / (n_left n_right), the mean over all shuffles.
    spread
        Standard deviation of one such shuffle, from some; None if none were made.
    n_recent, n_recent_expected
        The same as n_pairs and n_expected for a window a tenth as long.
    popular
        Of pairs that depend on the keys' frequencies alone: the share that a tenth of the rows,
        those whose keys are most frequent on the other side, would meet.
    rows
        Mean number of rows of each stream in the window: what the exact join holds.
    """

    within: Any
    ticks: int
    n_pairs: int
    n_matched: tuple[int, int]
    n_close: int
    n_expected: float
    spread: float | None
    n_recent: int
    n_recent_expected: float
    popular: float
    rows: tuple[float, float]

    @property
    def lift(self) -> float | None:
        """Results over results to expect if the streams had nothing but popularity in common."""
        return self.n_pairs / self.n_expected if self.n_expected else None

    @property
    def recent_lift(self) -> float | None:
        """The lift of a window a tenth as long."""
        return self.n_recent / self.n_recent_expected if self.n_recent_expected else None

    @property
    def kept_by_recency(self) -> float:
        """Share of the results that are left if only the newest tenth of the window is held."""
        return self.n_recent / self.n_pairs if self.n_pairs else 0.0

    @property
    def kept_by_popularity(self) -> float:
        """A guess at what is left if the tenth is held whose keys are popular on the other side.

        What the streams would share by popularity alone is kept as `popular` says; of the rest,
        which is lift, popularity knows nothing and keeps a tenth.
        """
        alone = 1 / max(1.0, self.lift or 1.0)
        return alone * self.popular + (1 - alone) * MEMORY_SHARE

    @property
    def surprise(self) -> float:
        """How many standard deviations of a shuffle the results are away from what it gives.

        Where no shuffles were made, that of as many independent pairs.
        """
        spread = max(self.spread or 0.0, math.sqrt(self.n_expected))
        return (self.n_pairs - self.n_expected) / spread if spread else 0.0


# --- keys as JSON -------------------------------------------------------------------------------
def _scalar(value: Any) -> Any:
    """A key as JSON has it; `_typed` undoes it."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def scalars(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[Any]:
    """Keys from their columns: plain scalars, or tuples of them for a composite key."""
    listed = []
    for values in columns:
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
            values = pc.cast(values, pa.string())  # Python's datetime has microseconds only
        listed.append([_scalar(value) for value in values.to_pylist()])
    return listed[0] if len(listed) == 1 else list(zip(*listed))


def _typed(values: list[Any], kind: str) -> pa.Array:
    target = _arrow_type(kind)
    if str(target).split("[")[0] in ("binary", "large_binary", "fixed_size_binary", "binary_view"):
        return pa.array([bytes.fromhex(value) for value in values], target)
    if pa.types.is_floating(target):
        return pa.array([float(value) for value in values], target)
    if pa.types.is_boolean(target) or pa.types.is_integer(target):
        return pa.array(values, target)
    zone = getattr(target, "tz", None)
    if zone:  # written with its offset
        return pc.cast(pc.cast(pa.array(values), pa.timestamp(target.unit, "UTC")), target)
    return pc.cast(pa.array(values, pa.string()), target)


def _arrow_type(kind: str) -> pa.DataType:
    zoned = re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=(.+)\]", kind)
    if zoned:
        return pa.timestamp(zoned[1], zoned[2])
    decimal = re.fullmatch(r"decimal(128|256)\((\d+), (-?\d+)\)", kind)
    if decimal:
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    fixed = re.fullmatch(r"fixed_size_binary\[(\d+)\]", kind)
    if fixed:
        return pa.binary(int(fixed[1]))
    try:
        return pa.type_for_alias(kind)
    except ValueError:
        raise JoinweirError(f"keys of type {kind!r} are unknown here") from None


# --- the whole ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Characterization:
    """What one or two streams are like.

    Attributes
    ----------
    profiles : tuple of StreamProfile
        One a stream.
    windows : tuple of WindowProfile
        Of two streams, by rising window.
    settings : dict
        What it was made with: h, top, seed, permutations, engine.
    """

    profiles: tuple[StreamProfile, ...]
    windows: tuple[WindowProfile, ...]
    settings: Mapping[str, Any]

    @property
    def findings(self) -> dict[str, Any]:
        """What the verdict rests on: one yes or no a question."""
        return _findings(self)

    @property
    def favoured(self) -> tuple[str, ...]:
        """Policies that the findings favour, the likeliest first."""
        return _favoured(self.findings)

    def verdict(self) -> list[str]:
        """Plain sentences: skew, locality, what the streams share, which policies that favours."""
        return list(_sentences(self))

    # --- as text
    def to_json(self) -> str:
        """Everything as JSON text; ``Characterization.from_json`` gives it back exactly."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "settings": dict(self.settings),
            "profiles": [_profile_to_dict(profile) for profile in self.profiles],
            "windows": [
                dataclasses.asdict(window) | {"lift": window.lift} for window in self.windows
            ],
            "verdict": self.verdict(),
            "favoured": list(self.favoured),
        }
        return json.dumps(_without_nan(content), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Characterization:
        """What `to_json` wrote."""
        try:
            content = json.loads(text)
        except (TypeError, ValueError) as error:
            raise JoinweirError(f"not a characterization in JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise JoinweirError(f"not a characterization in JSON: no format {_FORMAT!r}")
        if content.get("version") != _VERSION:
            raise JoinweirError(
                f"characterization of version {content.get('version')!r}, this reads {_VERSION}"
            )
        try:
            windows = [
                _made(WindowProfile, {k: v for k, v in window.items() if k != "lift"})
                for window in content["windows"]
            ]
            profiles = [_profile_from_dict(profile) for profile in content["profiles"]]
            return cls(tuple(profiles), tuple(windows), content["settings"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise JoinweirError(f"damaged characterization: {error!r}") from None

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Characterization:
        """Read what `save` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise JoinweirError(f"{path}: not a characterization in JSON") from None
        try:
            return cls.from_json(text)
        except JoinweirError as error:
            raise JoinweirError(f"{path}: {error}") from None

    # --- to look at
    def __repr__(self) -> str:
        told = ", ".join(
            f"{p.name}: {p.n_rows:,} rows of {p.n_distinct:,} keys, Zipf {_figure(p.zipf.mle)}, "
            f"locality {_figure(p.locality)}, b {p.model_b:.2f}"
            for p in self.profiles
        )
        lifts = ", ".join(f"{_figure(w.lift)} within {w.within}" for w in self.windows)
        return f"<{told}{f'; lift {lifts}' if lifts else ''}; favours {', '.join(self.favoured)}>"

    def measures(self) -> tuple[list[str], list[list[str]]]:
        """The measures as a table of texts: its head, and a line a measure."""
        return ["measure", *(p.name for p in self.profiles)], _measure_lines(self.profiles)

    def window_table(self) -> tuple[list[str], list[list[str]]]:
        """The windows as a table of texts: its head, and a line a window."""
        head = ["window", "pairs", "if shuffled", "lift", "rows in the window", "rows matched"]
        return head, [_window_line(window, self.profiles) for window in self.windows]

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(' '.join(self.verdict()))}</p>", report.table(*self.measures())]
        if self.windows:
            parts.append(report.table(*self.window_table()))
        return "\n".join(parts)

    def panels(self) -> list[report.Panel]:
        """The pictures of the papers, for `plot` and the page."""
        return _panels(self)

    def plot(self) -> Any:
        """All pictures in one plotly figure."""
        return report.figure(self.panels())

    def to_html(self) -> str:
        """A page with the verdict, the measures and the pictures; it needs no network."""
        report.require_plotly()
        streams = " and ".join(p.name for p in self.profiles)
        parts = [
            *(report.paragraph(sentence) for sentence in self.verdict()),
            report.heading("Measures"),
            report.table(*self.measures()),
        ]
        if self.windows:
            parts += [report.heading("The exact join"), report.table(*self.window_table())]
        for number, panel in enumerate(self.panels()):
            parts += [
                report.heading(panel.title),
                report.paragraph(panel.text),
                report.panel_chart(panel, first=number == 0),
            ]
        notes = [f"{p.name}: {note}" for p in self.profiles for note in p.notes]
        if notes:
            parts += [report.heading("Notes"), *map(report.paragraph, notes)]
        return report.page(
            f"What {streams} {'is' if len(self.profiles) == 1 else 'are'} like", parts
        )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _profile_to_dict(profile: StreamProfile) -> dict[str, Any]:
    content = dataclasses.asdict(profile)
    content["model"] = {"a": content.pop("model_a"), "b": content.pop("model_b")}
    return content | {"locality": profile.locality}


def _profile_from_dict(content: Mapping[str, Any]) -> StreamProfile:
    content = {name: value for name, value in content.items() if name != "locality"}
    model = content.pop("model")
    content |= {"model_a": model["a"], "model_b": model["b"]}
    zipf = {n: math.nan if value is None else value for n, value in content["zipf"].items()}
    curves = ("iad", "iad_permuted", "stack", "stack_permuted")
    content |= {name: _made(Curve, content[name]) for name in curves}
    content |= {"zipf": ZipfFit(**zipf), "entropy": Entropy(**content["entropy"])}
    return _made(StreamProfile, content)


def _made(kind: type, content: Mapping[str, Any]) -> Any:
    """A dataclass from its fields in JSON, where tuples have become lists."""
    return kind(**{name: _tuples(value) for name, value in content.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- the verdict --------------------------------------------------------------------------------
# Where a measure becomes a word. Set between what the streams of docs/choosing.md have on either
# side, where the best policy is known by measurement; tests/test_characterization.py holds them
# against it.
SKEWED = 1.5  # `skew`; even keys have 1.0, Zipf 0.75 over 500 keys 5
REPEATS = 0.05  # b below that of a random order; the estimate's own noise is up to 0.012
SPACED_OUT = 1.1  # `locality`; a timetable has 1.1 to 1.35
LIFTED = 1.2  # lift; real streams with nothing but popularity and hours of day in common reach 1.19
RECENTLY_LIFTED = 1.5  # lift of a tenth of the window; the same streams reach 1.29
SURPRISED = 4.0  # standard deviations of a shuffle
DRIFTED = 0.4  # `excess_drift`; above it `prob:statistics=window` is ahead of `prob` (0.5: by 20 %)
CLEARLY_MORE = 2.0  # popularity over recency; `prob` wins from 2.9 on, `gdj` or `lru` up to 1.1
SOMEWHAT_MORE = 1.25  # the same, of streams that share nothing; even keys reach 1.17 by chance


def _findings(found: Characterization) -> dict[str, Any]:
    profiles, window = found.profiles, found.windows[-1] if found.windows else None
    told: dict[str, Any] = {
        "skew": [p.skew >= SKEWED for p in profiles],
        "locality": [p.b_permuted[-1] - p.model_b >= REPEATS for p in profiles],
        "spaced_out": [p.locality is not None and p.locality >= SPACED_OUT for p in profiles],
        "drift": [p.excess_drift >= DRIFTED for p in profiles],
        "joins": None,
        "shared": None,
        "popularity_pays": any(p.skew >= SKEWED for p in profiles),
    }
    if window is not None:
        told["joins"] = window.n_pairs > 0
        lifted = (window.lift or 0) >= LIFTED or (window.recent_lift or 0) >= RECENTLY_LIFTED
        told["shared"] = lifted and window.surprise >= SURPRISED
        much = CLEARLY_MORE if told["shared"] else SOMEWHAT_MORE
        most = max(window.kept_by_recency, MEMORY_SHARE)
        told["popularity_pays"] = window.kept_by_popularity >= much * most
    return told


def _favoured(told: Mapping[str, Any]) -> tuple[str, ...]:
    if told["joins"] is False:
        return ()
    if told["popularity_pays"]:
        by_count = (LBA, "prob") if any(told["locality"]) else ("prob", LBA)
        return ("prob:statistics=window", *by_count) if any(told["drift"]) else by_count
    if told["shared"]:
        if any(told["drift"]) and any(told["skew"]):
            return ("prob:statistics=window", LBA_OF_LATE)
        return ("lru", LBA, "gdj")
    if any(told["locality"]):
        return (LBA,)
    return ("fifo",)


def _sentences(found: Characterization) -> Iterator[str]:
    told, window = found.findings, found.windows[-1] if found.windows else None
    for number, p in enumerate(found.profiles):
        yield _about_popularity(p, told["skew"][number])
        yield _about_locality(p, told["locality"][number], told["spaced_out"][number])
        if told["drift"][number]:
            yield (
                f"{p.name}: popularity moves: the first and the second half have "
                f"{1 - p.drift:.0%} of their rows in common by key, a random order "
                f"{1 - p.drift_permuted:.0%}."
            )
        if p.n_null:
            yield f"{p.name}: {p.n_null:,} rows have a null key; they never match."
    if window is None:
        yield f"A policy looks at two streams; for one alone: {_advice(told)}."
        return
    if not told["joins"]:
        yield (
            f"Within {window.within} not one pair of rows matches: check the key columns, or take "
            "a longer window."
        )
        return
    lift = "" if window.lift is None else f" ({window.lift:.2f} times as many as by chance)"
    if told["shared"]:
        yield (
            f"The streams share it: rows of one key come close together on both, with "
            f"{window.n_pairs:,} pairs within {window.within}{lift}, and "
            f"{window.recent_lift:.2f} times within a tenth of that."
        )
    else:
        yield (
            f"Beyond popularity the streams have little in common: {window.n_pairs:,} pairs within "
            f"{window.within}{lift}."
        )
    yield (
        f"With memory for a tenth of the window, keeping the newest rows returns "
        f"{window.kept_by_recency:.0%} of the pairs, and keeping popular keys about "
        f"{window.kept_by_popularity:.0%}. So, for this window: {_advice(told)}."
    )


def _about_popularity(p: StreamProfile, skewed: bool) -> str:
    if p.n_distinct == 1:
        return f"{p.name}: all {p.n_rows:,} rows have one key; there is nothing to tell apart."
    if p.n_distinct == p.n_rows:
        return f"{p.name}: each of {p.n_rows:,} rows has a key of its own; none comes again."
    share = f"the most frequent tenth of {p.n_distinct:,} keys has {p.top_tenth:.0%} of the rows"
    if skewed:
        return f"{p.name}: some keys are far more frequent than others; {share}."
    return f"{p.name}: keys are about equally frequent; {share}."


def _about_locality(p: StreamProfile, repeats: bool, spaced_out: bool) -> str:
    if p.locality is None or p.n_distinct == 1:
        return f"{p.name}: no short-term locality to speak of."
    sooner = f"occurrences are {p.locality:.2f} times as far apart as in a random order"
    if repeats:
        return (
            f"{p.name}: short-term locality: {1 - p.model_b:.0%} of the rows repeat one of the "
            f"{len(p.model_a)} before them beyond chance, and {sooner}."
        )
    if spaced_out:
        return f"{p.name}: keys are spaced out, as by a timetable: {sooner}."
    return f"{p.name}: little or no short-term locality within {len(p.model_a)} rows; {sooner}."


_WHY = {
    "prob": "counts decide, which is what prob keeps",
    LBA: "lba also uses how soon a stream repeats its own keys",
    "prob:statistics=window": "counts of the recent window follow moving popularity",
    "lru": "a recent row or match says more than any count, which is what these go by",
    "fifo": "no policy has anything to go by, and fifo is the cheapest",
}


def _advice(told: Mapping[str, Any]) -> str:
    favoured = _favoured(told)
    return f"{' or '.join(favoured)} ({_WHY[favoured[0]]})"


# --- tables and pictures ------------------------------------------------------------------------
def _figure(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)


def _measure_lines(profiles: Sequence[StreamProfile]) -> list[list[str]]:
    def bits(value: float | None) -> float | None:
        return None if value is None else value / math.log(2)

    def out_of_order(p: StreamProfile) -> str:
        return "–" if p.n_out_of_order is None else f"{p.n_out_of_order:,}"

    def rate(p: StreamProfile) -> str:
        return _figure(p.rate, ",.3g") + ("/s" if p.timestamps and p.rate else "")

    lines: list[tuple[str, Callable[[StreamProfile], str]]] = [
        ("rows", lambda p: f"{p.n_rows:,}"),
        ("rows with a null key", lambda p: f"{p.n_null:,}"),
        ("rows out of order", out_of_order),
        ("keys", lambda p: f"{p.n_distinct:,}"),
        ("rows per unit of time", rate),
        ("Zipf exponent, by likelihood", lambda p: _figure(p.zipf.mle)),
        ("Zipf exponent, by least squares", lambda p: _figure(p.zipf.exponent)),
        ("skew", lambda p: _figure(p.skew, ".1f")),
        ("rows of the top tenth of keys", lambda p: f"{p.top_tenth:.0%}"),
        ("mean distance between occurrences", lambda p: _figure(p.mean_iad, ",.1f")),
        ("… in a random order", lambda p: _figure(p.mean_iad_permuted, ",.1f")),
        ("locality", lambda p: _figure(p.locality, ".3f")),
        (f"fresh draws b, h = {len(profiles[0].model_a)}", lambda p: f"{p.model_b:.3f}"),
        ("… in a random order", lambda p: f"{p.b_permuted[-1]:.3f}"),
        ("entropy: all keys alike", lambda p: f"{bits(p.entropy.uniform):.2f} bits"),
        ("… by popularity", lambda p: f"{bits(p.entropy.popularity):.2f} bits"),
        ("… given the rows before", lambda p: f"{_figure(bits(p.entropy.log_loss))} bits"),
        ("halves differ by", lambda p: f"{p.drift:.2f}"),
        ("… in a random order", lambda p: f"{p.drift_permuted:.2f}"),
    ]
    return [[name, *(show(p) for p in profiles)] for name, show in lines]


def _window_line(window: WindowProfile, profiles: Sequence[StreamProfile]) -> list[str]:
    spread = "" if window.spread is None else f" ± {window.spread:,.0f}"
    matched = (n / p.n_rows for n, p in zip(window.n_matched, profiles))
    return [
        str(window.within),
        f"{window.n_pairs:,}",
        f"{window.n_expected:,.0f}{spread}",
        _figure(window.lift),
        " + ".join(f"{rows:,.0f}" for rows in window.rows),
        " and ".join(f"{share:.0%}" for share in matched),
    ]


def _panels(found: Characterization) -> list[report.Panel]:
    ranks, distances, stacks, repeats = {}, {}, {}, {}
    for p in found.profiles:
        of = f"{p.name}: " if len(found.profiles) > 1 else ""
        ranks[f"{of}rows of a key"] = list(zip(p.ranks, p.rank_counts))
        if not math.isnan(p.zipf.mle):
            law = zipf_law(p.zipf.mle, p.n_distinct, p.ranks) * p.n_rows
            ranks[f"{of}Zipf {p.zipf.mle:.2f}"] = list(zip(p.ranks, law.tolist()))
        pairs = ((distances, p.iad, p.iad_permuted), (stacks, p.stack, p.stack_permuted))
        for lines, own, permuted in pairs:
            lines[f"{of}as it is"] = list(zip(own.at, own.share))
            lines[f"{of}random order"] = list(zip(permuted.at, permuted.share))
        repeats[f"{of}as it is"] = list(zip(p.hs, p.b))
        repeats[f"{of}random order"] = list(zip(p.hs, p.b_permuted))
    panels = [
        report.Panel(
            "Popularity",
            "The most frequent key has rank 1. A straight line is a Zipf law, a flat one means "
            "keys of equal frequency.",
            ranks,
            x="rank of the key",
            y="rows",
            log_x=True,
            log_y=True,
        ),
        report.Panel(
            "Distance between occurrences",
            "How many rows until a key comes again. What lies between a stream and a random "
            "order of its rows is short-term locality.",
            distances,
            x="rows since the key's last row",
            y="share of repeats",
            log_x=True,
            percent=True,
        ),
        report.Panel(
            "Stack distance",
            "How many keys an LRU cache must hold to meet such a share of the repeats.",
            stacks,
            x="keys in the cache",
            y="share of repeats",
            log_x=True,
            percent=True,
        ),
        report.Panel(
            "Fresh draws",
            "The share b of rows that do not repeat one of the h rows before them, beyond chance. "
            "It falls with h as far as the stream remembers.",
            repeats,
            x="longest lag h",
            y="b",
            log_x=True,
            zero=True,
        ),
    ]
    if found.windows:
        unit = 1_000_000 if found.profiles[0].timestamps else found.profiles[0].ticks_per_unit or 1
        lifts = [(w.ticks / unit, w.lift) for w in found.windows if w.lift is not None]
        panels.append(
            report.Panel(
                "Lift",
                "Pairs of the exact join over pairs if each stream's keys were shuffled among its "
                "rows. Above 1 the streams turn to the same keys at the same time.",
                {"lift": lifts},
                x="window in seconds" if found.profiles[0].timestamps else "window",
                y="lift",
                log_x=True,
                zero=True,
                limit=("chance", 1.0),
            )
        )
    return panels
