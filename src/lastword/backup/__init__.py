"""Copies of a whole log, made while it is written, and logs made of them.

Nouns, in the order in which they come into being: a *place* (place.py) is a folder or an address of an object store that
holds the backups of one log; a *piece* is a file in it; a *manifest* (manifest.py) names the pieces of one backup, and makes
it real. `make` makes a backup, `restore` a log of one; `wals` copies and lays out write-ahead logs, `belongings` the small
files of a data folder.
"""
