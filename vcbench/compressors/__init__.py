"""Methods: from a prompt's full cache to a draft cache, one file each."""
