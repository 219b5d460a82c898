"""Real systems to compare Lastword with: fetched by Maven's coordinates, started on loopback, stopped again.

Only tests and benchmarks use this; nothing in src does.
"""
