"""Inner loops of the ops. Each fast version has a plain reference of the same signature; one dispatcher picks a
backend.

Triton: written for 3.6. All kernels ran under Triton's interpreter (TRITON_INTERPRET=1) and compile for sm_90; none has
run on a GPU yet. numba: a kernel's helper functions are in its own file, because numba renews a kernel's cache only
when that file changes. Kernels run without the interpreter's lock, on one thread each.
"""
