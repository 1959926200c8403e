"""Stages that several methods share; see `index.stage`.

passages -> bm25, passage_vectors, extraction
extraction -> entities -> entity_vectors, relation_vectors, mentions, synonyms -> graph
passages, extraction, entities, mentions -> kb -> kb_..._vectors, kb_texts; kb_web
"""
