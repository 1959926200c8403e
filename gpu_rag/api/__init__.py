"""The Python API: a function or method for each command. Arguments are checked at the entry."""
