"""Backups of a whole log, made while it is being written, and their restore.

store.py       the folder or object store address that holds the backups of one log
manifest.py    the file that names the pieces of one backup, whose writing completes it
wals.py        copies and restores write-ahead logs
belongings.py  the small files of a data folder
make.py        makes a backup
settings.py    the settings of a restored folder
restore.py     restores a log from a backup
restoring.py   `lastword.restore` and `lastword.backups`
"""
