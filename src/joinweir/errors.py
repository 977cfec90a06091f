"""Errors that a user can cause. Each message is one line that names the culprit and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class JoinweirError(ValueError):
    """Bad input or a bad option; the command line prints it as one line and exits with 2."""


class StateError(JoinweirError):
    """A saved state that is damaged, or that belongs to another version or configuration."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> JoinweirError:
    """An error for a name that does not exist, with the nearest one that does.

    >>> print(unknown("policy", "gjd", ["fifo", "gdj"]))
    unknown policy 'gjd'; did you mean 'gdj'? choices: fifo, gdj
    """
    choices = list(choices)
    near = get_close_matches(str(name), choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return JoinweirError(f"unknown {kind} {name!r}{hint} choices: {', '.join(choices)}")
