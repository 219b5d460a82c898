"""Settings, with Kafka's key names. A topic's own value overrides its namespace's, then the broker's, then the default.

keys.py      the tables of all settings, the source of checks, defaults and the reference page
values.py    the kinds of values that settings have
document.py  YAML text or nested mappings, split into one entry per value
broker.py    the broker's settings
topic.py     a topic's settings
names.py     topic names: the legal ones, and the namespace of a name
masking.py   catalog properties without secrets
"""

from lastword.config.broker import BrokerConfig
from lastword.config.names import (
    check_new_topic_name,
    check_not_internal,
    check_topic_name,
    is_internal,
    split_name,
)
from lastword.config.topic import EffectiveSetting, TopicSettings, check_topic_config
from lastword.config.values import WalSync

__all__ = [
    "BrokerConfig",
    "EffectiveSetting",
    "TopicSettings",
    "WalSync",
    "check_new_topic_name",
    "check_not_internal",
    "check_topic_config",
    "check_topic_name",
    "is_internal",
    "split_name",
]
