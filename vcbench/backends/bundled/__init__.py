"""The engine of this package as a backend: loading, warming up, measuring."""
