"""Hostile files: how they are made, fed to fugu's readers, and what counts as a finding."""
