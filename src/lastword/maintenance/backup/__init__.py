"""Copies of a whole log, made while it is written, and logs made of them.

store.py       a folder or an address of an object store that holds the backups of one log
manifest.py    the file that names the pieces of one backup, and makes it real
wals.py        copies write-ahead logs, and lays them out
belongings.py  the small files of a data folder
make.py        makes a backup
settings.py    the settings of a restored folder
restore.py     makes a log of a backup
restoring.py   `lastword.restore` and `lastword.backups`
"""
