"""Retrievers of other libraries over an index; each module needs the extra of its name."""
