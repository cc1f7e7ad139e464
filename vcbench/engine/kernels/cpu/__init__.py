"""Kernels compiled by numba: products, rows, noise, and what they are built from."""
