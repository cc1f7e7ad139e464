"""What a KV cache is: its contract, exact storage, and the caches of exact entries."""
