"""Previews: what is sent of an open utterance and where, which words a client sees; with the clock passed in."""

import itertools
import string
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.fleet import Fleet, Node
from dragoman.domain.preview import (
    EARLY_S,
    MAX_NODES,
    MIN_OPENING_MS,
    PARTIAL_S,
    PIECE_S,
    RETRY_S,
    FindNode,
    How,
    OpenPreview,
    PartialPace,
    PreviewAsk,
    Send,
    SessionPreview,
    choose_node,
)
from dragoman.domain.segmenter import OpenUtterance
from support.tables import for_each

BYTES_PER_MS = 32
LANGS = frozenset({"en", "es"})


def utterance(duration_ms: int, *, index: int = 0, turn_id: str | None = None) -> OpenUtterance:
    return OpenUtterance(index, turn_id, duration_ms, bytearray(duration_ms * BYTES_PER_MS))


def preview(number: int = 1, node_id: str = "n1") -> OpenPreview:
    return OpenPreview(f"preview-{number}", node_id, 1, "a")


def opened(duration_ms: int = MIN_OPENING_MS, now: float = 0.0) -> SessionPreview:
    """The first piece is sent."""
    state = SessionPreview()
    assert isinstance(state.follow(utterance(duration_ms), now), FindNode)
    state.found(preview())
    assert state.follow(utterance(duration_ms), now) == Send(preview(), 0, 0)
    return state


# -- audio -----------------------------------------------------------------------------------------


def test_a_preview_opens_when_an_utterance_is_long_enough_to_be_one() -> None:
    state = SessionPreview()
    assert state.follow(None, 0.0) is None
    assert state.follow(utterance(MIN_OPENING_MS - 1), 0.0) is None
    assert isinstance(state.follow(utterance(MIN_OPENING_MS), 0.1), FindNode)


def test_a_piece_is_sent_with_everything_since_the_last_when_it_is_time() -> None:
    state = opened()
    assert state.follow(utterance(400), 0.1) is None
    assert state.deadline() == PIECE_S
    assert state.follow(utterance(600), PIECE_S) == Send(preview(), 1, MIN_OPENING_MS * BYTES_PER_MS)
    assert state.deadline() is None
    assert state.follow(utterance(800), 2 * PIECE_S) == Send(preview(), 2, 600 * BYTES_PER_MS)


def test_less_than_a_tenth_of_a_second_waits_for_more() -> None:
    state = opened()
    assert state.follow(utterance(MIN_OPENING_MS + 80), 1.0) is None
    assert state.deadline() is None
    assert isinstance(state.follow(utterance(MIN_OPENING_MS + 100), 1.1), Send)


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0.0, 0.5)), max_size=60))
def test_every_byte_is_sent_once_in_order_and_at_most_five_pieces_a_second(chunks: list[tuple[int, float]]) -> None:
    state, duration_ms, now = SessionPreview(), 0, 100.0
    sent: list[tuple[int, int]] = []
    times: list[float] = []
    for chunk_ms, passed_s in chunks:
        duration_ms, now = duration_ms + chunk_ms, now + passed_s
        while (step := state.follow(utterance(duration_ms), now)) is not None:
            if isinstance(step, FindNode):
                state.found(preview())
                continue
            sent.append((step.start, duration_ms * BYTES_PER_MS))
            times.append(now)
    assert [start for start, _ in sent] == [0, *(end for _, end in sent)][: len(sent)]
    for first, last in itertools.combinations(range(len(times)), 2):
        assert times[last] - times[first] >= (last - first) * PIECE_S - EARLY_S - 1e-9


def test_an_utterance_is_tried_on_few_nodes_each_from_its_beginning_and_none_twice() -> None:
    state, now = SessionPreview(), 0.0
    for number in range(MAX_NODES):
        step = state.follow(utterance(500), now)
        assert isinstance(step, FindNode)
        assert step.excluded == {f"n{before}" for before in range(number)}
        state.found(preview(number, f"n{number}"))
        assert state.follow(utterance(500), now) == Send(preview(number, f"n{number}"), 0, 0)
        assert state.lost(f"preview-{number}") == preview(number, f"n{number}")
        assert state.lost(f"preview-{number}") is None
    assert state.follow(utterance(900), now + 60) is None
    state.ended(How.CUT, "turn-1")
    assert isinstance(state.follow(utterance(500, index=1), now + 61), FindNode)


def test_a_node_is_looked_for_again_after_a_while_if_there_was_none() -> None:
    state = SessionPreview()
    assert isinstance(state.follow(utterance(500), 1.0), FindNode)
    assert state.not_found(1.0)
    assert state.follow(utterance(700), 1.2) is None
    assert isinstance(state.follow(utterance(3000), 1.0 + RETRY_S), FindNode)
    assert not state.not_found(1.0 + RETRY_S)


def test_the_next_utterance_of_a_turn_asks_for_the_node_of_the_last() -> None:
    state = opened()
    assert state.ended(How.CUT, "turn-1").preview == preview()
    step = state.follow(utterance(500, index=1, turn_id="turn-1"), 1.0)
    assert isinstance(step, FindNode)
    assert step.turn_node == "n1"
    state.found(preview(2, "n2"))
    state.ended(How.CUT, "turn-1")
    step = state.follow(utterance(500, index=2, turn_id="turn-2"), 2.0)
    assert isinstance(step, FindNode)
    assert step.turn_node is None


