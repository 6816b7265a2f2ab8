"""Which job an utterance in a room becomes, over every small combination; and the pace of partial text."""

from collections.abc import Sequence
from itertools import chain, combinations, product

from dragoman.domain.rooms import AUTO, PARTIALS_PER_S, Pair, SpeakerPace, plan_speech
from support.tables import for_each

LANGS = ("de", "en", "es")
PAIRS = list(product(("en", AUTO), LANGS))


def subsets(items: Sequence[Pair]) -> list[tuple[Pair, ...]]:
    return list(chain.from_iterable(combinations(items, size) for size in range(len(items) + 1)))


HEARD = [dict(zip(LANGS, counts, strict=True)) for counts in product((0, 1, 2), repeat=3)]
EN = [("en", lang) for lang in LANGS]


@for_each(HEARD)
def test_every_other_language_that_is_heard_is_served_in_exactly_one_way(heard: dict[str, int]) -> None:
    others = {lang for lang, members in heard.items() if members and lang != "en"}
    for text_pairs, speech_pairs in product(subsets(EN), repeat=2):
        plan = plan_speech("en", heard, set(text_pairs), set(speech_pairs))
        ways = [*plan.by_text, *plan.unserved, *([plan.target] if plan.target else [])]
        assert sorted(ways) == sorted(others)
        assert all((("en", lang) in text_pairs) is (lang in plan.by_text) for lang in others)


@for_each(HEARD)
def test_job_translates_only_what_no_node_serves_by_text_and_then_the_language_most_members_hear(
    heard: dict[str, int],
) -> None:
    for text_pairs, speech_pairs in product(subsets(EN), repeat=2):
        plan = plan_speech("en", heard, set(text_pairs), set(speech_pairs))
        only_whole = [
            lang
            for lang, members in heard.items()
            if members and lang != "en" and ("en", lang) not in text_pairs and ("en", lang) in speech_pairs
        ]
        assert bool(plan.target) is bool(only_whole)
        if plan.target:
            assert plan.target in only_whole
            assert heard[plan.target] == max(heard[lang] for lang in only_whole)


@for_each(HEARD)
def test_job_only_recognises_when_the_spoken_language_is_not_known_before(heard: dict[str, int]) -> None:
    for text_pairs in subsets([pair for pair in PAIRS if pair[0] == AUTO]):
        plan = plan_speech(AUTO, heard, set(text_pairs), set(PAIRS))
        assert not plan.target
        assert {*plan.by_text, *plan.unserved} == {lang for lang, members in heard.items() if members}


def test_partials_are_paced_and_the_latest_waits() -> None:
    pace, now = SpeakerPace(), 100.0
    assert pace.offer(0, "a", now)
    assert pace.take(now) == (0, "a")
    assert not pace.offer(0, "a b", now + 0.1)
    assert not pace.offer(0, "a b c", now + 0.2)
    assert pace.due_at == now + 1 / PARTIALS_PER_S
    assert pace.take(pace.due_at) == (0, "a b c")
    assert pace.take(pace.due_at) is None


def test_partial_of_an_utterance_that_has_its_caption_is_forgotten_and_a_later_one_is_not() -> None:
    pace = SpeakerPace()
    pace.offer(3, "late", 0.0)
    pace.forget(2)
    assert pace.waiting == (3, "late")
    pace.forget(3)
    assert pace.take(0.0) is None
