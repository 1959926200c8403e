"""The Python API: a function or method for each command, behind one gate that checks arguments."""
