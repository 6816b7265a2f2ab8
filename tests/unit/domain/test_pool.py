from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.domain.pool import Pool, languages

DE_EN = frozenset({"de", "en"})


def test_a_pair_asks_for_one_language_heard_and_one_written() -> None:
    assert languages("de", "en", lang_a="fr", lang_b="zh") == (frozenset({"de"}), frozenset({"en"}))


def test_auto_between_two_languages_asks_for_both_directions() -> None:
    assert languages("auto", "en", lang_a="de", lang_b="en") == (DE_EN, DE_EN)


def test_auto_alone_asks_only_for_what_is_written() -> None:
    assert languages("auto", "en") == (frozenset[str](), frozenset({"en"}))
    assert languages("auto", "en", lang_a="de") == (frozenset[str](), frozenset({"en"}))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "discard", "shut", "reopen"]), st.sampled_from("abcdefg")), max_size=60)
)
def test_the_open_nodes_are_in_front_and_nobody_is_lost_or_doubled(steps: list[tuple[str, str]]) -> None:
    pool = Pool(frozenset(), frozenset(), "ab")
    members, shut = {"a", "b"}, set[str]()
    for step, node_id in steps:
        getattr(pool, step)(node_id)
        if step == "add" and node_id not in members:
            members.add(node_id)
            shut.discard(node_id)
        elif step == "discard":
            members.discard(node_id)
            shut.discard(node_id)
        elif step == "shut" and node_id in members:
            shut.add(node_id)
        elif step == "reopen":
            shut.discard(node_id)
        assert sorted(pool.ids) == sorted(members)
        assert len(pool) == len(members)
        assert set(pool.ids[: pool.open]) == members - shut
        assert all((node_id in pool) == (node_id in members) for node_id in "abcdefg")
