"""Settings for all tests: numba's cache directory and hypothesis' profile.

Run as a script it prints the cache directory, so that `make demo` and `make bench` share it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "src" / "joinweir"
CACHES = REPOSITORY / ".numba_cache"
KEPT_CACHES = 3


def sources_digest(sources: Path = SOURCES) -> str:
    """Digest of the path and content of every Python file below `sources`."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(sources).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def numba_cache_dir(caches: Path = CACHES, digest: str | None = None) -> Path:
    """Make and return the cache directory of these sources; drop all but the newest few others.

    numba invalidates a cached function by the file that defines it only, and a policy's `run`
    has the engine inlined: after an edit of the engine it would run the old one. Hence one
    directory per state of the sources. The cache is pickle, so only its owner may enter.
    """
    own = caches / (digest or sources_digest())
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in (caches, own):
        directory.chmod(0o700)
    os.utime(own)
    by_age = []
    for path in caches.iterdir():
        try:
            if re.fullmatch(r"[0-9a-f]{16}", path.name) and path != own:
                by_age.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # another test run dropped it first
            continue
    for _, path in sorted(by_age, reverse=True)[KEPT_CACHES - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
    return own


if "NUMBA_CACHE_DIR" not in os.environ:
    # Through the environment, so that subprocesses and Spark workers have it too.
    os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())
    if "numba" in sys.modules:  # a plugin was faster: numba read its settings already
        sys.modules["numba"].config.reload_config()

if __name__ == "__main__":
    print(os.environ["NUMBA_CACHE_DIR"])
else:
    from hypothesis import settings

    # The same examples everywhere and every time; compiling a kernel has no deadline.
    settings.register_profile("joinweir", derandomize=True, deadline=None, max_examples=60)
    settings.load_profile("joinweir")

    import pytest

    @pytest.fixture(scope="session")
    def spark(tmp_path_factory):
        """The tests' Spark session, started by the first test that asks for it."""
        from spark_session import small_session

        session = small_session(tmp_path_factory.mktemp("spark"))
        yield session
        session.stop()
