"""Index layers: each a small class with a name, what it reads, a version, and how to run it.

passages -> bm25, passage_vectors, extraction
extraction -> entities -> entity_vectors, relation_vectors, mentions, synonyms -> graph
passages, extraction -> hop_vertices -> hop_questions -> hop_keywords, hop_in_vectors, hop_out_vectors -> hop_edges
"""
