"""Dense retrieval, a baseline."""

from gpu_rag.methods.method import Method

METHODS = (Method("dense", ("passage_vectors",), standins=True),)
