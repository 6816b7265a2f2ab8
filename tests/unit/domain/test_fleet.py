from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain import fleet as fleet_module
from dragoman.domain.fleet import WHOLE_NODE, Fleet, Node


def node(node_id: str, asr: str = "de en", semantic: str = "de en", epoch: int = 1, **changed: object) -> Node:
    made = Node(
        id=node_id,
        epoch=epoch,
        instance="here",
        slots=4,
        asr=frozenset(asr.split()),
        semantic=frozenset(semantic.split()),
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def fleet_of(*nodes: Node) -> Fleet:
    fleet = Fleet()
    for each in nodes:
        fleet.upsert(each)
    return fleet


def test_job_without_a_target_wants_only_the_source() -> None:
    fleet = fleet_of(node("hears", asr="de", semantic=""), node("other", asr="fr"))
    assert list(fleet.pool("de", "")) == ["hears"]
    assert list(fleet.pool("de", "de")) == []


def test_job_of_any_language_without_a_target_wants_any_node_that_recognises() -> None:
    fleet = fleet_of(node("one"), node("texts", asr="", semantic=""))
    assert list(fleet.pool("auto", "")) == ["one"]


def test_speech_is_served_only_by_a_node_that_is_not_draining() -> None:
    fleet = fleet_of(node("a", asr="de", semantic="en"))
    assert fleet.serves_speech("de", "en")
    assert not fleet.serves_speech("en", "de")
    fleet.upsert(node("a", asr="de", semantic="en", draining=True))
    assert not fleet.serves_speech("de", "en")


def test_news_of_an_earlier_life_is_refused() -> None:
    fleet = fleet_of(node("a", epoch=5))
    assert not fleet.upsert(node("a", epoch=4, asr="fr"))
    assert list(fleet.pool("de", "en")) == ["a"]
    assert fleet.upsert(node("a", epoch=5))
    assert fleet.upsert(node("a", epoch=6))


def test_the_end_of_an_earlier_life_does_not_remove_the_present_one() -> None:
    fleet = fleet_of(node("a", epoch=5))
    assert not fleet.remove("a", epoch=4)
    assert "a" in fleet
    assert fleet.remove("a", epoch=5)
    assert not fleet.remove("a")


def test_the_end_of_a_later_life_than_we_know_ends_the_earlier_one_too() -> None:
    fleet = fleet_of(node("a", epoch=5))
    assert fleet.remove("a", epoch=6)


def test_reservations_of_this_instance_are_counted() -> None:
    fleet = fleet_of(node("a"))
    fleet.reserve_slot("a")
    fleet.reserve_slot("a")
    assert fleet.reserved("a") == 2
    fleet.release_slot("a")
    fleet.release_slot("a")
    fleet.release_slot("a")
    assert fleet.reserved("a") == 0


def test_released_reservations_reopen_every_filled_node() -> None:
    fleet = fleet_of(node("a"), node("b"))
    pool = fleet.find("de", "en")
    for id in ("a", "a", "b"):
        fleet.reserve_slot(id)
    fleet.mark_full("a")
    fleet.full_until("b", 10.0)
    fleet.release_all_slots()
    assert (fleet.reserved("a"), fleet.reserved("b")) == (0, 0)
    assert pool is not None
    assert pool.free == 2
    assert not fleet.full("b", 5.0)


def test_jobs_on_a_node_that_left_and_came_back_are_still_given_back() -> None:
    fleet = fleet_of(node("a"))
    fleet.reserve_slot("a")
    fleet.remove("a")
    fleet.upsert(node("a", epoch=2))
    fleet.reserve_slot("a")
    fleet.release_slot("a")
    assert fleet.reserved("a") == 1


def test_load_adds_what_a_node_runs_for_others() -> None:
    fleet = fleet_of(node("a"))
    fleet.reserve_slot("a")
    fleet.upsert(node("a", running=3))
    assert fleet.load("a") == 3
    fleet.reserve_slot("a")
    assert fleet.load("a") == 4
    fleet.upsert(node("a", running=0))
    assert fleet.load("a") == 2


def test_a_refusal_holds_until_it_lapses_or_a_slot_goes_back() -> None:
    fleet = fleet_of(node("a"))
    fleet.full_until("a", 10.0)
    assert fleet.full("a", 9.9)
    assert not fleet.full("a", 10.0)
    fleet.freed("a")
    assert not fleet.full("a", 9.9)
    fleet.full_until("a", 10.0)
    fleet.release_slot("a")
    assert not fleet.full("a", 9.9)


def test_a_new_life_begins_with_free_slots() -> None:
    fleet = fleet_of(node("a"))
    fleet.full_until("a", 10.0)
    fleet.upsert(node("a", epoch=2))
    assert not fleet.full("a", 0.0)


def test_a_node_found_full_is_set_apart_in_every_pool_until_a_slot_goes_back() -> None:
    fleet = fleet_of(node("a"), node("b"))
    pools = [fleet.find("de", "en"), fleet.find("auto", "en")]
    fleet.mark_full("a")
    assert [pool and pool.ids[: pool.free] for pool in pools] == [["b"], ["b"]]
    assert sorted(fleet.pool("de", "en")) == ["a", "b"]
    fleet.freed("a")
    assert [pool and pool.free for pool in pools] == [2, 2]


def test_a_node_set_apart_by_a_refusal_is_open_again_when_that_lapses() -> None:
    fleet = fleet_of(node("a"))
    pool = fleet.find("de", "en")
    assert pool is not None
    fleet.full_until("a", 5.0)
    fleet.full_until("a", 10.0)
    fleet.mark_full("a")
    fleet.expire_refusals(9.9)
    assert pool.free == 0
    fleet.expire_refusals(10.0)
    assert pool.free == 1


def test_a_node_that_was_set_apart_and_left_comes_back_open() -> None:
    fleet = fleet_of(node("a"))
    pool = fleet.find("de", "en")
    assert pool is not None
    fleet.mark_full("a")
    fleet.remove("a")
    assert (pool.ids, pool.free) == ([], 0)
    fleet.upsert(node("a", epoch=2))
    assert (pool.ids, pool.free) == (["a"], 1)


def test_a_service_cools_down_alone_and_the_whole_node_for_all() -> None:
    fleet = fleet_of(node("a"))
    fleet.cool("a", "asr", 60.0)
    assert fleet.cooling("a", "asr", 59.9)
    assert not fleet.cooling("a", "asr", 60.0)
    fleet.cool("a", WHOLE_NODE, 100.0)
    assert fleet.cooling("a", "tts", 99.9)
    assert not fleet.cooling("a", "tts", 100.0)
    assert not fleet.cooling("b", "asr", 0.0)


def test_a_shorter_cool_down_does_not_cut_a_longer_one_short() -> None:
    fleet = fleet_of(node("a"))
    fleet.cool("a", "asr", 60.0)
    fleet.cool("a", "asr", 50.0)
    assert fleet.cooling("a", "asr", 55.0)


def test_a_node_that_comes_back_still_cools_down() -> None:
    fleet = fleet_of(node("a"))
    fleet.cool("a", "asr", 60.0)
    fleet.remove("a")
    fleet.upsert(node("a", epoch=2))
    assert fleet.cooling("a", "asr", 10.0)


def test_number_of_language_pools_is_bounded() -> None:
    langs = " ".join(f"l{n}" for n in range(30))
    fleet = fleet_of(node("a", asr=langs, semantic=langs))
    for n in range(1000):
        assert list(fleet.pool(f"nonsense-{n}", "l1")) == []
    assert len(fleet._pools) == 0
    for src in langs.split():
        for tgt in langs.split():
            assert list(fleet.pool(src, tgt)) == ["a"]
    assert len(fleet._pools) == fleet_module.MAX_POOLS
    for n in range(fleet_module.MAX_COOLING + 10):
        fleet.cool(f"node-{n}", "asr", 60.0)
    assert len(fleet._cooling) == fleet_module.MAX_COOLING


LANGS = ["de", "en", "fr"]
SOME = st.frozensets(st.sampled_from(LANGS))
READY = st.sampled_from([None, frozenset({"asr", "tts"}), frozenset({"asr"})])
CHANGE = st.tuples(st.sampled_from(["upsert"] * 3 + ["remove"]), st.sampled_from("abcd"), SOME, SOME, SOME, READY)
Query = tuple[str, str, str | None, str | None, bool]
QUERIES: list[Query] = [
    *((src, tgt, None, None, voice) for src in [*LANGS, "auto", "xx"] for tgt in LANGS for voice in (False, True)),
    *(("auto", a, a, b, voice) for a in LANGS for b in LANGS for voice in (False, True)),
]


def able(one: Node, src: str, tgt: str, a: str | None, b: str | None, voice: bool) -> bool:
    """The oracle: ask one node, pair by pair."""
    spoken = {a, b} if src == "auto" and a and b else {tgt}
    if voice and not (spoken <= one.tts and (one.ready is None or "tts" in one.ready)):
        return False
    pairs = {(heard, written) for heard in one.asr for written in one.semantic}
    if src != "auto":
        return (src, tgt) in pairs
    if a and b:
        return {(a, b), (b, a), (a, a), (b, b)} <= pairs
    return any(written == tgt for _, written in pairs)


@given(st.lists(st.tuples(CHANGE, st.sampled_from(QUERIES)), max_size=25))
def test_every_pool_holds_just_the_nodes_that_serve_it(
    steps: list[tuple[tuple[str, str, frozenset[str], frozenset[str], frozenset[str], frozenset[str] | None], Query]],
) -> None:
    fleet, alive = Fleet(), dict[str, Node]()
    for (what, node_id, asr, semantic, tts, ready), query in steps:
        if what == "upsert":
            alive[node_id] = node(node_id, " ".join(asr), " ".join(semantic), tts=tts, ready=ready)
            fleet.upsert(alive[node_id])
        else:
            alive.pop(node_id, None)
            fleet.remove(node_id)
        assert len(fleet) == len(alive)
        # One query a step, so that some pools are kept through many changes and others are built late.
        assert sorted(fleet.pool(*query)) == sorted(n.id for n in alive.values() if able(n, *query))
    for query in QUERIES:
        assert sorted(fleet.pool(*query)) == sorted(n.id for n in alive.values() if able(n, *query))


# -- text jobs -------------------------------------------------------------------------------------


def text_node(node_id: str, *pairs: str, **changed: object) -> Node:
    """A node that only translates text; pairs as in `en-es`."""
    found = [(src, tgt) for src, _, tgt in (pair.partition("-") for pair in pairs)]
    return replace(node(node_id, asr="", semantic=""), **{"text": frozenset(found)} | changed)  # type: ignore[arg-type]


def text_pool(fleet: Fleet, src: str, tgt: str, voice: bool = False) -> list[str]:
    pool = fleet.find_text(src, tgt, voice)
    return [] if pool is None else sorted(pool.ids)


def test_text_pool_has_the_nodes_of_the_pair_and_those_that_detect_the_source() -> None:
    fleet = fleet_of(
        text_node("pair", "en-es"), text_node("detects", "auto-es"), text_node("back", "es-en"), node("whole")
    )
    assert text_pool(fleet, "en", "es") == ["detects", "pair"]
    assert text_pool(fleet, "auto", "es") == ["detects"]
    assert text_pool(fleet, "es", "en") == ["back"]
    assert text_pool(fleet, "de", "en") == []


def test_text_only_node_is_in_no_pool_of_speech() -> None:
    fleet = fleet_of(text_node("a", "de-en", "auto-en"))
    assert list(fleet.pool("de", "en")) == []
    assert list(fleet.pool("auto", "en")) == []


def test_text_pool_follows_the_nodes_that_come_go_and_change() -> None:
    fleet = fleet_of(text_node("a", "en-es"))
    assert text_pool(fleet, "en", "es") == ["a"]
    fleet.upsert(text_node("b", "auto-es"))
    assert text_pool(fleet, "en", "es") == ["a", "b"]
    fleet.upsert(text_node("a", "en-fr"))
    assert text_pool(fleet, "en", "es") == ["b"]
    assert text_pool(fleet, "en", "fr") == ["a"]
    fleet.remove("b")
    assert text_pool(fleet, "en", "es") == []


def test_text_pool_with_a_voice_has_the_nodes_that_speak_the_target() -> None:
    speaks = text_node("speaks", "en-es", tts=frozenset({"es"}))
    fleet = fleet_of(speaks, text_node("mute", "en-es"), text_node("other", "en-es", tts=frozenset({"en"})))
    assert text_pool(fleet, "en", "es", voice=True) == ["speaks"]
    fleet.upsert(replace(speaks, ready=frozenset({"nmt"})))
    assert text_pool(fleet, "en", "es", voice=True) == []


def test_text_is_served_while_a_node_of_the_pair_is_not_draining() -> None:
    fleet = fleet_of(text_node("a", "en-es"))
    assert fleet.serves_text("en", "es")
    assert not fleet.serves_text("auto", "es")
    assert not fleet.serves_text("es", "en")
    fleet.upsert(text_node("a", "en-es", draining=True))
    assert not fleet.serves_text("en", "es")
    fleet.upsert(text_node("b", "auto-es"))
    assert fleet.serves_text("en", "es")


PAIRS = st.frozensets(st.tuples(st.sampled_from(["auto", "de", "en"]), st.sampled_from(["en", "fr"])), max_size=4)


@given(st.lists(st.tuples(st.sampled_from("abc"), PAIRS | st.none()), max_size=30))
def test_text_pools_that_are_kept_equal_pools_that_are_built_anew(changes: list[tuple[str, object]]) -> None:
    asked = [(src, tgt, voice) for src in ("auto", "de", "en") for tgt in ("en", "fr") for voice in (False, True)]
    kept = Fleet()
    for node_id, pairs in changes:
        if pairs is None:
            kept.remove(node_id)
        else:
            kept.upsert(text_node(node_id, text=pairs, tts=frozenset({"fr"} if node_id == "a" else ())))
        anew = fleet_of(*kept.nodes())
        for src, tgt, voice in asked:
            assert text_pool(kept, src, tgt, voice) == text_pool(anew, src, tgt, voice)
