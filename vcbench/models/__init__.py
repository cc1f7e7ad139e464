"""Model files: architectures, weights, tokenizers, fetching and converting."""
