"""Inner loops by op, a plain reference beside each fast version of the same signature; one dispatcher of backends."""
