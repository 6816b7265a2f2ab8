import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.fleet import WHOLE_NODE, Fleet, Node
from dragoman.domain.placement import (
    MAX_DRAWS,
    MAX_NAMES,
    AffinityResult,
    Ask,
    Assign,
    NoNode,
    Receipt,
    Wait,
    select_node,
)
from support.tables import for_each

DE_EN = frozenset({"de", "en"})
ASK = Ask("de", "en", needs=frozenset({"asr", "nmt"}))


def node(node_id: str, instance: str = "there", slots: int = 4, **changed: object) -> Node:
    made = Node(id=node_id, epoch=1, instance=instance, slots=slots, asr=DE_EN, semantic=DE_EN)
    return replace(made, **changed)  # type: ignore[arg-type]


def fleet_of(*nodes: Node) -> Fleet:
    fleet = Fleet()
    for each in nodes:
        fleet.upsert(each)
    return fleet


def ask(**changed: object) -> Ask:
    return replace(ASK, **changed)  # type: ignore[arg-type]


def take(fleet: Fleet, node_id: str, slots: int) -> None:
    for _ in range(slots):
        fleet.reserve_slot(node_id)


def place(asked: Ask, fleet: Fleet, now: float = 0.0, refused: frozenset[str] = frozenset(), seed: int = 0) -> str:
    """The chosen node, or the reason why none."""
    match select_node(asked, fleet, now, random.Random(seed), "here", refused):
        case Assign(node_id=node_id):
            return node_id
        case Wait(reason=reason):
            return reason


def chosen_of(asked: Ask, fleet: Fleet, refused: frozenset[str] = frozenset()) -> set[str]:
    """Whom chance may choose."""
    return {place(asked, fleet, refused=refused, seed=seed) for seed in range(50)}


