"""Which drafters attempt a draft, how far, and which draft is verified (docs/planner.md)."""

from foredraft.planner.auto import AutoPlanner
from foredraft.planner.static import StaticPlanner

__all__ = ["AutoPlanner", "StaticPlanner"]
