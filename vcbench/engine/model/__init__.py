"""One forward pass of the decoder."""
