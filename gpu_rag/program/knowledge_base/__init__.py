"""Steps and views over the knowledge base of an index, for every method. Nodes and relations are row numbers."""
