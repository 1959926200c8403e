"""Inner loops by op, a plain reference beside each fast version of the same signature; one dispatcher of backends.

Triton: written for 3.6; all ran under Triton's interpreter (TRITON_INTERPRET=1) and compile for sm_90, none ran on a
GPU yet. numba: the functions that a kernel calls stand in its file, since the cache of a kernel is renewed when that
file changes. Kernels run without the interpreter's lock, on one thread each.
"""