def test_an_assignment_says_which_life_of_the_node_and_how_many_slots_it_has() -> None:
    placed = select_node(ASK, fleet_of(node("a", epoch=7, slots=2)), 0.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert (placed.node_id, placed.epoch, placed.limit, placed.affinity) == ("a", 7, 2, None)


def test_of_two_equals_elsewhere_chance_decides() -> None:
    assert chosen_of(ASK, fleet_of(node("a"), node("b"))) == {"a", "b"}


@for_each(["asr", "nmt", WHOLE_NODE])
def test_a_node_that_cools_down_for_a_service_of_the_job_is_left_out(service: str) -> None:
    fleet = fleet_of(node("a"), node("b"))
    fleet.cool("a", service, until=60.0)
    assert chosen_of(ASK, fleet) == {"b"}
    fleet.remove("b")
    assert place(ASK, fleet, now=59.9) == NoNode.ALL_COOLING_DOWN
    assert place(ASK, fleet, now=60.0) == "a"


def test_a_node_that_has_seen_the_job_is_not_asked_again() -> None:
    fleet = fleet_of(node("a"), node("b"))
    assert chosen_of(ask(seen=frozenset({"a"})), fleet) == {"b"}
    assert place(ask(seen=frozenset({"a", "b"})), fleet) == NoNode.NO_NODE_IN_POOL


def test_a_node_that_takes_a_job_again_is_the_last_choice_and_needs_no_second_slot() -> None:
    fleet = fleet_of(node("a", slots=1, features=frozenset({"reattempt"})), node("b"))
    fleet.reserve_slot("a")
    take(fleet, "b", 3)
    seen = ask(seen=frozenset({"a"}))
    assert chosen_of(seen, fleet) == {"b"}
    fleet.reserve_slot("b")
    assert chosen_of(seen, fleet) == {"a"}
    assert chosen_of(seen, fleet, refused=frozenset({"a"})) == {NoNode.ALL_FULL}


def test_a_full_node_is_left_out_until_a_slot_goes_back() -> None:
    fleet = fleet_of(node("a", slots=1))
    fleet.reserve_slot("a")
    assert place(ASK, fleet) == NoNode.ALL_FULL
    fleet.release_slot("a")
    assert place(ASK, fleet) == "a"


def test_a_node_that_refused_is_left_out_until_a_slot_can_lapse() -> None:
    fleet = fleet_of(node("a"))
    fleet.full_until("a", 10.0)
    assert place(ASK, fleet, now=9.0) == NoNode.ALL_FULL
    assert place(ASK, fleet, now=10.0) == "a"


def test_a_node_without_a_gpu_queue_is_preferred_to_one_with_more_free_slots() -> None:
    fleet = fleet_of(node("a", slots=8, gpu_queue=1), node("b", slots=2))
    assert chosen_of(ASK, fleet) == {"b"}
    assert chosen_of(ask(turn_bound=True), fleet) == {"b"}


def test_a_node_without_a_gpu_queue_is_found_among_several_that_have_one() -> None:
    fleet = fleet_of(*(node(f"q{n}", gpu_queue=1) for n in range(MAX_DRAWS - 1)), node("idle"))
    assert chosen_of(ASK, fleet) == {"idle"}


def test_a_node_that_had_no_later_utterance_of_the_session_is_preferred() -> None:
    fleet = fleet_of(node("a", slots=8), node("b", slots=1, gpu_queue=1))
    assert chosen_of(ask(later=frozenset({"a"})), fleet) == {"b"}
    assert chosen_of(ask(later=frozenset({"a", "b"})), fleet) == {"a"}


def test_a_node_that_failed_the_job_is_not_asked_again_even_if_it_takes_jobs_again() -> None:
    fleet = fleet_of(node("a", features=frozenset({"reattempt"})))
    assert place(ask(seen=frozenset({"a"})), fleet) == "a"
    assert place(ask(seen=frozenset({"a"}), failed=frozenset({"a"})), fleet) == NoNode.NO_NODE_IN_POOL


def test_a_paused_node_gets_no_job_and_after_the_pause_one_at_a_time() -> None:
    fleet = fleet_of(node("a", slots=4))
    fleet.pause("a", until=10.0)
    assert place(ASK, fleet, now=9.9) == NoNode.ALL_COOLING_DOWN
    placed = select_node(ASK, fleet, 10.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert placed.limit == 1, "Redis refuses a second one, of whatever instance"
    fleet.reserve_slot("a")
    assert place(ASK, fleet, now=10.0) == NoNode.ALL_FULL
    fleet.resume("a")
    assert place(ASK, fleet, now=10.0) == "a"


def test_a_turn_does_not_stay_on_a_node_that_fails() -> None:
    fleet = fleet_of(node("mine"), node("a"))
    bound = ask(turn_node="mine", turn_bound=True)
    fleet.pause("mine", until=10.0)
    assert affinity_of(bound, fleet) == ("a", AffinityResult.NOT_IN_POOL)
    fleet.pause("mine", until=-1.0)
    assert affinity_of(bound, fleet)[1] is AffinityResult.NOT_IN_POOL


def test_a_job_that_finds_only_cooling_nodes_learns_when_the_first_is_back() -> None:
    fleet = fleet_of(node("a"), node("b"), node("c"))
    fleet.cool("a", "asr", until=60.0)
    fleet.cool("b", WHOLE_NODE, until=30.0)
    fleet.pause("b", until=40.0)
    fleet.pause("c", until=50.0)
    waits = select_node(ASK, fleet, 0.0, random.Random(0), "here")
    assert isinstance(waits, Wait)
    assert waits.receipt.names == {"a": "cooling_down", "b": "cooling_down", "c": "failing"}
    assert waits.until == 40.0
    assert waits.why(now=0.0) == "all cooling down, the first for another 40 s"


# -- turns


def test_select_node_turn_affinity_contract() -> None:
    """One node, one look, no second try: the turn's node if it is connected and eligible, else anyone."""
    others = [node(f"n{n}") for n in range(9)]
    fleet = fleet_of(node("mine"), *others)
    take(fleet, "mine", 4)
    bound = ask(turn_node="mine", turn_bound=True)
    for seed in range(50):
        placed = select_node(bound, fleet, 0.0, random.Random(seed), "here")
        assert isinstance(placed, Assign)
        assert (placed.node_id, placed.affinity, placed.limit) == ("mine", AffinityResult.HIT, 8)
        assert placed.receipt == Receipt(pool=10, chosen="mine", affinity=AffinityResult.HIT)
    fleet.remove("mine")
    placed = select_node(bound, fleet, 0.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert (placed.affinity, placed.limit) == (AffinityResult.OFFLINE, 4)


def affinity_of(asked: Ask, fleet: Fleet, refused: frozenset[str] = frozenset()) -> tuple[str, AffinityResult | None]:
    placed = select_node(asked, fleet, 0.0, random.Random(0), "here", refused)
    assert isinstance(placed, Assign)
    assert placed.affinity is placed.receipt.affinity
    return placed.node_id, placed.affinity


def test_the_first_job_of_a_turn_is_placed_freely() -> None:
    assert affinity_of(ask(turn_bound=True), fleet_of(node("a"))) == ("a", AffinityResult.FIRST)


def test_a_turns_node_is_taken_beyond_its_slots_but_not_beyond_the_overcommit() -> None:
    fleet = fleet_of(node("mine", gpu_queue=5), node("a"))
    bound = ask(turn_node="mine", turn_bound=True)
    fleet.full_until("mine", 99.0)
    take(fleet, "mine", 7)
    assert affinity_of(bound, fleet) == ("mine", AffinityResult.HIT)
    fleet.reserve_slot("mine")
    assert affinity_of(bound, fleet) == ("a", AffinityResult.FULL)


# -- voices

WITH_VOICE = ask(voice=True)
EN = frozenset({"en"})
TEXT_ONLY = frozenset({"asr", "nmt"})


def test_a_node_that_speaks_the_target_language_is_chosen_when_audio_is_wanted() -> None:
    mute = [node(f"mute{n}", slots=9) for n in range(200)]
    not_ready = node("not-ready", slots=9, tts=EN, ready=TEXT_ONLY)
    other_language = node("other-language", slots=9, tts=frozenset({"de"}))
    fleet = fleet_of(*mute, not_ready, other_language, node("speaks", slots=1, tts=EN))
    assert chosen_of(WITH_VOICE, fleet) == {"speaks"}


@pytest.mark.parametrize("speaks", [node("speaks", tts=EN, slots=1), node("speaks", tts=EN, draining=True)])
def test_a_node_without_a_voice_serves_when_no_node_with_one_can(speaks: Node) -> None:
    fleet = fleet_of(node("mute", ready=TEXT_ONLY), speaks)
    fleet.reserve_slot("speaks")
    assert chosen_of(WITH_VOICE, fleet) == {"mute"}
    fleet.remove("speaks")
    assert chosen_of(WITH_VOICE, fleet) == {"mute"}


def test_a_turn_stays_on_its_node_when_that_has_no_voice() -> None:
    fleet = fleet_of(node("mine", ready=TEXT_ONLY), node("speaks", tts=EN))
    assert affinity_of(ask(turn_node="mine", turn_bound=True, voice=True), fleet) == ("mine", AffinityResult.HIT)


@for_each(
    [
        (node("a", tts=EN), False, False),
        (node("a", ready=TEXT_ONLY), True, True),
        (node("a", ready=None), False, True),  # it may have a voice for the language and not say so
    ]
)
def test_an_assignment_is_for_text_only_when_the_node_says_it_has_no_voice(
    one: Node, text_only: bool, receipt_says: bool
) -> None:
    placed = select_node(WITH_VOICE, fleet_of(one), 0.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert (placed.text_only, placed.receipt.text_only) == (text_only, receipt_says)
    wanted_no_audio = select_node(ASK, fleet_of(one), 0.0, random.Random(0), "here")
    assert isinstance(wanted_no_audio, Assign)
    assert not wanted_no_audio.text_only
    assert not wanted_no_audio.receipt.text_only


def test_a_node_whose_voice_cools_down_is_asked_for_text_only_when_no_other_node_can() -> None:
    fleet = fleet_of(node("a", tts=EN), node("b", tts=EN))
    fleet.cool("a", "tts", until=60.0)
    assert chosen_of(WITH_VOICE, fleet) == {"b"}
    fleet.remove("b")
    placed = select_node(WITH_VOICE, fleet, 0.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert (placed.node_id, placed.text_only) == ("a", True)


# -- receipts


def test_a_receipt_tells_pool_candidates_and_choice() -> None:
    placed = select_node(ASK, fleet_of(*(node(f"n{n}") for n in range(20))), 0.0, random.Random(1), "here")
    assert isinstance(placed, Assign)
    assert placed.receipt.pool == 20
    assert len(placed.receipt.drawn) == 2
    assert placed.receipt.chosen in placed.receipt.drawn
    assert not placed.receipt.counts
    assert not placed.receipt.names


def test_receipt_without_a_node_counts_the_reasons_and_names_examples() -> None:
    fleet = fleet_of(*(node(f"d{n}", draining=True) for n in range(20)), *(node(f"f{n}", slots=1) for n in range(5)))
    for n in range(5):
        fleet.reserve_slot(f"f{n}")
    for _ in range(20):  # whichever nodes were found full and set apart by then
        waits = select_node(ASK, fleet, 0.0, random.Random(0), "here")
        assert isinstance(waits, Wait)
        assert waits.receipt.pool == 25
        assert waits.receipt.counts == {"draining": 20, "full": 5}
        assert len(waits.receipt.names) == MAX_NAMES
        assert all(why == {"d": "draining", "f": "full"}[name[0]] for name, why in waits.receipt.names.items())


def test_a_receipt_can_be_kept_as_json() -> None:
    waits = select_node(ask(turn_bound=True), fleet_of(node("a", draining=True)), 0.0, random.Random(0), "here")
    assert msgspec.json.decode(msgspec.json.encode(waits.receipt), type=Receipt) == waits.receipt


# -- what it costs, and how even it is


class CountingFleet(Fleet):
    """Counts how often a node is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0

    def get(self, node_id: str) -> Node | None:
        self.looked += 1
        return super().get(node_id)


def looks(fleet: CountingFleet, asked: Ask = ASK) -> int:
    before = fleet.looked
    select_node(asked, fleet, 0.0, random.Random(before), "here")
    return fleet.looked - before


def test_a_placement_looks_at_as_many_nodes_of_a_thousand_as_of_ten() -> None:
    costs = []
    for size in (10, 1000):
        fleet = CountingFleet()
        for n in range(size):
            fleet.upsert(node(f"n{n}"))
        costs.append(sum(looks(fleet) for _ in range(20)))
    assert costs[0] == costs[1]


def test_a_fleet_that_is_full_is_not_walked_by_every_job_that_waits() -> None:
    fleet = CountingFleet()
    for n in range(1000):
        fleet.upsert(node(f"n{n}", slots=1))
        fleet.reserve_slot(f"n{n}")
    for _ in range(200):  # the draws find them full and set them apart, a few at a time
        looks(fleet)
    assert looks(fleet) <= MAX_DRAWS + MAX_NAMES
    fleet.release_slot("n500")
    assert place(ASK, fleet) == "n500"


def test_nodes_set_apart_by_a_refusal_are_drawn_again_once_it_lapses() -> None:
    fleet = fleet_of(*(node(f"n{n}") for n in range(30)))
    pool = fleet.find("de", "en")
    assert pool is not None
    for n in range(30):
        fleet.full_until(f"n{n}", 10.0)
    while pool.free > 0:
        assert place(ASK, fleet, now=9.0) == NoNode.ALL_FULL
    assert place(ASK, fleet, now=10.0) in fleet
    assert pool.free == 30


def test_every_node_is_used_and_none_much_more_than_others() -> None:
    fleet, rng, used = fleet_of(*(node(f"n{n}", slots=100) for n in range(20))), random.Random(7), Counter[str]()
    for _ in range(1000):
        placed = select_node(ASK, fleet, 0.0, rng, "here")
        assert isinstance(placed, Assign)
        fleet.reserve_slot(placed.node_id)
        used[placed.node_id] += 1
    assert len(used) == 20
    assert max(used.values()) - min(used.values()) <= 8


# -- against an oracle that asks every node of the fleet, one filter at a time

IDS = [f"n{n}" for n in range(12)]
SETS_OF_IDS = st.frozensets(st.sampled_from(IDS), max_size=4)
NODES = st.builds(
    Node,
    id=st.just(""),
    epoch=st.integers(1, 3),
    instance=st.sampled_from(["here", "there"]),
    slots=st.integers(0, 2),
    asr=st.sampled_from([DE_EN, DE_EN, frozenset({"fr"}), frozenset()]),
    semantic=st.sampled_from([DE_EN, DE_EN, frozenset({"fr"})]),
    tts=st.sampled_from([DE_EN, DE_EN, frozenset({"en"}), frozenset()]),
    ready=st.sampled_from(
        [None, None, frozenset({"asr", "nmt", "tts"}), frozenset({"asr", "nmt"}), frozenset({"asr"})]
    ),
    features=st.sampled_from([frozenset(), frozenset({"reattempt"})]),
    gpu_queue=st.sampled_from([0, 0, 0, 2]),
    running=st.integers(0, 2),
    draining=st.sampled_from([False, False, False, True]),
)
ASKS = st.builds(
    Ask,
    src=st.sampled_from(["de", "de", "auto", "zh"]),
    tgt=st.sampled_from(["en", "en", "zh"]),
    lang_a=st.sampled_from([None, "de"]),
    lang_b=st.sampled_from([None, "en"]),
    needs=st.sampled_from([frozenset[str](), frozenset({"asr"}), frozenset({"asr", "nmt"})]),
    voice=st.booleans(),
    turn_node=st.sampled_from([None, *IDS]),
    turn_bound=st.booleans(),
    seen=SETS_OF_IDS,
    default_slots=st.just(2),
    turn_overcommit=st.integers(0, 1),
)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    fleet = Fleet()
    for node_id in draw(st.lists(st.sampled_from(IDS), unique=True)):
        fleet.upsert(replace(draw(NODES), id=node_id))
    for node_id in draw(st.lists(st.sampled_from(IDS), max_size=16)):
        fleet.reserve_slot(node_id)
    for node_id in draw(SETS_OF_IDS):
        fleet.cool(
            node_id, draw(st.sampled_from(["asr", "nmt", "tts", WHOLE_NODE])), until=draw(st.sampled_from([5.0, 20.0]))
        )
    for node_id in draw(SETS_OF_IDS):
        fleet.full_until(node_id, draw(st.sampled_from([5.0, 20.0])))
    return fleet


def passes(one: Node, asked: Ask, fleet: Fleet, now: float) -> bool:
    """Every filter of the specification but the free slot."""
    return passes_if_cool(one, asked) and not any(
        fleet.cooling(one.id, service, now) for service in [*asked.needs, WHOLE_NODE]
    )


def passes_if_cool(one: Node, asked: Ask) -> bool:
    pairs = {(a, b) for a in one.asr for b in one.semantic}
    if asked.src != "auto":
        in_pool = (asked.src, asked.tgt) in pairs
    elif asked.lang_a and asked.lang_b:
        in_pool = {(asked.lang_a, asked.lang_b), (asked.lang_b, asked.lang_a)} <= pairs
    else:
        in_pool = asked.tgt in {b for _, b in pairs}
    return (
        in_pool
        and not one.draining
        and (one.ready is None or all(need in one.ready for need in asked.needs))
        and (one.id not in asked.seen or "reattempt" in one.features)
    )


def speaks(one: Node, asked: Ask, fleet: Fleet, now: float) -> bool:
    both = {asked.lang_a, asked.lang_b}
    targets = both if asked.src == "auto" and all(both) else {asked.tgt}
    ready = one.ready is None or "tts" in one.ready
    return ready and targets <= one.tts and not fleet.cooling(one.id, "tts", now)


def has_slot(one: Node, asked: Ask, fleet: Fleet, now: float) -> bool:
    slots = one.slots if one.slots else asked.default_slots
    return fleet.reserved(one.id) < slots and not fleet.full(one.id, now)


@given(fleet=fleets(), asks=st.lists(st.tuples(ASKS, SETS_OF_IDS, st.integers(0, 99)), min_size=1, max_size=4))
def test_the_choice_is_one_the_specification_allows(fleet: Fleet, asks: list[tuple[Ask, frozenset[str], int]]) -> None:
    now = 10.0
    for asked, refused, seed in asks:  # several, because one placement leaves full nodes set apart for the next
        check(asked, fleet, now, refused, seed)


def check(asked: Ask, fleet: Fleet, now: float, refused: frozenset[str], seed: int) -> None:
    fit = {one.id: one for one in fleet.nodes() if passes(one, asked, fleet, now)}
    fresh = {
        i for i, one in fit.items() if i not in asked.seen and i not in refused and has_slot(one, asked, fleet, now)
    }
    if asked.voice:
        fresh = {i for i in fresh if speaks(fit[i], asked, fleet, now)} or fresh
    again = {i for i in fit if i in asked.seen and i not in refused}
    placed = select_node(asked, fleet, now, random.Random(seed), "here", refused)

    mine = asked.turn_node
    assert (placed.receipt.affinity is None) == (mine is None and not asked.turn_bound)
    if mine is not None:
        room = mine in fleet and fleet.reserved(mine) < (fleet_slots(fleet, mine, asked) + asked.turn_overcommit)
        wins = mine in fit and mine not in refused and room
        assert (placed.receipt.affinity is AffinityResult.HIT) == wins
        assert (placed.receipt.affinity is AffinityResult.OFFLINE) == (mine not in fleet)
        if wins:
            assert isinstance(placed, Assign)
            assert placed.node_id == mine
            assert placed.limit == fleet_slots(fleet, mine, asked) + asked.turn_overcommit
            return
    if isinstance(placed, Wait):
        assert not fresh
        assert not again
        check_reason(placed, asked, fleet, refused, set(fit))
        return
    assert placed.node_id in (fresh or again)
    assert placed.limit == fleet_slots(fleet, placed.node_id, asked)
    check_two_choices(placed, asked, fleet, fresh or again)


def fleet_slots(fleet: Fleet, node_id: str, asked: Ask) -> int:
    one = fleet.get(node_id)
    assert one is not None
    return one.slots or asked.default_slots


def check_two_choices(placed: Assign, asked: Ask, fleet: Fleet, able: set[str]) -> None:
    """The choice is the best of the able ones drawn; two were drawn unless there is one, or chance did not find two."""

    def merit(node_id: str) -> tuple[bool, int, bool]:
        one = fleet.get(node_id)
        assert one is not None
        return not one.gpu_queue, fleet_slots(fleet, node_id, asked) - fleet.load(node_id), one.instance == "here"

    candidates = [node_id for node_id in placed.receipt.drawn if node_id in able]
    assert merit(placed.node_id) == max(merit(node_id) for node_id in candidates)
    assert len(set(placed.receipt.drawn)) == len(placed.receipt.drawn)
    if placed.receipt.pool <= MAX_DRAWS:
        assert len(candidates) >= min(2, len(able))


def check_reason(waits: Wait, asked: Ask, fleet: Fleet, refused: frozenset[str], fit: set[str]) -> None:
    receipt = waits.receipt
    assert sum(receipt.counts.values()) == receipt.pool
    assert len(receipt.names) == min(MAX_NAMES, receipt.pool)
    if receipt.pool > MAX_NAMES:  # of what is set apart, the unnamed are counted as full unseen
        return
    if fit - asked.seen or fit & refused:
        assert waits.reason is NoNode.ALL_FULL
    elif any(passes_if_cool(one, asked) for one in fleet.nodes() if one.id not in fit):
        assert waits.reason is NoNode.ALL_COOLING_DOWN
    else:
        assert waits.reason is NoNode.NO_NODE_IN_POOL


# -- text jobs -------------------------------------------------------------------------------------

TEXT = Ask("de", "en", needs=frozenset({"nmt"}), text=True)
CHAT = replace(TEXT, yields=True)
PAIR = frozenset({("de", "en")})
NOTHING = frozenset[str]()


def text_only(node_id: str, **changed: object) -> Node:
    return replace(node(node_id, asr=NOTHING, semantic=NOTHING, text=PAIR), **changed)  # type: ignore[arg-type]


def test_text_job_goes_to_a_node_that_serves_its_pair_by_text() -> None:
    fleet = fleet_of(node("whole"), text_only("text"), node("both", text=PAIR), text_only("other", text=frozenset()))
    assert chosen_of(TEXT, fleet) == {"text", "both"}
    assert chosen_of(ASK, fleet) == {"whole", "both"}


def test_text_job_without_a_node_of_its_pair_has_an_empty_pool() -> None:
    placed = select_node(TEXT, fleet_of(node("whole")), 0.0, random.Random(0), "here")
    assert isinstance(placed, Wait)
    assert (placed.reason, placed.receipt.pool) == (NoNode.NO_NODE_IN_POOL, 0)


@pytest.mark.parametrize(
    "changed",
    [{"draining": True}, {"ready": frozenset({"tts"})}],
)
def test_text_job_goes_past_a_node_that_cannot_take_it(changed: dict[str, object]) -> None:
    assert place(TEXT, fleet_of(text_only("a", **changed))) == NoNode.NO_NODE_IN_POOL


def test_text_job_waits_for_a_node_that_is_full_cooling_down_or_paused() -> None:
    full, cooling, paused = (fleet_of(text_only("a", slots=1)) for _ in range(3))
    take(full, "a", 1)
    cooling.cool("a", "nmt", 5.0)
    paused.pause("a", 5.0)
    assert place(TEXT, full) == NoNode.ALL_FULL
    assert [place(TEXT, each) for each in (cooling, paused)] == [NoNode.ALL_COOLING_DOWN] * 2


def test_text_job_with_a_voice_prefers_a_node_that_speaks_the_target() -> None:
    fleet = fleet_of(text_only("mute"), text_only("speaks", tts=DE_EN))
    assert chosen_of(replace(TEXT, voice=True), fleet) == {"speaks"}
    take(fleet, "speaks", 4)
    assert chosen_of(replace(TEXT, voice=True), fleet) == {"mute"}


def test_text_job_that_yields_leaves_one_slot_of_a_node_of_speech_free() -> None:
    fleet = fleet_of(node("both", slots=3, text=PAIR))
    take(fleet, "both", 1)
    placed = select_node(CHAT, fleet, 0.0, random.Random(0), "here")
    assert isinstance(placed, Assign)
    assert (placed.limit, placed.kept_free) == (2, 1)
    take(fleet, "both", 1)
    assert place(CHAT, fleet) == NoNode.ALL_FULL
    # The node is not full for anybody else.
    assert place(TEXT, fleet) == "both"
    assert place(ASK, fleet) == "both"


def test_text_job_that_yields_uses_every_slot_of_a_node_without_speech() -> None:
    fleet = fleet_of(text_only("text", slots=2))
    take(fleet, "text", 1)
    assert place(replace(CHAT, speech_waits=True), fleet) == "text"


def test_text_job_that_yields_uses_the_only_slot_of_a_node_of_speech_while_no_speech_waits() -> None:
    fleet = fleet_of(node("both", slots=1, text=PAIR))
    assert place(CHAT, fleet) == "both"
    waits = replace(CHAT, speech_waits=True)
    assert place(waits, fleet) == NoNode.ALL_FULL
    placed = select_node(waits, fleet, 0.0, random.Random(0), "here")
    assert isinstance(placed, Wait)
    assert placed.receipt.names == {"both": "kept_free"}


def test_job_does_not_wait_for_a_node_that_cools_down_and_must_not_have_it_again() -> None:
    fleet = fleet_of(node("a"))
    fleet.cool("a", "asr", 5.0)
    assert place(ask(seen=frozenset({"a"})), fleet) == NoNode.NO_NODE_IN_POOL
    assert place(ASK, fleet) == NoNode.ALL_COOLING_DOWN
