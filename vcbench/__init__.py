"""vcbench: lossless decoding on compressed KV caches, and what compression costs without it."""

__version__ = "0.1.0"
