"""Policies: which row gives way when a join's memory is full. One file each, found by its name.

A policy file defines ``Params`` (a frozen dataclass), its arrays (a named tuple, `init`), hooks,
``run`` (compiled around `joinweir.engine.join_loop`) and ``POLICY``. Its file stem is its name
everywhere: here, on the command line, in plots and in golden files. See docs/adding-a-policy.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

from ..errors import JoinweirError, unknown
from ..layout import PARTNERS, STATISTICS_SOURCES


@dataclass(frozen=True)
class Sizes:
    """For how much a policy's arrays must be made."""

    streams: int
    pools: int
    slots: int
    groups: int
    workload: bool = False  # for `run_workload`, not for `run`


@dataclass(frozen=True)
class Parameters:
    """What every policy can be told.

    Parameters
    ----------
    competing
        Whether a newcomer can lose against the held rows and not be admitted at all.
    """

    competing: bool = False

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        one_of(self, "competing", (True, False))

    def source_of_frequencies(self) -> str | None:
        """Where the policy has frequencies of keys from; None if it needs none."""
        return None

    def needs_whole_input(self) -> bool:
        """Whether it can run only where all rows are known beforehand."""
        return self.source_of_frequencies() == "oracle"

    def serves_workloads(self) -> bool:
        """Whether it can rank rows that serve several joins, if its file says how at all."""
        return self.source_of_frequencies() in (None, "history")

    def __str__(self) -> str:
        """As on the command line: ``gdj:initial_rank=0.2``."""
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return ":".join([self.name, ",".join(changed)] if changed else [self.name])


@dataclass(frozen=True)
class FrequencyParameters(Parameters):
    """What every policy that uses frequencies of keys can be told.

    Parameters
    ----------
    statistics
        Where frequencies come from: ``history`` (all arrivals so far), ``window`` (arrivals in the
        window, kept or not), ``memory`` (held rows only), ``oracle`` (the whole input, for
        comparison; only where the whole input is known).
    partner
        In a join of k > 2 streams: frequency in the ``next`` stream (chang2004 §5.3.4), or the
        ``product`` over all others.
    """

    statistics: str = "history"
    partner: str = "next"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "statistics", STATISTICS_SOURCES)
        one_of(self, "partner", PARTNERS)

    def source_of_frequencies(self) -> str | None:
        """Where frequencies come from."""
        return self.statistics


def one_of(params: Parameters, name: str, choices: tuple) -> None:
    """Refuse a parameter that is not one of the choices."""
    value = getattr(params, name)
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise JoinweirError(
            f"{params.name}: {name} must be one of {', '.join(map(str, choices))}, not {value!r}"
        )


def in_range(params: Parameters, name: str, low: float, high: float) -> None:
    """Refuse a parameter that is not a number between low and high."""
    value = getattr(params, name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise JoinweirError(
            f"{params.name}: {name} must be a number from {low} to {high}, not {value!r}"
        )


@dataclass(frozen=True)
class Policy:
    """A policy as its file declares it.

    ``weighs`` says that it looks at importances;
    ``run_workload`` is there if it can also serve several joins that share a buffer;
    ``grow`` replaces the usual growth of its arrays (new ones, old contents copied to the front);
    ``before_batch`` sees to room in arrays of its own before n rows are processed;
    ``learn`` turns parameters that ask for knowledge of the data into plain ones;
    ``alternatives`` lists plain parameters to try on a sample when a parameter is ``auto``, and
    ``adopt`` switches a running state to one of them;
    ``fits`` says after how many rows of all streams ``refit`` is to be called, and then how often
    (0: never again), which learns from the state what was seen so far;
    ``inform`` takes models of the streams that are known beforehand (`joinweir.state.Known`).
    """

    params: type[Parameters]
    init: Callable[..., Any]
    run: Callable[..., Any]
    paper: str
    cost: str
    bounded: bool = True
    weighs: bool = False
    run_workload: Callable[..., Any] | None = None
    grow: Callable[..., Any] | None = None
    before_batch: Callable[..., Any] | None = None
    learn: Callable[..., Any] | None = None
    alternatives: Callable[..., Any] | None = None
    adopt: Callable[..., Any] | None = None
    choose_run: Callable[..., Any] | None = None
    fits: Callable[..., tuple[int, int]] | None = None
    refit: Callable[..., None] | None = None
    inform: Callable[..., None] | None = None
    module: ModuleType | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The file's stem."""
        return self.params.name

    @property
    def summary(self) -> str:
        """First line of the file's docstring."""
        return (self.module.__doc__ or self.name).strip().partition("\n")[0]


_EXTRA: dict[str, Policy] = {}  # policies registered from outside


@cache
def _found() -> dict[str, Policy]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found[info.name] = declare(module)
    return found


def declare(module: ModuleType) -> Policy:
    """The policy of a module, named after the module's file."""
    declared = getattr(module, "POLICY", None)
    if not isinstance(declared, Policy):
        raise JoinweirError(f"{module.__name__} is no policy: it has no POLICY = Policy(...)")
    declared.params.name = module.__name__.rpartition(".")[2]
    return dataclasses.replace(declared, module=module)


def register(module: ModuleType) -> Policy:
    """Add a policy that lives outside of joinweir, e.g. for `check_policy` or `simulate`."""
    declared = declare(module)
    if declared.name in _found():
        raise JoinweirError(
            f"a policy named {declared.name!r} ships with joinweir; rename the file"
        )
    _EXTRA[declared.name] = declared
    return declared


def policy_names() -> list[str]:
    """Names of all policies.

    >>> "gdj" in policy_names()
    True
    """
    return sorted(_found() | _EXTRA)


def definition(name: str) -> Policy:
    """The policy of that name."""
    everything = _found() | _EXTRA
    if name not in everything:
        raise unknown("policy", name, policy_names())
    return everything[name]


def policy(name: str, **parameters: Any) -> Parameters:
    """A policy with its parameters, checked.

    >>> str(policy("gdj", initial_rank=0.2))
    'gdj:initial_rank=0.2'
    """
    params = definition(name).params
    allowed = [f.name for f in dataclasses.fields(params)]
    for given in parameters:
        if given not in allowed:
            raise unknown(f"parameter of {name}", given, allowed)
    return params(**parameters)


def read_policy(text: str | Parameters) -> Parameters:
    """A policy from text such as ``prob`` or ``gdj:initial_rank=0.2,method=2``.

    >>> read_policy("prob:statistics=window").statistics
    'window'
    """
    if isinstance(text, Parameters):
        return text
    if not isinstance(text, str):
        raise JoinweirError(f"policy must be a name or jw.policy(...), not {text!r}")
    name, _, rest = text.strip().partition(":")
    parameters = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise JoinweirError(f"policy {text!r}: write parameters as name=value, not {part!r}")
        parameters[key.strip()] = _plain(value.strip())
    return policy(name, **parameters)


def _plain(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
