"""Joins on Spark: DataFrames in, a DataFrame out. Needs ``pip install joinweir[spark]``."""

try:
    from .loss import LossListener, LossReport, SideLoss, loss_report
    from .pieces import run_pieces
    from .profiling import characterize
    from .source import check_source_options, register_source
    from .window_join import window_join
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] not in ("pyspark", "pandas"):
        raise
    raise ModuleNotFoundError(
        f"joinweir.spark needs {error.name}; install it with: pip install 'joinweir[spark]'",
        name=error.name,
    ) from error

__all__ = [
    "LossListener",
    "LossReport",
    "SideLoss",
    "characterize",
    "check_source_options",
    "loss_report",
    "register_source",
    "run_pieces",
    "window_join",
]
