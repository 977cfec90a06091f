"""How joinweir's functions are compiled, and where the compiled code is kept.

numba keeps compiled code on disk and drops it when the function's own file changes, but not when
a file changes whose functions were inlined into it. So the directory is named by a digest of all
sources that compiled code can come from. It belongs to the user alone (mode 0700), since numba's
cache files are pickles. `NUMBA_CACHE_DIR` overrides it, as it does for all of numba.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numba
from numba import njit

_SOURCES = (
    "layout.py",
    "structures.py",
    "engine.py",
    "workload_engine.py",
    "compiling.py",
    "policies/lba.py",  # part of it is compiled into elba
)
# Files of the optimum whose kernels become part of other files' compiled code.
_OPTIMUM = ("optimum/weights.py", "optimum/heap.py")


def source_digest(names: tuple[str, ...] = _SOURCES) -> int:
    """A number that changes with every edit of the engine."""
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in names if (folder / name).exists())
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "little")


DIGEST = source_digest()  # goes into saved states, so only the engine counts
_CACHE = f"numba-{source_digest(_SOURCES + _OPTIMUM):014x}"


def _cache_directory() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(home, "joinweir", _CACHE)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.stat(path).st_uid == os.getuid() and os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return ""  # no home to write to: numba looks for a place itself


def kernel(function: Callable) -> Callable:
    """Compile a function on first use, and keep the code for the next process.

    A kernel allocates nothing, so numba need not count references to arrays. That matters: the
    state is a named tuple of arrays, and counting made an arrival cost 2.1 µs instead of 0.2 µs.
    It is also how a policy outside of joinweir should compile its hooks and its ``run``.
    """
    options = {"cache": True, "_nrt": False, "forceinline": True}
    if numba.config.CACHE_DIR:  # the user's choice
        return njit(**options)(function)
    numba.config.CACHE_DIR = _cache_directory()
    try:
        return njit(**options)(function)  # numba chooses the place here, not at first use
    except RuntimeError:  # nowhere to write at all: compile in every process
        return njit(_nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = ""


inlined = njit(inline="always")  # code that calls a policy's hooks becomes part of its `run`

# A hook that lives outside of the policy's file. It is not kept on disk: the cache's index would
# name the class of the policy's arrays, and a process that cannot import an outside policy could
# then not read the index, nor run any other policy.
shared_hook = njit(_nrt=False, forceinline=True)
