"""Kernels in C for CPUs, and the Python that calls them."""
