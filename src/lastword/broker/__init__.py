"""The Kafka endpoint: ordinary Kafka clients produce to a log and consume from it.

wire.py         frames, request headers, the table of APIs and versions; messages in and out
errors.py       our errors as Kafka's codes
node.py         what every handler is given: the log, its settings, threads to block on
connection.py   one client: its frames in, its answers out, in order
server.py       listens, and puts everything together
versions.py metadata.py produce.py fetch.py offsets.py producers.py    one group of APIs each
appends.py      produced batches on their way to the WAL, many to a sync
tail.py         the WAL's bytes as a fetch takes them
sealed.py       sealed segments as a fetch takes them: encoded, read ahead, cached
"""
