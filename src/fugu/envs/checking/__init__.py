"""`fugu.check`: what an environment does, beside what it declares."""

from fugu.envs.checking.checker import check
from fugu.envs.checking.report import Report, Row

__all__ = ["Report", "Row", "check"]
