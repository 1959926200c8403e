"""Steps and views over the knowledge base of an index, whatever the method: nodes and relations are row numbers."""
