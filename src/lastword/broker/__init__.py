"""The Kafka endpoint: ordinary Kafka clients produce to a log and consume from it.

server.py           listens for clients and wires up the handlers
binding.py          binds sockets, for the admin API too
connection.py       one client connection: reads frames, writes answers in order
memory.py           the memory that requests may take
wire.py             frames, request headers, the table of APIs and versions, decoding and encoding of messages
nulls.py            refuses nulls in fields that are not nullable
errors.py           Kafka's error codes for Lastword's errors
node.py             shared state for the handlers: the log, its settings, threads for blocking calls
partitions.py       the broker's view of partitions: the last snapshot of the table, the fetches that wait for records
versions.py         ApiVersions
metadata.py         Metadata
produce.py          Produce
appends.py          appends produced batches to the WAL, many per sync
fetch.py            Fetch
tail.py             the WAL's bytes for fetches
sealed.py           sealed segments for fetches: encoded, read ahead, cached
offsets.py          ListOffsets, OffsetForLeaderEpoch, DeleteRecords
producers.py        InitProducerId, DescribeProducers
topics.py           CreateTopics, DeleteTopics, CreatePartitions
configs.py          DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources
kafka_settings.py   Kafka's topic settings that have no effect here
broker_settings.py  broker settings that clients change at runtime
cluster.py          DescribeCluster, DescribeLogDirs, DescribeTopicPartitions and other cluster queries
replicas.py         leader elections, reassignments, moves between folders
authorized.py       the operations that a client is authorized for
reopener.py         reopens failed partitions, and topics that could not be opened at the start
groups/             consumer groups
"""
