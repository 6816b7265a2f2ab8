"""The ledger of a room finds what is planted, and nothing where all is well."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from dragoman.domain.rooms import Entry, EntryKind
from dragoman.tools.verify.room_ledger import (
    Joined,
    MemberLedger,
    PlannedFact,
    Received,
    RoomFact,
    RoomLedger,
    Switched,
    Written,
    late_ends,
)
from support.tables import for_each

LANGUAGES = ("en", "es", "fr")


@dataclass
class Story:
    """Ann writes in English; Berta reads Spanish, Chloe French and then Spanish."""

    ledger: RoomLedger = field(default_factory=RoomLedger)
    fact: RoomFact = field(default_factory=RoomFact)

    def __post_init__(self) -> None:
        self.ann, self.berta, self.chloe = (self.ledger.member(name) for name in ("ann", "berta", "chloe"))
        log, planned = list[Entry](), dict[tuple[str, str], PlannedFact]()
        for number in range(1, 5):
            text, caption = f"sentence {number}", f"s-ann:t{number}"
            self.ledger.written[text] = Written(text, "en", number, number + 0.5)
            log.append(Entry(len(log) + 1, EntryKind.ORIGINAL, caption, "en", text))
            for lang in ("es", "fr"):
                log.append(Entry(len(log) + 1, EntryKind.TRANSLATION, caption, lang, f"[{lang}] {text}"))
                planned[caption, lang] = PlannedFact(1, len(log))
        self.fact = RoomFact(log, len(log), planned, members=[f"s-{one.name}" for one in self.ledger.members])
        for member, lang in zip(self.ledger.members, LANGUAGES, strict=True):
            member.session = f"s-{member.name}"
            member.heard.append((0.0, lang))
            member.events.append(Joined(member.session, lang, 0))
            member.events += [received(entry) for entry in log if entry.is_original or entry.lang == lang]

    def kinds(self) -> set[str]:
        return {one.kind for one in self.ledger.check(self.fact)}

    def change(self, **fields: object) -> None:
        self.fact = replace(self.fact, **fields)  # type: ignore[arg-type]

    def receives(self, member: MemberLedger, *numbers: int) -> None:
        member.events += [received(self.fact.log[number - 1]) for number in numbers]


def received(entry: Entry) -> Received:
    return Received(entry.seq, entry.caption, entry.lang, entry.text)


def test_nothing_is_found_where_all_is_well() -> None:
    story = Story()
    assert story.ledger.check(story.fact) == []
    assert list(story.ledger.outstanding(story.fact)) == []
    assert (story.ledger.promised, story.ledger.kept(story.fact, [])) == (4, 4)


# -- planted ---------------------------------------------------------------------------------------


def a_member_misses_an_entry(story: Story) -> None:
    del story.berta.events[3]


def a_member_misses_the_last_entry(story: Story) -> None:
    story.berta.events.pop()


def a_member_joins_again_behind_its_cursor(story: Story) -> None:
    story.berta.events.append(Joined("s-berta", "es", 5))
    story.receives(story.berta, 8, 10, 11)


def an_entry_is_received_twice(story: Story) -> None:
    story.receives(story.berta, 11)


def two_entries_change_places(story: Story) -> None:
    events = story.berta.events
    events[3], events[4] = events[4], events[3]


def a_member_receives_another_language(story: Story) -> None:
    story.berta.events.insert(3, received(story.fact.log[2]))


def a_translation_differs_from_the_log(story: Story) -> None:
    story.berta.events[2] = Received(2, "s-ann:t1", "es", "[es] another sentence")


def a_confirmed_sentence_is_not_in_the_log(story: Story) -> None:
    story.ledger.written["sentence 9"] = Written("sentence 9", "en", 9.0, 9.5)


def a_sentence_is_in_the_log_twice(story: Story) -> None:
    del story.ledger.written["sentence 2"]
    log = [replace(entry, text="sentence 1") if entry.text == "sentence 2" else entry for entry in story.fact.log]
    story.change(log=log)


def a_sentence_was_written_by_nobody(story: Story) -> None:
    del story.ledger.written["sentence 2"]


def a_language_ends_twice(story: Story) -> None:
    again = replace(story.fact.log[1], seq=13)
    story.change(log=[*story.fact.log, again], seq=13)
    story.receives(story.berta, 13)


def a_language_has_no_end(story: Story) -> None:
    story.change(planned={**story.fact.planned, ("s-ann:t4", "de"): PlannedFact(1, 0)})


def a_language_is_planned_again_and_has_one_end(story: Story) -> None:
    story.change(planned={**story.fact.planned, ("s-ann:t4", "es"): PlannedFact(2, 11)})


def a_language_that_is_heard_was_not_planned(story: Story) -> None:
    story.berta.heard[0] = (0.0, "de")


def the_log_has_a_gap(story: Story) -> None:
    story.change(log=[entry for entry in story.fact.log if entry.seq != 12])


def the_log_lost_its_end(story: Story) -> None:
    story.change(seq=13)


def a_member_outlives_its_session(story: Story) -> None:
    story.change(members=[*story.fact.members, "s-of-nobody"])


def a_member_that_left_is_still_there(story: Story) -> None:
    story.berta.is_over = story.berta.has_left = True


def a_member_is_gone_while_its_session_lives(story: Story) -> None:
    story.change(members=["s-ann", "s-chloe"])


def a_request_is_refused_without_a_fault(story: Story) -> None:
    story.ledger.refused.append("ann was refused: You are not in this room (NOT_IN_ROOM)")


def the_room_ends_for_a_member(story: Story) -> None:
    story.berta.ended = "The room was empty."


# What Ann says aloud: utterance 0 is a caption, utterance 1 was skipped.


def speaking(story: Story) -> None:
    said = [(EntryKind.ORIGINAL, "utterance 0 of s-ann"), (EntryKind.LOST, "skipped")]
    for index, (kind, text) in enumerate(said):
        add(story, Entry(story.fact.seq + 1, kind, f"s-ann:u{index}", "en", text))
    story.ann.cuts, story.ann.said = 2, {("s-ann", 0): "sent", ("s-ann", 1): "skipped"}
    story.change(recognised={("s-ann", 0): [1], ("s-ann", 1): [2]})


def add(story: Story, entry: Entry) -> None:
    story.change(log=[*story.fact.log, entry], seq=entry.seq)
    for member in story.ledger.members:
        member.events.append(received(entry))


def an_utterance_that_was_recognised_is_not_in_the_log(story: Story) -> None:
    speaking(story)
    story.ann.said["s-ann", 2] = "backfilled"


def an_utterance_that_was_recognised_is_noted_as_lost(story: Story) -> None:
    speaking(story)
    story.ann.said["s-ann", 1] = "sent"


def members_are_not_informed_of_a_skipped_utterance(story: Story) -> None:
    speaking(story)
    story.ann.said["s-ann", 2] = "skipped"


def an_utterance_is_two_captions(story: Story) -> None:
    speaking(story)
    add(story, Entry(story.fact.seq + 1, EntryKind.ORIGINAL, "s-ann:u0", "en", "utterance 0 of s-ann"))


def a_caption_has_the_text_of_another_utterance(story: Story) -> None:
    speaking(story)
    add(story, Entry(story.fact.seq + 1, EntryKind.ORIGINAL, "s-ann:u2", "en", "utterance 0 of s-ann"))


def an_utterance_is_recognised_by_two_jobs(story: Story) -> None:
    speaking(story)
    story.change(recognised={("s-ann", 0): [1, 1]})


PLANTED: dict[Callable[[Story], None], str] = {
    a_member_misses_an_entry: "lost",
    a_member_misses_the_last_entry: "lost",
    a_member_joins_again_behind_its_cursor: "lost",
    an_entry_is_received_twice: "duplicated",
    two_entries_change_places: "reorder",
    a_member_receives_another_language: "altered",
    a_translation_differs_from_the_log: "altered",
    a_confirmed_sentence_is_not_in_the_log: "lost",
    a_sentence_is_in_the_log_twice: "duplicated",
    a_sentence_was_written_by_nobody: "unknown origin",
    a_language_ends_twice: "two ends",
    a_language_has_no_end: "no end",
    a_language_is_planned_again_and_has_one_end: "no end",
    a_language_that_is_heard_was_not_planned: "no end",
    the_log_has_a_gap: "gap",
    the_log_lost_its_end: "gap",
    a_member_outlives_its_session: "outlived",
    a_member_that_left_is_still_there: "outlived",
    a_member_is_gone_while_its_session_lives: "lost",
    a_request_is_refused_without_a_fault: "refused",
    the_room_ends_for_a_member: "refused",
    an_utterance_that_was_recognised_is_not_in_the_log: "lost",
    an_utterance_that_was_recognised_is_noted_as_lost: "lost",
    members_are_not_informed_of_a_skipped_utterance: "lost",
    an_utterance_is_two_captions: "duplicated",
    a_caption_has_the_text_of_another_utterance: "altered",
    an_utterance_is_recognised_by_two_jobs: "duplicated",
}


@for_each(PLANTED.items())
def test_what_is_planted_is_found(plant: Callable[[Story], None], kind: str) -> None:
    story = Story()
    plant(story)
    assert kind in story.kinds()


# -- no findings -----------------------------------------------------------------------------------


def test_a_member_that_joins_again_continues_at_its_cursor() -> None:
    story = Story()
    story.berta.events[4:4] = [Joined("s-berta", "es", 4)]
    assert story.kinds() == set()


def test_an_entry_that_was_asked_for_again_may_come_outside_the_cursor() -> None:
    story = Story()
    story.berta.asked["s-ann:t1", "es"] += 1
    story.receives(story.berta, 2)
    assert story.kinds() == set()


def switching(story: Story, *numbers: int) -> None:
    """Chloe hears French up to 4, the second original, and Spanish from then on."""
    story.chloe.events[4:] = [Switched("es")]
    story.chloe.heard.append((2.2, "es"))
    story.receives(story.chloe, *numbers)


@pytest.mark.parametrize("numbers", [(5, 7, 8, 10, 11), (7, 8, 10, 11)])
def test_a_member_that_changes_its_language_receives_the_new_one_from_then_on(numbers: tuple[int, ...]) -> None:
    story = Story()
    switching(story, *numbers)
    assert story.kinds() == set()


@pytest.mark.parametrize("numbers", [(8, 10, 11), (5, 7, 10, 11), (5, 6, 7, 8, 10, 11)])
def test_an_entry_that_is_missing_after_a_change_of_the_language_is_found(numbers: tuple[int, ...]) -> None:
    story = Story()
    switching(story, *numbers)
    assert story.kinds() & {"lost", "altered"}


def test_a_member_that_joins_again_after_a_change_reads_the_new_language_from_its_cursor() -> None:
    story = Story()
    switching(story)
    story.chloe.events.append(Joined("s-chloe", "es", 4))
    story.receives(story.chloe, 7, 8, 10, 11)
    assert story.kinds() == {"lost"}
    story.chloe.events[-5:] = []
    story.chloe.events.append(Joined("s-chloe", "es", 4))
    story.receives(story.chloe, 5, 7, 8, 10, 11)
    assert story.kinds() == set()


def test_nothing_more_is_expected_of_a_member_that_leaves() -> None:
    story = Story()
    story.berta.is_over = True
    story.berta.events[4:] = []
    assert story.kinds() == set()


def test_a_language_that_was_changed_meanwhile_need_not_be_planned() -> None:
    story = Story()
    story.berta.heard += [(1.2, "de"), (1.3, "es")]
    assert story.berta.hears_throughout(1.0, 1.5) == ""
    assert story.kinds() == set()


def test_a_caption_with_a_finding_is_not_kept() -> None:
    story = Story()
    a_member_misses_an_entry(story)
    assert story.ledger.kept(story.fact, story.ledger.check(story.fact)) == 3


def test_nothing_is_found_where_a_member_speaks_and_all_is_well() -> None:
    story = Story()
    speaking(story)
    assert story.ledger.check(story.fact) == []
    assert (story.ledger.promised, story.ledger.kept(story.fact, [])) == (5, 5)
    assert list(story.ledger.notes(story.fact)) == ["2 utterances in rooms were recognised by 2 jobs, 1 retries"]
    story.ann.cuts += 1
    assert list(story.ledger.outstanding(story.fact)) == ["1 utterances of ann have no end yet"]


def test_utterance_that_was_noted_as_lost_may_be_recognised_after_all() -> None:
    story = Story()
    speaking(story)
    add(story, Entry(story.fact.seq + 1, EntryKind.ORIGINAL, "s-ann:u1", "en", "utterance 1 of s-ann"))
    story.ann.said["s-ann", 1] = "sent"
    assert story.ledger.check(story.fact) == []


def test_language_that_ends_after_its_bound_is_late() -> None:
    log = [
        Entry(1, EntryKind.ORIGINAL, "c", "en", "hello", at_ms=10_000),
        Entry(2, EntryKind.TRANSLATION, "c", "es", "hola", at_ms=13_000),
        Entry(3, EntryKind.UNTRANSLATED, "c", "fr", "timeout", at_ms=15_001),
        Entry(4, EntryKind.TRANSLATION, "c", "fr", "bonjour", at_ms=90_000),
    ]
    assert [one.sentence for one in late_ends(log, lambda began, ended: 5000)] == [
        "fr of c ended 5.0 s after the original"
    ]
    assert list(late_ends(log, lambda began, ended: 6000)) == []
