"""Plans: the predicted cost of a build, from a sample; later compared with the actual cost."""
