"""Where a call stands: keys, escaping, occurrences, and which records are the last of their branch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.actors.core.scope import VALUE, WAIT, Scope, Tail, escape

HOSTILE = [
    "a#2",
    "a%232",
    "g1.0/x",
    "g1.0%2Fx",
    "@wait",
    "%40wait",
    "@value#2",
    "%",
    "%25",
    "%2",
    "#",
    "/",
    "//",
    "a/",
    "/a",
    "日本語",
    "a b",
    "a\nb",
    "a\x00b",
    "…@wait",
    "a@wait",
    "g1.0",
    "x" * 5000,
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet="ag1.0#/%@2 5F0é", min_size=1, max_size=8))


@pytest.mark.parametrize("plain", ["a", "price:sku-1", "日本語", "a b", "a@wait", "g1.0", "a.b:c-d_e"])
def test_an_ordinary_id_is_its_own_key(plain: str) -> None:
    assert escape(plain) == plain
    assert Scope().key(escape(plain)) == plain


def test_hostile_ids_have_keys_of_their_own() -> None:
    root = Scope()
    keys = [root.key(escape(each)) for each in HOSTILE]
    keys += [
        root.key(WAIT),
        root.key(WAIT),
        root.key(VALUE),
        root.key(VALUE),
        root.key(escape("a")),
        root.key(escape("a")),
    ]
    leg = root.leg(root.next_gather(), 0)
    keys += [leg.key(escape("x")), leg.key(escape("x"))]
    assert len(set(keys)) == len(keys)


@given(one=texts, other=texts)
def test_escaping_keeps_ids_apart(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(label=texts)
def test_an_escaped_id_looks_like_no_path_no_occurrence_and_no_label_of_the_engine(label: str) -> None:
    escaped = escape(label)
    assert "/" not in escaped
    assert "#" not in escaped
    assert not escaped.startswith("@")


@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=25))
def test_calls_in_any_scopes_never_share_a_key(calls: list[tuple[int, str]]) -> None:
    root = Scope()
    first, second = root.next_gather(), root.next_gather()
    inner = root.leg(first, 0)
    scopes = [root, inner, root.leg(second, 1), inner.leg(inner.next_gather(), 0)]
    keys = [scopes[which].key(escape(label)) for which, label in calls]
    assert len(set(keys)) == len(keys)


def test_occurrences_count_from_one_for_each_id_and_scope() -> None:
    root = Scope()
    assert [root.key("a"), root.key("b"), root.key("a"), root.key("a")] == ["a", "b", "a#2", "a#3"]
    leg = root.leg(root.next_gather(), 4)
    assert [leg.key("a"), leg.key("a")] == ["g1.4/a", "g1.4/a#2"]
    assert root.key("a") == "a#4"


def test_gathers_count_in_their_own_scope() -> None:
    root = Scope()
    outer = root.next_gather()
    leg = root.leg(outer, 2)
    assert leg.leg(leg.next_gather(), 0).key("x") == "g1.2/g1.0/x"
    assert root.leg(root.next_gather(), 0).key("x") == "g2.0/x"


def test_only_the_root_is_outside_gathers() -> None:
    root = Scope()
    assert not root.in_gather
    assert root.leg(root.next_gather(), 0).in_gather


@pytest.mark.parametrize(
    ("later", "key", "last"),
    [
        ([], "x", True),
        ([], "g1.0/x", True),
        (["y"], "x", False),
        (["g1.0/y"], "x", False),
        (["y"], "g1.0/x", False),
        (["g1.0/y"], "g1.0/x", False),
        (["g1.1/y"], "g1.0/x", True),
        (["g1.1/y", "g1.2/z"], "g1.0/x", True),
        (["g1.1/y", "g1.0/z"], "g1.0/x", False),
        (["g2.1/y"], "g1.0/x", False),
        (["g1.10/y"], "g1.1/x", True),
        (["g10.0/y"], "g1.1/x", False),
        (["g1.0/g1.1/y"], "g1.0/x", False),
        (["g1.0/y"], "g1.0/g1.0/x", False),
        (["g1.0/g1.1/y"], "g1.0/g1.0/x", True),
        (["g1.0/g2.1/y"], "g1.0/g1.0/x", False),
        (["g1.1/y"], "g1.0/g1.0/x", True),
        (["g1.1/g3.0/y"], "g1.0/g1.0/x", True),
    ],
)
def test_the_last_record_of_a_branch(later: list[str], key: str, last: bool) -> None:
    tail = Tail()
    for each in later:
        tail.add(each)
    assert tail.is_last(key) is last


def test_nothing_before_a_record_of_the_root_is_last() -> None:
    tail = Tail()
    assert tail.add("g1.0/x")
    assert not tail.add("x")


def test_threads_and_maps_have_scopes_of_their_own() -> None:
    root = Scope()
    leg = root.leg(root.next_gather(), 0)
    assert [root.next_thread(), root.next_thread(), leg.next_thread()] == ["thread:1/", "thread:2/", "g1.0/thread:1/"]
    first, second = root.next_map(), root.next_map()
    assert [root.item(first, 0), root.item(second, 3)] == ["map:1:0/", "map:2:3/"]
    assert not root.in_thread
    assert not leg.in_thread
    assert Scope("g1.0/thread:1/").in_thread
    assert Scope("map:1:0/g1.0/").in_thread


def test_items_of_a_map_stand_beside_each_other_and_thread_calls_in_sequence() -> None:
    def last_of(*keys: str) -> list[str]:
        tail, found = Tail(), []
        for key in reversed(keys):
            if tail.is_last(key):
                found.append(key)
            tail.add(key)
        return sorted(found)

    assert last_of("map:1:0/a", "map:1:1/a", "map:1:1/b") == ["map:1:0/a", "map:1:1/b"]
    assert last_of("map:1:0/a", "map:2:0/a") == ["map:2:0/a"]
    assert last_of("thread:1/a", "thread:2/a") == ["thread:2/a"]
    assert last_of("map:1:0/a", "b") == ["b"]
