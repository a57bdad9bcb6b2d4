"""Automatic choice of training settings: successive halving over a few members in one process."""
