"""A bench for one stage, for tests of what sources become."""

from stage_bench import bench, benches  # noqa: F401
