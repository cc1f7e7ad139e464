"""How caches of one kind are met by one kernel call a layer, on CPU and GPU."""
