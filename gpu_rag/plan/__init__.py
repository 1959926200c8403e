"""Plans: what a build or an answer job will cost, predicted from a sample, and later compared with what it did cost."""
