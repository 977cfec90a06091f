"""Stream joins that keep to a memory, CPU or I/O budget and report what was left out.

>>> import joinweir as jw
>>> left, right = jw.streams.zipf_pair(1000, domain=50, seed=1)
>>> r = jw.simulate(left, right, on="key", time="ts", within=100, max_rows=40, policy="prob")
>>> 0 < r.recall < 1
True
"""

from . import counting, locality, metrics, optimum, streams
from .characterization import Characterization, StreamProfile
from .checks import check_policy
from .errors import JoinweirError, StateError
from .policies import policy, policy_names
from .profiling import characterize
from .simulation import JoinResult, landmark, rows, simulate
from .workload import WorkloadResult, query, simulate_workload

__version__ = "0.1.0.dev0"

__all__ = [
    "Characterization",
    "JoinResult",
    "JoinweirError",
    "StateError",
    "StreamProfile",
    "WorkloadResult",
    "__version__",
    "characterize",
    "check_policy",
    "counting",
    "landmark",
    "locality",
    "metrics",
    "optimum",
    "policy",
    "policy_names",
    "query",
    "rows",
    "simulate",
    "simulate_workload",
    "streams",
]
