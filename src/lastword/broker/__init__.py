"""The Kafka endpoint: ordinary Kafka clients produce to a log and consume from it.

server.py           listens, and puts everything together
connection.py       one client: its frames in, its answers out, in order
wire.py             frames, request headers, the table of APIs and versions; messages in and out
nulls.py            refuses nulls where the protocol has none
errors.py           our errors as Kafka's codes
node.py             what every handler is given: the log, its settings, threads to block on
partitions.py       what is known of partitions beside their writers: how far the table has come, who waits for records
versions.py         ApiVersions
metadata.py         Metadata
produce.py          Produce
appends.py          produced batches on their way to the WAL, many to a sync
fetch.py            Fetch
tail.py             the WAL's bytes as a fetch takes them
sealed.py           sealed segments as a fetch takes them: encoded, read ahead, cached
offsets.py          ListOffsets, OffsetForLeaderEpoch, DeleteRecords
producers.py        InitProducerId, DescribeProducers
topics.py           CreateTopics, DeleteTopics, CreatePartitions
configs.py          DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources
kafka_settings.py   settings of Kafka's topics that there is no use for here
broker_settings.py  settings of the broker that clients change while it runs
cluster.py          DescribeCluster, DescribeLogDirs, DescribeTopicPartitions and others that tools ask of a cluster
replicas.py         elections, reassignments, moves between folders
authorized.py       the operations that a client may do
reopener.py         opens partitions and topics again that could not be used for a while
groups/             consumer groups
"""
