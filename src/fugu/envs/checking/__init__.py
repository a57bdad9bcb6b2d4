"""`fugu.check`: compare what an environment does with what it declares."""

from fugu.envs.checking.checker import check
from fugu.envs.checking.report import CheckResult, Report

__all__ = ["CheckResult", "Report", "check"]
