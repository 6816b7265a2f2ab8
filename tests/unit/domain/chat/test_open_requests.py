"""A connection gets one `saved` for each request that was not refused, and only after its `accepted`."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat import sent_messages
from dragoman.domain.chat.sent_messages import Notice, OpenRequests

SAVED = b"saved"


def accepted(requests: OpenRequests, name: str = "a") -> bytes | None:
    requests.received(name)
    held = requests.accepted(name)
    requests.answered(name)
    return held


def refused(requests: OpenRequests, name: str = "a") -> None:
    """By server_busy, after Redis gave no answer."""
    requests.received(name)
    requests.answered(name, unknown=True)


def test_saved_is_written_once_after_accepted() -> None:
    requests = OpenRequests()
    assert accepted(requests) is None
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_that_comes_before_accepted_follows_it() -> None:
    requests = OpenRequests()
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.HOLD
    assert requests.accepted("a") == SAVED
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_of_a_request_that_was_refused_is_dropped() -> None:
    requests = OpenRequests()
    refused(requests)
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_that_was_held_is_dropped_when_the_request_is_refused() -> None:
    requests = OpenRequests()
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.HOLD
    requests.answered("a", unknown=True)
    requests.received("a")
    assert requests.accepted("a") is None


def test_repetition_of_a_refused_request_gets_its_own_saved() -> None:
    requests = OpenRequests()
    refused(requests)
    assert accepted(requests) is None
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_repetition_that_is_refused_does_not_cost_the_first_request_its_saved() -> None:
    requests = OpenRequests()
    accepted(requests)
    refused(requests)
    assert requests.notified("a", 5, SAVED) is Notice.WRITE


def test_repetition_in_progress_gets_saved_although_the_first_request_got_it_too() -> None:
    requests = OpenRequests()
    accepted(requests)
    requests.received("a")
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.accepted("a") == SAVED


def test_saved_is_marked_for_a_request_that_had_another_body() -> None:
    requests = OpenRequests()
    requests.received("a")
    requests.accepted("a", duplicate=True)
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.WRITE_DUPLICATE


def test_saved_of_an_earlier_connection_passes_once() -> None:
    requests = OpenRequests()
    assert requests.notified("a", 5, SAVED) is Notice.WRITE
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_is_not_repeated_for_a_request_that_was_answered_by_it() -> None:
    requests = OpenRequests()
    requests.received("a")
    requests.saved("a", 5)
    requests.answered("a")
    assert requests.notified("a", 5, SAVED) is Notice.DROP


def test_saved_is_not_repeated_when_another_id_was_accepted_unnoticed() -> None:
    """The row was written past Redis under the id of the row; Redis has the message under a later one."""
    requests = OpenRequests()
    requests.received("a")
    requests.saved("a", 5)
    requests.answered("a", unknown=True)
    assert requests.notified("a", 6, SAVED) is Notice.DROP


def test_memory_of_open_requests_is_bounded() -> None:
    requests = OpenRequests()
    for number in range(sent_messages.MAX_REMEMBERED + 10):
        accepted(requests, str(number))
        refused(requests, f"refused {number}")
    assert len(requests._accepted) == len(requests._failed) == sent_messages.MAX_REMEMBERED
    assert not requests._received
    assert not requests._saved


STEPS = st.lists(st.sampled_from(["receive", "accept", "refuse", "answer saved", "notify"]), max_size=30)


@given(STEPS)
def test_saved_is_written_at_most_once_a_request_and_after_accepted_and_never_missing(steps: list[str]) -> None:
    """One message, sent again and again; the save stage notifies after each acceptance."""
    requests, frames, counts, open_count = OpenRequests(), list[str](), Counter[str](), 0
    for step in [*steps, *["accept"] * 30, "notify"]:
        if step == "receive":
            requests.received("a")
            open_count += 1
        elif step == "notify":
            if requests.notified("a", 5, SAVED) is Notice.WRITE:
                frames.append("saved")
        elif open_count:
            open_count -= 1
            counts[step] += 1
            if step == "accept":
                frames.append("accepted")
                if requests.accepted("a"):
                    frames.append("saved")
            elif step == "answer saved":
                frames.append("saved")
                requests.saved("a", 5)
            requests.answered("a", unknown=step == "refuse")
    # A `saved` before any request of this connection is that of an earlier one.
    earlier = 1 if "notify" in steps and "receive" not in steps[: steps.index("notify")] else 0
    assert frames.count("saved") <= counts["accept"] + counts["answer saved"] + max(earlier, not counts)
    if frames and frames[-1] == "accepted":
        raise AssertionError(f"no saved after accepted: {frames}")
