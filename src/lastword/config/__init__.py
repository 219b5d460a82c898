"""Settings: a topic's own over its namespace's over the broker's over the default. Kafka's key names.

keys.py      the tables of all settings: checks, defaults and the reference page come from here
values.py    the kinds of values that settings have
document.py  YAML text or nested mappings, taken apart into one entry a value
broker.py    the broker's settings
topic.py     a topic's settings
names.py     topic names: what is legal, and the namespace of a name
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
