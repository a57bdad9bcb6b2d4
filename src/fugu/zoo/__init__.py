"""Trained policies that come with fugu, in one folder with a checksummed index."""
