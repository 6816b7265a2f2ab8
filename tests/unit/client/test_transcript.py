from hypothesis import given
from hypothesis import strategies as st

from dragoman.client import Ended, Failed, Partial, Result, Throttled, Transcript
from unit.client.fake_server import result


def said(index: int, text: str = "text_asr", session: str = "s-1", backfilled: bool = False) -> Result:
    return Result(result(session, index, text, backfilled=backfilled))


def partial(index: int, text: str) -> Partial:
    return Partial("s-1", index, text, False, f"job-{index}")


@given(st.permutations(range(12)))
def test_lines_are_in_the_order_of_speech_whatever_order_they_came_in(order: list[int]) -> None:
    transcript = Transcript()
    for index in order:
        transcript.add(said(index))
    assert [line.index for line in transcript.lines] == sorted(order)


def test_a_late_result_is_put_in_its_place_and_marked() -> None:
    transcript = Transcript()
    transcript.add(said(0))
    transcript.add(said(2))
    line = transcript.add(said(1, "late", backfilled=True))
    assert line is transcript.lines[1]
    assert [(line.index, line.backfilled) for line in transcript.lines] == [(0, False), (1, True), (2, False)]


def test_partials_grow_in_place_until_the_result() -> None:
    transcript = Transcript()
    transcript.add(partial(0, "so"))
    transcript.add(partial(0, "so far"))
    assert [(line.text_asr, line.text_translated, line.done) for line in transcript.lines] == [("so far", "", False)]
    transcript.add(said(0, "so far so good"))
    assert transcript.add(partial(0, "too late")) is None
    assert [(line.text_asr, line.text_translated) for line in transcript.lines] == [
        ("so far so good", "[es] so far so good")
    ]
    assert transcript.lines[0].done


def test_the_first_result_of_an_index_stands() -> None:
    transcript = Transcript()
    transcript.add(said(0, "first"))
    assert transcript.add(said(0, "second")) is None
    assert [line.text_asr for line in transcript.lines] == ["first"]


def test_a_failure_is_shown_in_its_place_until_a_result_comes_after_all() -> None:
    transcript = Transcript()
    failed = Failed("s-1", 0, "NO_AVAILABLE_NODE", "no node", "job-0")
    assert transcript.add(failed) is transcript.lines[0]
    assert transcript.add(failed) is None
    assert [line.failure for line in transcript.lines] == [failed]
    transcript.add(said(0))
    assert [(line.failure, line.text_translated) for line in transcript.lines] == [(None, "[es] text_asr")]


def test_a_session_in_the_place_of_a_lost_one_goes_on_below_it() -> None:
    transcript = Transcript()
    for event in (
        said(0, "a"),
        said(1, "b"),
        said(0, "c", session="s-2"),
        said(2, "late", backfilled=True),
    ):
        transcript.add(event)
    assert [line.text_asr for line in transcript.lines] == ["a", "b", "late", "c"]


def test_a_skipped_utterance_has_a_line_and_an_empty_one_only_if_something_was_shown_of_it() -> None:
    transcript = Transcript()
    transcript.add(partial(1, "um"))
    for index, state in enumerate(("skipped", "empty", "empty")):
        transcript.add(Ended("s-1", index, state, f"job-{index}"))
    assert [(line.index, line.ended, line.done) for line in transcript.lines] == [
        (0, "skipped", True),
        (1, "empty", True),
    ]
    assert [line.job_id for line in transcript.lines] == ["job-0", "job-1"]


def test_the_end_of_a_line_that_is_settled_changes_nothing() -> None:
    transcript = Transcript()
    transcript.add(said(0))
    assert transcript.add(Ended("s-1", 0, "sent", "job-0")) is None


def test_other_events_change_no_line() -> None:
    assert Transcript().add(Throttled("BUSY", None, "")) is None
