from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lastword.config.names import check_new_topic_name, check_topic_name, split_name
from lastword.errors import InvalidTopicError, TopicExistsError

PARTS = st.text(alphabet="abzABZ09_-", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "namespace", "rest"),
    [
        ("users", "default", "users"),
        ("db.users", "db", "users"),
        ("db.public.users", "db", "public.users"),
        ("default", "default", "default"),
        ("__consumer_offsets", "default", "__consumer_offsets"),
        ("defaults.users", "defaults", "users"),
        ("a" * 249, "default", "a" * 249),
    ],
)
def test_legal_names(name: str, namespace: str, rest: str) -> None:
    check_topic_name(name)
    assert split_name(name) == (namespace, rest)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "folders"),
        ("..", "folders"),
        ("a" * 250, "250 characters, at most 249"),
        ("a/b", "only the characters"),
        ("a b", "only the characters"),
        ("users\n", "only the characters"),
        ("größe", "only the characters"),
        ("a\0b", "only the characters"),
        (".users", "is empty"),
        ("db.", "is empty"),
        ("db..", "is empty"),
        ("db...", "is empty"),
        ("db..users", "is empty"),
        ("default.users", "named without it: 'users'"),
        ("Default.users", "named without it: 'users'"),
    ],
)
def test_illegal_names(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicError, match="is not allowed") as caught:
        check_topic_name(name)
    assert reason in str(caught.value)


def test_name_that_differs_only_in_case() -> None:
    with pytest.raises(
        InvalidTopicError, match=r"'db\.Users'.*differs from the topic 'db\.users' only in case"
    ):
        check_new_topic_name("db.Users", ["orders", "db.users"])


def test_name_that_is_taken() -> None:
    with pytest.raises(TopicExistsError, match="'users'"):
        check_new_topic_name("users", iter(["orders", "users"]))


def test_new_name_is_checked_like_any_other() -> None:
    with pytest.raises(InvalidTopicError):
        check_new_topic_name("db.", [])


def test_same_rest_in_other_namespaces_is_no_conflict() -> None:
    check_new_topic_name("db.users", ["users", "db2.users"])


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_two_names_never_have_the_same_namespace_and_rest(parts: list[str]) -> None:
    assume(len(parts) == 1 or parts[0].lower() != "default")
    name = ".".join(parts)
    check_topic_name(name)
    namespace, rest = split_name(name)
    assert rest
    assert namespace
    assert name == (rest if namespace == "default" else f"{namespace}.{rest}")
