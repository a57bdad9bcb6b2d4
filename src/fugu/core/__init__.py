"""Errors, settings, seeds and files: what every other package uses."""
