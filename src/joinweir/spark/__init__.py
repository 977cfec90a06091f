"""Joins on Spark: DataFrames in, a DataFrame out. Needs ``pip install joinweir[spark]``."""

from .window_join import window_join

__all__ = ["window_join"]
