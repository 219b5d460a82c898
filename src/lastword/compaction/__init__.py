"""Compaction: what is dirty (plan.py), and which record of a key wins (strategy.py)."""
