"""Plans: the predicted cost of a build or an answer job, from a sample; later compared with the actual cost."""
