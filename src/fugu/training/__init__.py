"""Training: collect experience, learn from it, save it all, go on after anything."""
