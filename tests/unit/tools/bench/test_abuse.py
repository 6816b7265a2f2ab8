"""What `bench abuse` concludes: planted, each wrong thing is found."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from dragoman.tools.bench.abuse.attack import Answers, Attack, Target, expected
from dragoman.tools.bench.abuse.attacker import ATTACKS, BY_NAME
from dragoman.tools.bench.abuse.bench import KINDS, Finding, Settings, conclude, middle, steps
from dragoman.tools.bench.abuse.environment import COUNTED, State
from dragoman.tools.bench.abuse.healthy_clients import HealthyClients, ServerMessage, Timeline, User
from dragoman.tools.bench.abuse.page import page
from dragoman.tools.report import Report
from support.tables import for_each

MIB = 1 << 20


async def nothing(target: Target) -> Answers:
    return Counter()


ATTACK = Attack("push", "somebody pushes", nothing, expected("closed 4006"), expected("closed 4003"))
REST = dict.fromkeys(COUNTED, 3)
CALM = State(REST, 0, 100 * MIB)
TOLD: dict[str, Any] = {"utterances": 10, "messages": 10, "sentences": 10, "lost": 0, "slowed": 0, "failures": []}
TIMES = {"count": 10, "p50_ms": 1.0, "p99_ms": 2.0}
FOUND = Finding(
    ATTACK,
    3,
    {"closed 4006": 3},
    dict.fromkeys(KINDS, TIMES),
    dict.fromkeys(KINDS, TIMES) | {"speech": TIMES | {"p99_ms": 5.0}},
    [],
    100 * MIB,
    101 * MIB,
)


def concluded(finding: Finding = FOUND, told: dict[str, Any] = TOLD, last: State = CALM, *inside: str) -> Report:
    report = Report({})
    conclude(report, [finding], told, (CALM, last), inside)
    return report


def test_every_attack_has_a_name_of_its_own_and_answers_to_expect() -> None:
    assert len(BY_NAME) == len(ATTACKS)
    assert all(attack.answers | attack.may for attack in ATTACKS)
    assert steps(Settings()) == len(ATTACKS) + 1
    assert [attack.name for attack in Settings(only=("kicks",)).attacks] == ["kicks"]


def test_clean_run_reports_figures_only() -> None:
    report = concluded()
    assert report.settings["wrong"] == []
    assert report.figures["wrong"] == 0
    assert (report.ratios["push_speech_p99"], report.ratios["worst_speech_p99"], report.ratios["worst_chat_p99"]) == (
        2.5,
        2.5,
        1.0,
    )
    assert (report.figures["rss_before_mib"], report.figures["push_rss_mib"]) == (100, 1)


@for_each(
    [
        ({"closed 4006": 3, "closed 1011": 1}, "push: closed 1011 (1 times)"),
        ({"closed 4003": 3}, "push: never closed 4006"),
        ({}, "push: no answer at all"),
    ]
)
def test_an_answer_that_is_none_of_the_good_ones_is_found(answers: dict[str, int], why: str) -> None:
    assert concluded(replace(FOUND, answers=answers)).settings["wrong"] == [why]


def test_an_answer_that_may_be_is_no_fault() -> None:
    assert concluded(replace(FOUND, answers={"closed 4006": 1, "closed 4003": 9})).settings["wrong"] == []


@for_each(COUNTED)
def test_leftover_state_is_found(name: str) -> None:
    grown = State(REST | {name: 100}, 0, 100 * MIB)
    assert grown.more_than(CALM) == [f"97 {name}"]
    assert f"97 {name} left at the end" in str(concluded(last=grown).settings["wrong"])


def test_a_slot_that_is_still_taken_is_found() -> None:
    assert State(REST, 2, 0).more_than(CALM) == ["2 slots"]


def test_memory_that_does_not_come_back_is_found() -> None:
    assert concluded(last=State(REST, 0, 150 * MIB)).settings["wrong"] == []
    assert concluded(last=State(REST, 0, 200 * MIB)).settings["wrong"] == ["100 MiB more memory than before"]


def test_memory_that_the_last_run_of_an_attack_keeps_is_found() -> None:
    assert concluded(replace(FOUND, rss_after=109 * MIB)).settings["wrong"] == []
    wrong = ["push: memory was not freed, 100 → 112 MiB"]
    assert concluded(replace(FOUND, rss_after=112 * MIB)).settings["wrong"] == wrong
    grew_once = replace(FOUND, rss_after=150 * MIB)
    found = middle([grew_once, replace(FOUND, rss_before=150 * MIB, rss_after=151 * MIB)])
    assert (grew_once.keeps_memory, found.keeps_memory) == (True, False)


def test_errors_of_healthy_clients_and_of_instances_are_found() -> None:
    told = TOLD | {"failures": ["User was closed: 4003"], "lost": 1}
    wrong = concluded(FOUND, told, CALM, "an instance logged: endpoint failed")
    assert wrong.settings["wrong"] == [
        "healthy clients: User was closed: 4003",
        "healthy clients: 1 lost",
        "an instance logged: endpoint failed",
    ]


def test_of_three_tries_the_times_of_the_middle_one_count_and_everything_they_found() -> None:
    tries = [
        replace(FOUND, during={"speech": {"p99_ms": speech}, "chat": {"p99_ms": chat}, "room": TIMES}, left=left)
        for speech, chat, left in ((90.0, 10.0, []), (20.0, 70.0, ["a task"]), (30.0, 11.0, []))
    ]
    found = middle(tries)
    assert (found.during["speech"]["p99_ms"], found.during["chat"]["p99_ms"]) == (30.0, 11.0)
    assert found.left == ["a task"]
    assert found.rounds == 3 * FOUND.rounds
    assert found.answers == {answer: 3 * count for answer, count in FOUND.answers.items()}
    assert middle([FOUND]) == FOUND


def test_a_course_finds_what_comes_twice_or_was_never_begun() -> None:
    failures: list[str] = []
    kind = Timeline("message", failures)
    for _ in range(3):
        kind.begin(0.0)
    kind.done(0, 1.0)
    kind.done(0, 1.0)
    kind.done(9, 1.0)
    assert failures == ["message 0 came twice", "message 9 was never begun"]
    assert kind.missing() == 2
    assert kind.missing(0, 1) == 0


async def test_a_message_out_of_order_is_found() -> None:
    all = HealthyClients()
    for _ in range(3):
        all.chat.begin(0.0)
    user = User(all, b"")
    assert user._arrived(0, 1.0)
    assert not user._arrived(2, 1.0)
    assert not user.receive(ServerMessage("ERROR"), 1.0)


def test_page_has_the_attacks_that_cost_most_first() -> None:
    cheap, costly = (replace(FOUND, attack=ATTACKS[at]) for at in (0, 1))
    costly = replace(costly, during=dict.fromkeys(KINDS, TIMES | {"p99_ms": 30.0}))
    report = Report({})
    conclude(report, [cheap, costly], TOLD, (CALM, CALM))
    lines = "\n".join(page(json.loads(report.as_json()))).splitlines()
    assert lines[0].startswith("2 attacks, ")
    assert [line.split(" | ")[0] for line in lines[-2:]] == [f"| {ATTACKS[1].title}", f"| {ATTACKS[0].title}"]
    assert lines[-2].count("15.0 ×") == len(KINDS)
