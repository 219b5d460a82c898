"""The command line: `lastword`. One file a group of commands; none imports Arrow or Iceberg before it must.

main.py          the entry point, and the one place where errors become messages and exit codes
options.py       what every command shares: its options, the session that they make, how a command is declared
output.py        the one place that prints: tables for people, JSON for programs
backend.py       how commands reach a log: by opening it, or through the admin API of the server that holds it
direct.py        the backend without a server
remote.py        the backend beside a server
input_lines.py   lines on their way in
record_lines.py  records as lines
topic.py         topic create, alter, list, delete, seal, delete-records, repair
describe.py      topic describe
history.py       topic history
explain.py       topic explain
compact.py       topic compact, compact
produce.py       produce
consume.py       consume
group.py         group
erase.py         erase
verify.py        verify
retention.py     retention run
wal.py           wal
backup.py        backup, restore
relocate.py      relocate
takeover.py      takeover
connect.py       connect
worker.py        worker
serve.py         serve
status.py        status
scene.py         scene
config.py        config show
"""
