"""The broker's file: how it is read, what is refused, and what is shown of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lastword.config import BrokerConfig, EffectiveSetting, WalSync
from lastword.config.keys import BROKER_SETTINGS, TOPIC_SETTINGS
from lastword.errors import InvalidConfigError


def load(folder: Path, text: str) -> BrokerConfig:
    file = folder / "lastword.yaml"
    file.write_text(text)
    return BrokerConfig.load(file)


def error_of(folder: Path, text: str) -> str:
    """The message for a file, with its folder left out."""
    with pytest.raises(InvalidConfigError) as caught:
        load(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def shown(config: BrokerConfig) -> dict[str, EffectiveSetting]:
    return {setting.key: setting for setting in config.explain()}


def test_defaults() -> None:
    config = BrokerConfig.load(None)
    assert config.wal_sync == WalSync("group")
    assert config.wal_max_bytes is None
    assert config.deleter_enabled is True
    assert config.deleter_interval_ms == 300_000
    assert config.deleter_time_enabled is True
    assert config.deleter_size_enabled is True
    assert config.worker_initial_delay_ms == 60_000
    assert config.worker_interval_ms == 300_000
    assert config.collect_grace_ms == 3_600_000
    assert config.snapshot_retention_ms == 3_600_000
    assert config.lease_ttl_ms == 60_000
    assert config.catalog == {}
    assert config.warehouse is None
    assert config.topic_default_config == {}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "~", "namespaces: {}\ncatalog: {}\n"])
def test_file_without_settings_is_all_defaults(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == BrokerConfig.load(None)


FULL = """\
wal.sync: interval:50
wal.max.bytes: 1000
deleter.enabled: false
deleter.interval.ms: 1
deleter.time.enabled: "false"
deleter.size.enabled: False
worker.initial.delay.ms: 0
worker.interval.ms: 2
worker.nice: 0
seal.interval.ms: 5
retention.interval.ms: 6
expire.interval.ms: 7
collect.interval.ms: 8
compaction.service.factory: here:Factory
compaction.task.memory.bytes: 1048576
compaction.task.bytes: 1048577
reader.hold.ms: 9
reader.hold.max.ms: 10
collect.grace.ms: 0
snapshot.retention.ms: 3
lease.ttl.ms: 4
warehouse: s3://bucket/lastword
catalog: {type: sql, uri: "sqlite:///x.db", pool: 0010, echo: no, s3: {region: ""}}
topic.default_config: {cleanup.policy: "delete,compact"}
retention.ms: 0
namespaces:
  db:
    cleanup.policy: [compact]
