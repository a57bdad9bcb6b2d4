"""Policies as a service: observations as JSON over HTTP, answered in batches."""

from fugu.serve.config import ServeConfig

__all__ = ["ServeConfig"]
