"""Mutation checks: hand-chosen faults, each applied to a copy of the tree, where a named test must then fail."""
