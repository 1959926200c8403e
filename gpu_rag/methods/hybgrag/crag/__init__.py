"""HybGRAG's variant for CRAG: web pages in place of a knowledge base, and the answer inside the loop."""
