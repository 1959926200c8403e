"""Retrieval methods, one folder each; `registry` finds them. No method imports another, and no program imports
torch."""
