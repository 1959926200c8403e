"""The methods, a folder each; `registry` finds them. A method imports no other, and its program no torch."""
