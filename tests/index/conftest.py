"""Fixtures for tests of stages: a bench for one stage, and planted damage."""

from stage_bench import bench, benches, plant  # noqa: F401
