"""The queue of translations: turns, shared jobs, bounds, and exactly one answer for each request."""

import random
from dataclasses import dataclass

from dragoman.domain.chat.translations import Request, TranslationQueue, Waits, Work

TIMEOUT_S = 8.0


@dataclass(frozen=True)
class User:
    user: int


ANN, BEN = User(1), User(2)


def queue(*, per_minute: int = 1000, max_waiting: int = 1000, max_jobs: int = 2) -> TranslationQueue[User]:
    return TranslationQueue(TIMEOUT_S, per_minute, max_waiting, max_jobs)


def ready(made: TranslationQueue[User], count: int = 100) -> list[Request[User]]:
    """Look up, and find all messages."""
    requests = made.to_look_up(count)
    for request in requests:
        made.ready(request, "auto", "hello")
    return requests


def next_job(made: TranslationQueue[User]) -> Work[User]:
    work = made.next_job()
    assert work is not None
    return work


def test_users_take_turns_in_the_look_up_and_for_a_job() -> None:
    made = queue(max_jobs=10)
    for id in (11, 12, 13):
        made.ask(ANN, id, "es", 0.0)
    made.ask(BEN, 21, "es", 0.0)
    assert [request.id for request in ready(made)] == [11, 21, 12, 13]
    assert [next_job(made).id for _ in range(4)] == [11, 21, 12, 13]


def test_no_more_jobs_run_at_a_time_than_allowed() -> None:
    made = queue(max_jobs=1)
    for id in (11, 12):
        made.ask(ANN, id, "es", 0.0)
    ready(made)
    first = next_job(made)
    assert made.next_job() is None
    assert [request.id for request in made.ended(first)] == [11]
    assert next_job(made).id == 12


def test_requests_for_one_message_and_language_share_a_job() -> None:
    made = queue()
    for user in (ANN, BEN):
        made.ask(user, 11, "es", 0.0)
    made.ask(ANN, 11, "fr", 0.0)
    ready(made)
    spanish, french = next_job(made), next_job(made)
    assert (spanish.lang, french.lang) == ("es", "fr")
    made.ask(BEN, 11, "es", 1.0)  # while it runs
    (late,) = ready(made)
    assert late.waits is Waits.NODE
    assert [request.receiver for request in made.ended(spanish)] == [ANN, BEN, BEN]
    made.ended(french)
    assert made.next_job() is None


def test_request_beyond_the_rate_or_the_bound_is_refused() -> None:
    made = queue(per_minute=2, max_waiting=3)
    assert [made.ask(ANN, id, "es", 0.0) for id in range(3)] == [True, True, False]
    assert [made.ask(BEN, id, "es", 0.0) for id in range(2)] == [True, False]
    assert len(made) == 3
    (first, *_) = made.to_look_up(1)
    assert made.answered(first)
    assert made.ask(BEN, 9, "es", 0.0)


def test_message_that_is_not_saved_yet_is_looked_up_again() -> None:
    made = queue()
    made.ask(ANN, 11, "es", 0.0)
    (request,) = made.to_look_up(10)
    made.unsaved(request)
    assert (request.waits, made.unsaved_count, made.to_look_up(10)) == (Waits.ROW, 1, [])
    made.look_again()
    assert ready(made) == [request]
    assert request.waits is Waits.TURN


def test_request_is_late_after_the_time_out_and_says_what_it_waited_for() -> None:
    made = queue(max_jobs=1)
    assert made.deadline() is None
    for at, id in enumerate((11, 12, 13)):
        made.ask(ANN, id, "es", float(at))
    runs, waits, unsaved = made.to_look_up(3)
    for request in (runs, waits):
        made.ready(request, "auto", "hello")
    made.unsaved(unsaved)
    work = next_job(made)
    assert made.deadline() == TIMEOUT_S
    assert made.late(TIMEOUT_S - 0.1) == []
    assert made.late(TIMEOUT_S) == [runs]
    assert [one.waits for one in made.late(TIMEOUT_S + 2)] == [Waits.NODE, Waits.TURN, Waits.ROW]
    for request in (runs, waits, unsaved):
        assert made.answered(request)
        assert not made.answered(request)
    assert made.ended(work) == []
    assert made.next_job() is None
    made.look_again()
    assert made.to_look_up(10) == []
    assert made.idle


def test_every_request_has_one_answer_in_any_order_of_events() -> None:
    rng = random.Random(7)
    for _ in range(300):
        made, now, asked, answers = queue(max_waiting=20, max_jobs=2), 0.0, 0, list[Request[User]]()
        running = list[Work[User]]()

        def answer(requests: list[Request[User]]) -> None:
            answers.extend(request for request in requests if made.answered(request))  # noqa: B023

        for _ in range(rng.randrange(1, 80)):
            now += rng.random()
            match rng.randrange(5):
                case 0:
                    asked += made.ask(User(rng.randrange(3)), rng.randrange(4), "es", now)
                case 1:
                    for request in made.to_look_up(rng.randrange(4)):
                        match rng.randrange(3):
                            case 0:
                                made.unsaved(request)
                            case 1:
                                made.ready(request, "auto", "hello")
                            case _:
                                answer([request])
                case 2:
                    made.look_again()
                    if (work := made.next_job()) is not None:
                        running.append(work)
                        assert len(running) <= 2
                case 3 if running:
                    answer(made.ended(running.pop(rng.randrange(len(running)))))
                case _:
                    answer(made.late(now))
        for work in running:
            answer(made.ended(work))
        answer(made.late(now + TIMEOUT_S))
        assert len(answers) == len(set(answers)) == asked
        assert made.next_job() is None
        assert made.idle
