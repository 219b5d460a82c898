"""Sealed segments: what the log asks of them (table.py), and how Iceberg answers (iceberg.py)."""
