"""Runs shared through the Hugging Face Hub, or through a folder."""
