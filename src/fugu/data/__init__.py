"""Data between the environments and the learner: segments of experience."""
