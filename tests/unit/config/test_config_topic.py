"""Topic settings one by one, and then together."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.config import BrokerConfig, TopicSettings, check_topic_config
from lastword.config.keys import BROKER_SETTINGS, TOPIC_KEYS, TOPIC_SETTINGS
from lastword.errors import InvalidConfigError

LONG_MAX = 2**63 - 1
DEFAULTS = BrokerConfig.load(None)

VALID = [
    ("cleanup.policy", "compact", "compact"),
    ("cleanup.policy", "delete, compact", "compact,delete"),
    ("cleanup.policy", " compact ,delete ", "compact,delete"),
    ("cleanup.policy", ["delete", "compact"], "compact,delete"),
    ("min.cleanable.dirty.ratio", "0.25", "0.25"),
    ("min.cleanable.dirty.ratio", 0.3, "0.3"),
    ("min.cleanable.dirty.ratio", 0, "0"),
    ("min.cleanable.dirty.ratio", "1.0", "1"),
    ("min.cleanable.dirty.ratio", "-0.0", "0"),
    ("min.cleanable.dirty.ratio", "1e-7", "1e-07"),
    ("dirty.ratio.basis", "records", "records"),
    ("min.compaction.lag.ms", " 1000 ", "1000"),
    ("min.compaction.lag.ms", "0700", "700"),
    ("max.compaction.lag.ms", "none", str(LONG_MAX)),
    ("max.compaction.lag.ms", -1, str(LONG_MAX)),
    ("max.compaction.lag.ms", str(LONG_MAX), str(LONG_MAX)),
    ("max.compaction.lag.ms", 1, "1"),
    ("delete.retention.ms", 0, "0"),
    ("compaction.strategy.header", "Version no", "Version no"),
    ("compaction.strategy.header.format", "long", "long"),
    ("retention.ms", "-1", "-1"),
    ("retention.ms", LONG_MAX, str(LONG_MAX)),
    ("segment.bytes", 14, "14"),
    ("local.retention.ms", "-2", "-2"),
    ("local.retention.bytes", -1, "-1"),
    ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ("message.timestamp.before.max.ms", 0, "0"),
    ("message.timestamp.before.max.ms", "none", str(LONG_MAX)),
]

INVALID = [
    ("cleanup.policy", ""),
    ("cleanup.policy", "compact,"),
    ("cleanup.policy", "Compact"),
    ("cleanup.policy", "compact;delete"),
    ("cleanup.policy", []),
    ("cleanup.policy", True),
    ("min.cleanable.dirty.ratio", "1.01"),
    ("min.cleanable.dirty.ratio", -0.1),
    ("min.cleanable.dirty.ratio", "nan"),
    ("min.cleanable.dirty.ratio", "50%"),
    ("min.cleanable.dirty.ratio", "1_0e-1"),
    ("min.compaction.lag.ms", -1),
    ("min.compaction.lag.ms", True),
    ("min.compaction.lag.ms", 1000.0),
    ("min.compaction.lag.ms", "1_000"),
    ("min.compaction.lag.ms", "10s"),
    ("min.compaction.lag.ms", "١"),
    ("min.compaction.lag.ms", LONG_MAX + 1),
    ("min.compaction.lag.ms", "9" * 5000),
    ("min.compaction.lag.ms", "none"),
    ("max.compaction.lag.ms", 0),
    ("max.compaction.lag.ms", -2),
    ("delete.retention.ms", "7d"),
    ("tombstone.clock", "kafka"),
    ("compaction.strategy", "newest"),
    ("compaction.strategy.header", ""),
    ("compaction.strategy.header", " "),
    ("compaction.strategy.header", 5),
    ("compaction.strategy.header.format", "int"),
    ("null.key", False),
    ("retention.ms", -2),
    ("retention.ms", None),
    ("retention.bytes", {}),
    ("retention.bytes", "1GB"),
    ("segment.bytes", 0),
    ("segment.bytes", 2**31),
    ("segment.ms", 0),
    ("local.retention.ms", -3),
    ("message.timestamp.type", "createtime"),
    ("message.timestamp.after.max.ms", -1),
]


@pytest.mark.parametrize(("key", "raw", "canonical"), VALID)
def test_valid_value_has_one_canonical_text(key: str, raw: object, canonical: str) -> None:
    assert check_topic_config({key: raw}, where="here") == {key: canonical}
    assert check_topic_config({key: canonical}, where="here") == {key: canonical}


@pytest.mark.parametrize(("key", "raw"), INVALID)
def test_error_names_the_place_the_key_the_value_and_what_is_allowed(key: str, raw: object) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check_topic_config({"null.key": "keep", key: raw}, where="topic db.users")
    message = str(caught.value)
    assert message.startswith(f"topic db.users: {key} ")
    assert message.endswith(f"; allowed: {TOPIC_KEYS[key].kind.allowed}")
    if raw is None:
        assert "has no value" in message
    elif raw != {}:
        assert str(raw)[:20] in message
    assert len(message) < 350


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("retention.msec", "did you mean 'retention.ms'?"),
        ("cleanup-policy", "did you mean 'cleanup.policy'?"),
        ("log.retention.ms", "did you mean 'retention.ms'?"),
        ("CLEANUP.POLICY", "unknown setting 'CLEANUP.POLICY'"),
        ("", "unknown setting ''"),
        ("wal.sync", "is a setting of the broker"),
    ],
)
def test_unknown_key(key: str, hint: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^topic t: ") as caught:
        check_topic_config({key: "1"}, where="topic t")
    assert hint in str(caught.value)


def test_unknown_key_that_is_close_to_nothing_gets_no_hint() -> None:
    with pytest.raises(InvalidConfigError, match=r"^x: unknown setting 'zzz'$"):
        check_topic_config({"zzz": 1}, where="x")


def test_defaults() -> None:
    assert DEFAULTS.resolve("t", {}) == TopicSettings(
        cleanup_policy=frozenset({"delete"}),
        min_cleanable_dirty_ratio=0.5,
        dirty_ratio_basis="bytes",
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=None,
        delete_retention_ms=86_400_000,
        tombstone_clock="compaction",
        compaction_strategy="offset",
        compaction_strategy_header=None,
        compaction_strategy_header_format=None,
        compaction_strategy_header_missing="reject",
        null_key="keep",
        min_rewrite_ratio=0.3,
        garbage_max_ms=604_800_000,
        compaction_at_seal=True,
        retention_ms=604_800_000,
        retention_bytes=None,
        segment_bytes=1_073_741_824,
        segment_ms=604_800_000,
        segment_compression_type="zstd",
        tiering_lag_ms=300_000,
        local_retention_ms=86_400_000,
        local_retention_bytes=10_737_418_240,
        max_message_bytes=1_048_588,
        message_timestamp_type="CreateTime",
        message_timestamp_before_max_ms=None,
        message_timestamp_after_max_ms=3_600_000,
    )


@pytest.mark.parametrize(("cls", "table"), [(TopicSettings, TOPIC_SETTINGS), (BrokerConfig, BROKER_SETTINGS)])
def test_every_setting_is_an_attribute(cls: type, table: tuple) -> None:
    attributes = {field.name for field in dataclasses.fields(cls)}
    others = {"catalog", "spark", "topic_default_config", "_contents"} if cls is BrokerConfig else set()
    assert attributes == {setting.attribute for setting in table} | others
    assert len({setting.key for setting in table}) == len(table)


@pytest.mark.parametrize("setting", [*TOPIC_SETTINGS, *BROKER_SETTINGS], ids=lambda setting: setting.key)
def test_default_is_canonical(setting) -> None:
    if setting.default is not None:
        assert setting.canonical(setting.default, where="") == setting.default


def fits(value: object, hint: object) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    return type(value) is (origin or hint)


HEADER_STRATEGY = {
    "compaction.strategy": "header",
    "compaction.strategy.header": "version",
    "compaction.strategy.header.format": "text",
}


@pytest.mark.parametrize("own", [{}, HEADER_STRATEGY, *({key: text} for key, _, text in VALID)], ids=str)
def test_values_have_the_types_that_are_declared(own: dict[str, str]) -> None:
    settings = DEFAULTS.resolve("t", own)
    hints = typing.get_type_hints(TopicSettings)
    for field in dataclasses.fields(TopicSettings):
        assert fits(getattr(settings, field.name), hints[field.name]), field.name


@pytest.mark.parametrize(
    ("policy", "compacts", "deletes"),
    [("delete", False, True), ("compact", True, False), ("delete,compact", True, True)],
)
def test_policy(policy: str, compacts: bool, deletes: bool) -> None:
    settings = DEFAULTS.resolve("t", {"cleanup.policy": policy})
    assert (settings.compacts, settings.deletes) == (compacts, deletes)


@pytest.mark.parametrize("none", ["-1", "none", "9223372036854775807"])
@pytest.mark.parametrize("key", ["max.compaction.lag.ms", "message.timestamp.before.max.ms"])
def test_no_limit(key: str, none: str) -> None:
    settings = BrokerConfig.from_mapping({key: 5}, where="f").resolve("t", {key: none})
    assert getattr(settings, key.replace(".", "_")) is None


@pytest.mark.parametrize(
    ("own", "local_ms", "local_bytes"),
    [
        ({"local.retention.ms": "-2", "retention.ms": "5000"}, 5000, 10_737_418_240),
        ({"local.retention.ms": "-2", "retention.ms": "-1"}, None, 10_737_418_240),
        ({"local.retention.ms": "-1", "retention.ms": "5000"}, None, 10_737_418_240),
        ({"local.retention.ms": "0"}, 0, 10_737_418_240),
        ({"local.retention.ms": "5000", "retention.ms": "5000"}, 5000, 10_737_418_240),
        ({"local.retention.bytes": "-2", "retention.bytes": "7"}, 86_400_000, 7),
        ({"local.retention.bytes": "-2"}, 86_400_000, None),
        ({"local.retention.ms": "9", "retention.ms": "8", "cleanup.policy": "compact"}, 9, 10_737_418_240),
        # Only the retention is lowered: the default of the local one must not be an error, nor outlive it.
        ({"retention.ms": "5000"}, 5000, 10_737_418_240),
        ({"retention.bytes": "7"}, 86_400_000, 7),
        ({"retention.ms": "5000", "cleanup.policy": "compact"}, 86_400_000, 10_737_418_240),
    ],
)
def test_local_retention(own: dict[str, str], local_ms: int | None, local_bytes: int | None) -> None:
    settings = DEFAULTS.resolve("t", own)
    assert (settings.local_retention_ms, settings.local_retention_bytes) == (local_ms, local_bytes)


def test_default_local_retention_that_follows_is_explained() -> None:
    explained = {setting.key: setting for setting in DEFAULTS.explain("t", {"retention.ms": "5000"})}
    assert (explained["local.retention.ms"].value, explained["local.retention.ms"].source) == (
        "-2",
        "default",
    )


@pytest.mark.parametrize(
    ("file", "own", "parts"),
    [
        (
            {"min.compaction.lag.ms": 10},
            {"max.compaction.lag.ms": "9"},
            ["min.compaction.lag.ms is 10 (broker, f.yaml)", "max.compaction.lag.ms is 9 (topic)"],
        ),
        (
            {"namespaces": {"db": {"retention.ms": 8}}},
            {"local.retention.ms": "9"},
            ["local.retention.ms is 9 (topic)", "retention.ms is 8 (namespace db, f.yaml)"],
        ),
        (
            {},
            {"local.retention.bytes": "9", "retention.bytes": "8", "cleanup.policy": "compact,delete"},
            ["local.retention.bytes is 9 (topic)", "retention.bytes is 8 (topic)"],
        ),
        (
            {},
            {"local.retention.ms": "604800001"},
            ["local.retention.ms is 604800001 (topic)", "retention.ms is 604800000 (default)"],
        ),
        (
            {},
            {"compaction.strategy": "header", "compaction.strategy.header.format": "long"},
            ["compaction.strategy is header (topic)", "compaction.strategy.header is not set (default)"],
        ),
        (
            {"compaction.strategy.header": "version"},
            {"compaction.strategy": "header"},
            ["compaction.strategy.header.format is not set (default)", "`long` or `text`"],
        ),
    ],
)
def test_contradiction_names_both_and_where_each_comes_from(
    file: Mapping[str, object], own: dict[str, str], parts: list[str]
) -> None:
    config = BrokerConfig.from_mapping(file, where="f.yaml")
    with pytest.raises(InvalidConfigError, match=r"^topic db\.users: ") as caught:
        config.resolve("db.users", own)
    for part in parts:
        assert part in str(caught.value)


def test_lags_may_be_equal() -> None:
    settings = DEFAULTS.resolve("t", {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"})
    assert settings.min_compaction_lag_ms == settings.max_compaction_lag_ms == 9


def test_header_strategy_may_be_put_together_from_several_levels() -> None:
    config = BrokerConfig.from_mapping({"compaction.strategy.header": "version"}, where="f")
    own = {"compaction.strategy": "header", "compaction.strategy.header.format": "long"}
    settings = config.resolve("t", own)
    assert settings.compaction_strategy_header == "version"
    assert settings.compaction_strategy_header_format == "long"


def test_stored_settings_are_checked_again() -> None:
    with pytest.raises(InvalidConfigError, match=r"^topic t: retention.ms is 'soon'"):
        DEFAULTS.resolve("t", {"retention.ms": "soon"})


# Settings whose values can't contradict others, with several values each, among them the falsy ones.
INDEPENDENT = {
    "min.cleanable.dirty.ratio": ["0", "0.5", "1"],
    "delete.retention.ms": ["0", "1", "86400000"],
    "retention.ms": ["-1", "0", "604800000"],
    "tiering.lag.ms": ["0", "5", "300000"],
    "null.key": ["keep", "reject"],
}
LEVEL = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(texts) for key, texts in INDEPENDENT.items()}
)


@given(own=LEVEL, namespace=LEVEL, broker=LEVEL)
def test_the_first_level_that_gives_a_setting_decides_it(
    own: dict[str, str], namespace: dict[str, str], broker: dict[str, str]
) -> None:
    config = BrokerConfig.from_mapping({**broker, "namespaces": {"db": namespace}}, where="f")
    explained = {setting.key: setting for setting in config.explain("db.t", own)}
    for key in INDEPENDENT:
        expected = TOPIC_KEYS[key].default, "default"
        for level, source in ((broker, "broker"), (namespace, "namespace db"), (own, "topic")):
            if key in level:
                expected = level[key], source
        assert (explained[key].value, explained[key].source) == expected
        value = getattr(config.resolve("db.t", own), key.replace(".", "_"))
        assert value == TOPIC_KEYS[key].kind.parse(expected[0])


@given(
    st.sampled_from(TOPIC_SETTINGS),
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())),
)
def test_any_value_is_made_canonical_or_refused(setting, raw: object) -> None:
    try:
        checked = check_topic_config({setting.key: raw}, where="x")
    except InvalidConfigError:
        return
    text = checked[setting.key]
    assert setting.kind.parse(text) == setting.kind.parse(raw)
    assert check_topic_config(checked, where="x") == checked


@given(st.floats(min_value=0, max_value=1))
def test_a_ratio_survives_its_text(ratio: float) -> None:
    text = check_topic_config({"min.rewrite.ratio": ratio}, where="x")
    assert DEFAULTS.resolve("t", text).min_rewrite_ratio == ratio
