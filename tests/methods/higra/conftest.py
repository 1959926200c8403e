"""Fixtures of the stages of this method."""

from stage_bench import bench, plant  # noqa: F401
