"""The command line, `lastword`. One file per group of commands; each imports Arrow and Iceberg only when needed.

main.py          the entry point, and the only place that turns errors into messages and exit codes
options.py       the parts that all commands share: options, the session, the declaration of commands
output.py        the only place that prints: tables for people, JSON for programs
backend.py       how commands reach a log: they open it, or ask the admin API of the server that holds it
direct.py        the backend without a server
remote.py        the backend beside a server
input_lines.py   input lines, parsed into records
record_lines.py  records, formatted as lines
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
