"""Fixtures of the stages of this method."""

from stage_bench import bench  # noqa: F401
