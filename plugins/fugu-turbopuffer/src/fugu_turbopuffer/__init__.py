"""Keep the memory of fugu in Turbopuffer: shared by processes, with a journal on disk."""

from fugu_turbopuffer.memory import (
    RetrievalError,
    TurbopufferMemory,
    TurbopufferSettings,
    run_within,
)

__all__ = ["RetrievalError", "TurbopufferMemory", "TurbopufferSettings", "run_within"]
