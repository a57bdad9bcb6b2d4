"""The command `fugu`, one file per command."""
