"""Serve policies over HTTP: observations as JSON, answered in batches."""

from fugu.serve.config import ServeConfig

__all__ = ["ServeConfig"]