# -- words -----------------------------------------------------------------------------------------


def test_words_of_another_preview_old_words_and_the_same_words_are_not_shown() -> None:
    state = opened()
    assert state.partial("preview-1", 1, "we")
    assert not state.partial("preview-1", 3, "we")
    assert not state.partial("preview-1", 2, "older")
    assert not state.partial("preview-0", 9, "of another")
    assert state.partial("preview-1", 4, "we have")


@for_each(How)
def test_no_words_are_shown_after_the_end(how: How) -> None:
    state = opened()
    state.ended(how)
    assert not state.partial("preview-1", 1, "late")


@for_each([(How.CUT, False), (How.NOTHING, True), (How.STOPPED, True)])
def test_words_are_cleared_only_if_no_result_replaces_them(how: How, clears: bool) -> None:
    state = opened()
    assert not state.ended(how).clears
    state = opened()
    state.partial("preview-1", 1, "um")
    state.lost("preview-1")
    ended = state.ended(how)
    assert (ended.clears, ended.preview) == (clears, None)
    assert not state.ended(how).clears


@given(st.lists(st.tuples(st.sampled_from(string.ascii_letters), st.floats(0.0, 0.4)), max_size=60))
def test_at_most_four_partials_a_second_pass_and_the_last_is_not_lost(offers: list[tuple[str, float]]) -> None:
    pace, now = PartialPace(), 0.0
    passed: list[tuple[float, str, int]] = []

    def note(text: str | None) -> None:
        if text is not None:
            passed.append((now, text, pace.number))

    for text, passed_s in offers:
        until = now + passed_s
        if (due := pace.deadline()) is not None and due <= until:
            now = due
            note(pace.poll(now))
        now = until
        note(pace.offer(text, now))
    if (due := pace.deadline()) is not None:
        now = max(now, due)
        note(pace.poll(now))
    assert [text for _, text, _ in passed][-1:] == [text for text, _ in offers][-1:]
    assert [number for _, _, number in passed] == list(range(1, len(passed) + 1))
    times = [when for when, _, _ in passed]
    assert all(later - before >= PARTIAL_S - 1e-9 for before, later in itertools.pairwise(times))


# -- nodes -----------------------------------------------------------------------------------------


def node(id: str, instance: str = "a", **changed: Any) -> Node:
    usual: dict[str, Any] = {"epoch": 1, "slots": 4, "asr": LANGS, "semantic": LANGS, "previews": 2}
    return Node(id=id, instance=instance, **usual | changed)


def chosen(*nodes: Node, open_on: dict[str, int] | None = None, seed: int = 0, **ask: Any) -> str | None:
    fleet = Fleet()
    for one in nodes:
        fleet.upsert(one)
    counts = open_on or {}
    found = choose_node(
        PreviewAsk("en", "es", **ask), fleet, lambda id: counts.get(id, 0), "a", now=1.0, rng=Random(seed)
    )
    return found.id if found is not None else None


def test_the_node_of_the_turn_is_chosen_first_then_one_of_the_instance_then_the_least_loaded_elsewhere() -> None:
    here, there, busy = node("here"), node("there", "b"), node("busy", "b", running=3)
    assert chosen(here, there, busy, turn_node="busy") == "busy"
    assert chosen(here, there, busy) == "here"
    assert chosen(here, there, busy, excluded={"here"}) == "there"
    assert chosen(there, busy, open_on={"there": 1}) == "there"
    assert chosen(node("idle", "b"), there, open_on={"there": 1}) == "idle"


def test_a_node_of_the_turn_that_cannot_preview_one_more_is_not_chosen() -> None:
    assert chosen(node("n1"), node("n2"), turn_node="n1", open_on={"n1": 2}) == "n2"
    assert chosen(node("n1", previews=0), turn_node="n1") is None
    assert chosen(turn_node="gone") is None


@for_each(
    [
        {"draining": True},
        {"previews": 0},
        {"asr": frozenset({"zh"})},
        {"semantic": frozenset({"zh"})},
        {"ready": frozenset({"nmt"})},
    ]
)
def test_a_node_that_cannot_do_the_job_is_not_chosen(unable: dict[str, Any]) -> None:
    assert chosen(node("n1", **unable)) is None


def test_a_node_that_failed_is_not_chosen() -> None:
    fleet = Fleet()
    fleet.upsert(node("n1"))
    fleet.pause("n1", until=5.0)
    assert choose_node(PreviewAsk("en", "es"), fleet, lambda id: 0, "a", now=1.0, rng=Random(0)) is None


def test_a_node_that_moves_is_found_at_its_new_instance() -> None:
    fleet = Fleet()
    fleet.upsert(node("n1", "b"))
    fleet.upsert(node("n1", "a", epoch=2))
    assert (list(fleet.previewers("a")), fleet.previewers_elsewhere("a")) == (["n1"], [])
    fleet.remove("n1")
    assert list(fleet.previewers("a")) == []
