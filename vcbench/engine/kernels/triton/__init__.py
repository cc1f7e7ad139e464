"""Kernels compiled by Triton for GPUs."""
