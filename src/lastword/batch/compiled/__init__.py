"""The inner loops over record bytes, compiled by numba. They release the interpreter lock.

compiler.py   how loops are compiled and cached, and the types of their arguments
parsing.py    record batches are read: walk, check, fill Arrow's buffers
building.py   Arrow columns are read: measure and write record batches, hash keys

Importing a file of loops compiles its functions, or loads them from numba's cache, so it is imported at the first use,
never at start-up. A compiled function calls only compiled functions of its own file: numba takes a function from its
cache as long as that function's own file is unchanged, whatever it calls elsewhere.
"""
