"""Kernels by operation: a plain reference beside each fast implementation of the same signature."""
