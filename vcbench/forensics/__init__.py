"""The gate's laboratory: what runs a model again to judge or to break a run."""
