"""Errors, seeds and the other things that everything stands on."""