group.initial.rebalance.delay.ms: 0
group.min.session.timeout.ms: 11
group.max.session.timeout.ms: 12
group.max.size: 13
offsets.retention.minutes: 14
offsets.retention.check.interval.ms: 15
offset.metadata.max.bytes: 16
kafka.listen: 0.0.0.0:17
kafka.advertised: kafka.example.com:18
admin.listen: "[::1]:0"
admin.token.file: /etc/lastword/token
auto.create.topics.enable: false
num.partitions: 19
socket.request.max.bytes: 2048
queued.max.request.bytes: 1048578
max.connections: 20
connections.max.idle.ms: 21
fetch.max.bytes: 4096
fetch.cache.bytes: 1048579
producer.id.expiration.ms: 22
connect.file: sources.yaml
"""


def test_every_broker_setting_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    assert config.wal_sync == WalSync("interval", 50)
    assert config.wal_max_bytes == 1000
    assert config.deleter_enabled is False
    assert config.deleter_interval_ms == 1
    assert config.deleter_time_enabled is False
    assert config.deleter_size_enabled is False
    assert config.worker_initial_delay_ms == 0
    assert config.worker_interval_ms == 2
    assert config.worker_nice == 0
    assert config.seal_interval_ms == 5
    assert config.retention_interval_ms == 6
    assert config.expire_interval_ms == 7
    assert config.collect_interval_ms == 8
    assert config.compaction_service_factory == "here:Factory"
    assert config.compaction_task_memory_bytes == 1 << 20
    assert config.compaction_task_bytes == (1 << 20) + 1
    assert config.reader_hold_ms == 9
    assert config.reader_hold_max_ms == 10
    assert config.collect_grace_ms == 0
    assert config.snapshot_retention_ms == 3
    assert config.lease_ttl_ms == 4
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.group_min_session_timeout_ms == 11
    assert config.group_max_session_timeout_ms == 12
    assert config.group_max_size == 13
    assert config.offsets_retention_minutes == 14
    assert config.offsets_retention_check_interval_ms == 15
    assert config.offset_metadata_max_bytes == 16
    assert config.kafka_listen == "0.0.0.0:17"
    assert config.kafka_advertised == "kafka.example.com:18"
    assert config.admin_listen == "[::1]:0"
    assert config.admin_token_file == "/etc/lastword/token"
    assert config.auto_create_topics_enable is False
    assert config.num_partitions == 19
    assert config.socket_request_max_bytes == 2048
    assert config.queued_max_request_bytes == 1048578
    assert config.max_connections == 20
    assert config.connections_max_idle_ms == 21
    assert config.fetch_max_bytes == 4096
    assert config.fetch_cache_bytes == 1048579
    assert config.producer_id_expiration_ms == 22
    assert config.connect_file == "sources.yaml"
    assert config.warehouse == "s3://bucket/lastword"
    assert config.topic_default_config == {"cleanup.policy": "compact,delete"}
    for key in (setting.key for setting in BROKER_SETTINGS):
        assert shown(config)[key].source == "broker", key


def test_session_timeouts_that_contradict_each_other() -> None:
    mapping = {"group.min.session.timeout.ms": 9, "group.max.session.timeout.ms": 8}
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.from_mapping(mapping, where="here")
    assert str(caught.value) == (
        "here: group.min.session.timeout.ms is 9 (broker, here) but group.max.session.timeout.ms is 8 "
        "(broker, here); the first must not exceed the second"
    )


def test_catalog_properties_are_the_text_that_was_written(tmp_path: Path) -> None:
    assert load(tmp_path, FULL).catalog == {
        "type": "sql",
        "uri": "sqlite:///x.db",
        "pool": "0010",
        "echo": "no",
        "s3.region": "",
    }


def test_catalog_properties_from_python() -> None:
    config = BrokerConfig.from_mapping({"catalog": {"echo": True, "pool": 5, "s3": {"x": 0.5}}}, where="x")
    assert config.catalog == {"echo": "true", "pool": "5", "s3.x": "0.5"}


def test_configuration_can_go_to_another_process(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "text",
    [
        "wal.sync: none\nretention.ms: 5\nnamespaces: {db: {retention.ms: 6}}",
        "wal: {sync: none}\nretention: {ms: 5}\nnamespaces.db: {retention: {ms: 6}}",
        "wal:\n  sync: none\nretention:\n  ms: '5'\nnamespaces.db.retention.ms: 6",
        "\ufeffwal: &w {sync: none}\nretention.ms: +5\nnamespaces:\n  db:\n    retention:\n      ms: 6",
    ],
)
def test_nested_mappings_are_dotted_keys(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert config.wal_sync == WalSync("none")
    assert config.resolve("t", {}).retention_ms == 5
    assert config.resolve("db.t", {}).retention_ms == 6


def test_anchors_may_be_shared_between_namespaces(tmp_path: Path) -> None:
    config = load(tmp_path, "namespaces:\n  a: &s {cleanup.policy: compact}\n  b: *s\n")
    assert config.resolve("a.t", {}).compacts
    assert config.resolve("b.t", {}).compacts


def test_namespace_default_is_that_of_names_without_a_dot(tmp_path: Path) -> None:
    config = load(tmp_path, "namespaces: {default: {retention.ms: 7}}")
    assert config.resolve("t", {}).retention_ms == 7
    assert config.resolve("db.t", {}).retention_ms == 604_800_000


@pytest.mark.parametrize(
    ("text", "sync"),
    [("group", WalSync("group")), ("none", WalSync("none")), ("interval:1", WalSync("interval", 1))],
)
def test_wal_sync(text: str, sync: WalSync) -> None:
    config = BrokerConfig.from_mapping({"wal.sync": text}, where="x")
    assert config.wal_sync == sync
    assert str(config.wal_sync) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # values
        (
            "\nwal.sync: interval",
            "lastword.yaml:2: wal.sync is 'interval'; allowed: `group`, `interval:<ms>`",
        ),
        ("wal.sync: interval:0", "lastword.yaml:1: wal.sync is 'interval:0'; allowed: "),
        ("wal.sync: group:5", "lastword.yaml:1: wal.sync is 'group:5'; allowed: "),
        ("deleter.enabled: no", "lastword.yaml:1: deleter.enabled is 'no'; allowed: `true` or `false`"),
        ("deleter.enabled: 1", "lastword.yaml:1: deleter.enabled is '1'; allowed: `true` or `false`"),
        (
            "deleter.interval.ms: 0",
            "lastword.yaml:1: deleter.interval.ms is '0'; allowed: a whole number from 1",
        ),
        ("kafka.listen: 9092", "lastword.yaml:1: kafka.listen is '9092'; allowed: `HOST:PORT`"),
        ("kafka.listen: ':9092'", "lastword.yaml:1: kafka.listen is ':9092'; allowed: `HOST:PORT`"),
        ("admin.listen: ::1:80", "lastword.yaml:1: admin.listen is '::1:80'; allowed: `HOST:PORT`"),
        ("admin.listen: localhost:65536", "lastword.yaml:1: admin.listen is 'localhost:65536'; allowed: "),
        ("retention.ms: 1:30", "lastword.yaml:1: retention.ms is '1:30'; allowed: "),
        ("retention.ms: [1]", "lastword.yaml:1: retention.ms is ['1']; allowed: "),
        ("retention.ms:", "lastword.yaml:1: retention.ms has no value; allowed: "),
        ("retention.ms: {}", "lastword.yaml:1: retention.ms is a group of settings; allowed: "),
        ("warehouse: ''", "lastword.yaml:1: warehouse is ''; allowed: a folder"),
        (
            "topic.default_config: {retention.ms: x}",
            "lastword.yaml:1: topic.default_config: retention.ms is 'x'",
        ),
        (
            "namespaces:\n  db:\n    retention.ms: x",
            "lastword.yaml:3: namespace db: retention.ms is 'x'; allowed: ",
        ),
        # keys
        ("a: 1\n", "lastword.yaml:1: unknown setting 'a'"),
        ("\nwal:\n  snyc: none", "lastword.yaml:3: unknown setting 'wal.snyc'; did you mean 'wal.sync'?"),
        (
            "namespacs:\n  db:\n    null.key: keep",
            "lastword.yaml:1: unknown setting 'namespacs'; did you mean 'namespaces'?",
        ),
        ("topic.defaults: {}", "lastword.yaml:1: unknown setting 'topic.defaults'"),
        ("topic.defaultconfig: {null.key: keep}", "did you mean 'topic.default_config'?"),
        (
            "namespaces: {db: {wal.sync: none}}",
            "namespace db: 'wal.sync' is a setting of the broker, not of a topic",
        ),
        ("topics:\n  t: {retention.ms: 1}", "`lastword topic alter`"),
        ("topics: {}", "`lastword topic alter`"),
        ("topics.t.retention.ms: 1", "`lastword topic alter`"),
        # groups
        ("catalog: postgresql://u:hidden@h/d", "lastword.yaml:1: catalog must be a group of settings"),
        ("catalog:", "lastword.yaml:1: catalog must be a group of settings"),
        ("catalog: {uri: }", "lastword.yaml:1: catalog.uri must be a single text or number"),
        ("catalog: {uri: [hidden]}", "lastword.yaml:1: catalog.uri must be a single text or number"),
        ("namespaces: [db]", "lastword.yaml:1: namespaces must be a group of settings"),
        ("namespaces: {db: 5}", "lastword.yaml:1: namespace db must be a group of settings"),
        ("namespaces: {a b: {null.key: keep}}", "lastword.yaml:1: 'a b' is not the name of a namespace"),
        ("namespaces: {Default: {}}", "lastword.yaml:1: 'Default' is not the name of a namespace"),
        # twice
        (
            "retention.ms: 1\n\nretention.ms: 1",
            "lastword.yaml:3: 'retention.ms' is given twice, first in line 1",
        ),
        ("wal: {sync: none}\nwal: {max.bytes: 1}", "lastword.yaml:2: 'wal' is given twice, first in line 1"),
        (
            "wal.sync: none\nwal:\n  sync: none",
            "lastword.yaml:3: 'wal.sync' is given twice, also at lastword.yaml:1",
        ),
        (
            "namespaces:\n  db:\n    null.key: keep\n    null.key: keep",
            "lastword.yaml:4: 'namespaces.db.null.key' is given twice, first in line 3",
        ),
        (
            "catalog:\n  s3.region: a\n  s3: {region: b}",
            "lastword.yaml:3: 'catalog.s3.region' is given twice, also at lastword.yaml:2",
        ),
        # not what is meant by YAML here
        ("wal.sync: group\nretention.ms: [", "lastword.yaml:2: is not YAML: "),
        ("a: b: hidden", "lastword.yaml:1: is not YAML: mapping values are not allowed here"),
        ("wal.sync: none\n\x01", "lastword.yaml:2: is not YAML: special characters are not allowed"),
        ("{}\n---\n{}", "lastword.yaml:2: is not YAML: "),
        ("- wal.sync", "lastword.yaml:1: settings must be written as 'key: value'"),
        ("group", "lastword.yaml:1: settings must be written as 'key: value'"),
        ("? [a]\n: b", "lastword.yaml:1: a list or a mapping can't be the name of a setting"),
        (
            "namespaces:\n  a: &a {null.key: keep}\n  b: {<<: *a}",
            "lastword.yaml:3: YAML's '<<' is not supported",
        ),
        ("catalog: {uri: !env URI}", "lastword.yaml:1: the YAML tag '!env' is not supported"),
        ("cleanup.policy: [!x compact]", "lastword.yaml:1: the YAML tag '!x' is not supported"),
        ("wal: &w {x: *w}", "lastword.yaml:1: 'x' contains itself"),
        ("[" * 5000, "lastword.yaml: is nested too deeply"),
    ],
)
def test_error_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    found = error_of(tmp_path, text)
    assert message in found
    assert found.startswith("lastword.yaml:")
    assert "hidden" not in found


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"none\.yaml: can't be read: No such file"):
        BrokerConfig.load(tmp_path / "none.yaml")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="can't be read: Is a directory"):
        BrokerConfig.load(tmp_path)


def test_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "lastword.yaml"
    file.write_bytes(b"wal.sync: none\n# \xff\n")
    with pytest.raises(InvalidConfigError, match=r"lastword\.yaml:2: is not UTF-8 text"):
        BrokerConfig.load(file)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"wal.sync": "none", "wal": {"sync": "none"}}, "test: 'wal.sync' is given twice"),
        ({5: "x"}, "test: 5 is not the name of a setting"),
        ({"deleter.enabled": 1}, "test: deleter.enabled is 1; allowed"),
        ({"deleter.enabled": None}, "test: deleter.enabled has no value"),
    ],
)
def test_error_in_a_mapping(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.from_mapping(mapping, where="test")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "min.compaction.lag.ms: 10\nmax.compaction.lag.ms: 9",
            [
                "min.compaction.lag.ms is 10 (broker, lastword.yaml:1)",
                "max.compaction.lag.ms is 9 (broker, lastword.yaml:2)",
            ],
        ),
        (
            "retention.ms: 8\nnamespaces:\n  db:\n    local.retention.ms: 9",
            [
                "lastword.yaml: topics of namespace db: ",
                "local.retention.ms is 9 (namespace db, lastword.yaml:4)",
                "retention.ms is 8 (broker, lastword.yaml:1)",
            ],
        ),
        (
            "topic.default_config:\n  compaction.strategy: header",
            [
                "auto-created topics of namespace default",
                "compaction.strategy is header (topic.default_config, lastword.yaml:2)",
            ],
        ),
        (
            "topic.default_config: {min.compaction.lag.ms: 6}\nnamespaces: {db: {max.compaction.lag.ms: 5}}",
            ["auto-created topics of namespace db"],
        ),
    ],
)
def test_contradiction_in_a_file_is_found_when_it_is_loaded(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    found = error_of(tmp_path, text)
    for part in parts:
        assert part in found


def test_explain_says_where_each_setting_comes_from(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    file = tmp_path / "lastword.yaml"
    settings = {setting.key: setting for setting in config.explain("db.users", {"null.key": "reject"})}
    assert settings["null.key"] == EffectiveSetting(key="null.key", value="reject", source="topic", where="")
    assert settings["cleanup.policy"] == EffectiveSetting(
        key="cleanup.policy", value="compact", source="namespace db", where=f"{file}:28"
    )
    assert settings["retention.ms"] == EffectiveSetting(
        key="retention.ms", value="0", source="broker", where=f"{file}:25"
    )
    assert settings["segment.ms"] == EffectiveSetting(
        key="segment.ms", value="604800000", source="default", where=""
    )
    assert settings["wal.sync"].value == "interval:50"
    assert settings["topic.default_config.cleanup.policy"].value == "compact,delete"
    assert settings["catalog.type"] == EffectiveSetting(
        key="catalog.type", value="sql", source="broker", where=f"{file}:23"
    )


def test_explain_without_a_topic_shows_what_topics_inherit(tmp_path: Path) -> None:
    settings = load(tmp_path, FULL).explain()
    by_key = {setting.key: setting for setting in settings}
    assert len(by_key) == len(settings)
    assert by_key["cleanup.policy"].source == "default"
    assert by_key["retention.ms"].source == "broker"
    assert {setting.key for setting in (*TOPIC_SETTINGS, *BROKER_SETTINGS)} <= set(by_key)


def test_explain_shows_settings_that_contradict_each_other() -> None:
    own = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
    settings = {setting.key: setting.value for setting in BrokerConfig.load(None).explain("t", own)}
    assert settings["max.compaction.lag.ms"] == "1"


@pytest.mark.parametrize(
    ("key", "value", "masked"),
    [
        ("uri", "postgresql+psycopg2://me:hidden@h:5432/d", "postgresql+psycopg2://me:***@h:5432/d"),
        ("uri", "postgresql://me:hid/d@en@h/d", "postgresql://me:***@h/d"),
        ("uri", "postgresql://:hidden@h/d", "postgresql://:***@h/d"),
        ("uri", "postgresql://h/d?user=me&password=hidden&x=1", "postgresql://h/d?user=me&password=***&x=1"),
        ("uri", "https://h:8181/path", "https://h:8181/path"),
        ("uri", "sqlite:////data/catalog.db", "sqlite:////data/catalog.db"),
        ("s3.secret-access-key", "hidden", "***"),
        ("s3.session-token", "hidden", "***"),
        ("credential", "id:hidden", "***"),
        ("token", "hidden", "***"),
        ("header.X-Api", "hidden", "***"),
        ("adls.connection-string", "AccountKey=hidden", "***"),
        ("sslPassword", "hidden", "***"),
        ("s3.endpoint", "http://localhost:9000", "http://localhost:9000"),
        ("s3.region", "eu-central-1", "eu-central-1"),
    ],
)
def test_secrets_of_the_catalog_are_not_shown(key: str, value: str, masked: str) -> None:
    config = BrokerConfig.from_mapping({"catalog": {key: value}}, where="x")
    assert shown(config)[f"catalog.{key}"].value == masked
    assert config.catalog[key] == value
    assert value not in repr(config)


def test_names_with_key_in_them_are_masked_in_the_catalog_only() -> None:
    config = BrokerConfig.from_mapping({"topic.default_config": {"null.key": "reject"}}, where="x")
    assert shown(config)["topic.default_config.null.key"].value == "reject"


NESTED = st.recursive(
    st.one_of(
        st.text(max_size=8),
        st.integers(),
        st.booleans(),
        st.none(),
        st.floats(),
        st.lists(st.text(max_size=3)),
    ),
    lambda inner: st.dictionaries(
        st.sampled_from(["wal", "sync", "namespaces", "db", "retention", "ms", "catalog", "topics", "x", ""]),
        inner,
        max_size=3,
    ),
    max_leaves=8,
)


@given(NESTED.filter(lambda tree: isinstance(tree, dict)))
def test_any_file_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = yaml.safe_dump(tree, allow_unicode=True)
    try:
        config = load(folder, text)
    except InvalidConfigError as error:
        assert "lastword.yaml" in str(error)
    else:
        config.resolve("t", {})
        config.resolve("db.t", {})


@given(st.text(max_size=60))
def test_any_text_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        BrokerConfig.load(file)
    except InvalidConfigError as error:
        assert "any.yaml" in str(error)
