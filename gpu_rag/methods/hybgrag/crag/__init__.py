"""HybGRAG's variant for CRAG: web pages instead of a knowledge base, with the answer inside the loop."""
