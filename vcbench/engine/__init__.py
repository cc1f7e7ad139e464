"""The model, the caches, drafting and verification."""
