"""Other people's interfaces on fugu's parts, for scripts that were written for them."""
