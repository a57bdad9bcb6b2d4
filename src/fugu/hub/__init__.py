"""Share runs through the Hugging Face Hub or a folder."""
