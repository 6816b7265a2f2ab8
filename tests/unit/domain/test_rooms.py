"""Which entries of a room's log may be delivered now, to whom, and which languages a caption is translated into."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.rooms import (
    MAX_EARLY,
    Entry,
    EntryKind,
    Member,
    Role,
    RoomDelivery,
    languages_to_translate,
)
from support.tables import for_each


def entry(seq: int) -> Entry:
    return Entry(seq, EntryKind.ORIGINAL, f"s:u{seq}", "en", f"sentence {seq}")


def seqs(entries: list[Entry]) -> list[int]:
    return [each.seq for each in entries]


def member(**fields: object) -> Member:
    return Member(**{"session": "s", "instance": "i", "epoch": 0, "name": "Ana", "speaks": "en", **fields})  # type: ignore[arg-type]


# -- delivery ----------------------------------------------------------------------------------


def test_the_next_entry_is_delivered_at_once() -> None:
    delivery = RoomDelivery(delivered=4)
    assert seqs(delivery.receive([entry(5), entry(6)])) == [5, 6]
    assert (delivery.delivered, delivery.has_hole) == (6, False)


def test_an_early_entry_waits_until_the_log_was_read() -> None:
    delivery = RoomDelivery(delivered=0)
    assert delivery.receive([entry(2), entry(3)]) == []
    assert (delivery.delivered, delivery.has_hole) == (0, True)
    assert seqs(delivery.receive([entry(1), entry(2), entry(3), entry(4)])) == [1, 2, 3, 4]
    assert not delivery.has_hole


def test_a_known_entry_is_dropped() -> None:
    delivery = RoomDelivery(delivered=0)
    assert seqs(delivery.receive([entry(1), entry(1)])) == [1]
    assert delivery.receive([entry(1)]) == []
    assert not delivery.has_hole


def test_the_missing_entry_is_delivered_however_many_wait_for_it() -> None:
    delivery = RoomDelivery(delivered=0)
    pushed = [entry(seq) for seq in range(2, MAX_EARLY + 12)]
    assert delivery.receive(pushed) == []
    assert seqs(delivery.receive([entry(1)])) == list(range(1, MAX_EARLY + 2)), "those above the bound were dropped"
    assert seqs(delivery.receive(pushed)) == list(range(MAX_EARLY + 2, MAX_EARLY + 12)), "and come with the log"


def test_delivery_continues_behind_what_the_log_no_longer_has() -> None:
    delivery = RoomDelivery(delivered=2)
    assert delivery.receive([entry(8), entry(11), entry(12)]) == []
    delivery.skip_to(10)
    assert seqs(delivery.receive([])) == [11, 12]
    delivery.skip_to(5)
    assert delivery.delivered == 12, "never back"
    assert not delivery.has_hole


@given(pushes=st.lists(st.lists(st.integers(1, 12), max_size=5), max_size=12), delivered=st.integers(0, 4))
def test_entries_are_delivered_once_in_order_and_without_gaps(pushes: list[list[int]], delivered: int) -> None:
    delivery, received = RoomDelivery(delivered), list[int]()
    for push in pushes:
        received += seqs(delivery.receive([entry(seq) for seq in push]))
    received += seqs(delivery.receive([entry(seq) for seq in range(1, 13)]))
    assert received == list(range(delivered + 1, 13))
    assert not delivery.has_hole


# -- entries that Redis has lost ---------------------------------------------------------------


def at(seq: int, at_ms: int) -> Entry:
    return Entry(seq, EntryKind.ORIGINAL, f"s:u{seq}", "en", f"sentence {seq}", at_ms=at_ms)


def test_an_entry_of_another_time_under_a_delivered_number_stops_the_delivery() -> None:
    delivery = RoomDelivery(0)
    delivery.receive([at(1, 10), at(2, 20), at(3, 30)])
    assert delivery.receive([at(2, 20), at(4, 40)]) == [at(4, 40)], "a known entry changes nothing"
    assert delivery.receive([at(4, 41), at(5, 50)]) == []
    log = [at(1, 10), at(2, 20), at(3, 30), at(4, 41), at(5, 50)]
    assert delivery.restart(log) == 1
    assert delivery.receive(log) == log[3:]
    assert (delivery.delivered, delivery.is_forked) == (5, False)


@for_each([(3, 30, 3, False), (2, 20, 3, True), (2, 20, 2, False), (3, 31, 3, True), (4, 40, 3, False)])
def test_the_end_of_the_log_is_compared_with_what_was_delivered(
    seq: int, at_ms: int, before: int, forked: bool
) -> None:
    delivery = RoomDelivery(0)
    delivery.receive([at(1, 10), at(2, 20), at(3, 30)])
    delivery.compare(seq, at_ms, before)
    assert delivery.is_forked is forked


@for_each([([], 3), ([at(1, 11)], 3), ([at(1, 10)], 2), ([at(2, 20), at(3, 30)], 0)])
def test_delivery_continues_after_the_last_common_entry(log: list[Entry], lost: int) -> None:
    delivery = RoomDelivery(0)
    delivery.receive([at(1, 10), at(2, 20), at(3, 30), at(5, 50)])
    assert delivery.restart(log) == lost
    assert (delivery.delivered, delivery.has_hole) == (3 - lost, False)


# -- who gets what -----------------------------------------------------------------------------


CONCERNS: dict[str, tuple[EntryKind, str, dict[str, object], bool]] = {
    "an original": (EntryKind.ORIGINAL, "fr", {"hears": "es"}, True),
    "an original, without originals": (EntryKind.ORIGINAL, "fr", {"hears": "es", "originals": False}, False),
    "an original in its language, without originals": (
        EntryKind.ORIGINAL,
        "fr",
        {"hears": "fr", "originals": False},
        True,
    ),
    "a lost utterance": (EntryKind.LOST, "fr", {"hears": "es"}, True),
    "a lost utterance, without originals": (EntryKind.LOST, "fr", {"hears": "es", "originals": False}, False),
    "a translation into its language": (EntryKind.TRANSLATION, "es", {"hears": "es"}, True),
    "a translation into another language": (EntryKind.TRANSLATION, "fr", {"hears": "es"}, False),
    "that there is no translation": (EntryKind.UNTRANSLATED, "es", {"hears": "es", "originals": False}, True),
    "that another has no translation": (EntryKind.UNTRANSLATED, "fr", {"hears": "es"}, False),
}


@for_each(CONCERNS)
def test_a_member_gets(what: str) -> None:
    kind, lang, fields, expected = CONCERNS[what]
    reader = member(principal="p", **fields)
    assert Entry(1, kind, "s:u0", lang, "text").concerns(reader) is expected


@for_each(
    [(Role.HOST, False, True), (Role.SPEAKER, False, True), (Role.LISTENER, False, False), (Role.HOST, True, False)]
)
def test_listeners_and_muted_members_may_not_speak(role: Role, muted: bool, may: bool) -> None:
    assert member(hears="es", principal="p", role=role, muted=muted).may_speak is may


def test_a_caption_is_translated_into_what_is_heard_but_not_into_what_is_spoken() -> None:
    assert languages_to_translate({"fr": 2, "en": 5, "es": 1, "de": 0}, "en") == ["es", "fr"]
    assert languages_to_translate({"en": 5}, "en") == []
