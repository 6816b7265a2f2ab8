"""Which words a speaker still waits for, by what the speaker knows."""

from dragoman.tools.verify.speech_ledger import SpeechLedger


def talk(*, numbered: bool = False) -> SpeechLedger:
    ledger = SpeechLedger()
    ledger.opened("s", "ann", numbered=numbered)
    return ledger


def test_words_are_owed_until_they_are_answered() -> None:
    ledger = talk()
    ledger.gave("s", [1, 2])
    assert ledger.sessions["s"].unheard() == [1, 2]
    ledger.answered("s", 0, "job", "1-2", backfilled=False)
    assert ledger.sessions["s"].unheard() == []
    assert list(ledger.owed()) == []


def test_nobody_waits_for_silence() -> None:
    ledger = talk()
    ledger.gave("s", [-1, -2])
    assert ledger.sessions["s"].unheard() == []


def test_a_failure_stands_for_the_words_between_its_neighbours() -> None:
    ledger = talk()
    ledger.gave("s", [1, 2, 3, 4])
    ledger.answered("s", 0, "job", "1", backfilled=False)
    ledger.answered("s", 2, "job", "4", backfilled=False)
    ledger.failed("s", 1, "job", "NO_AVAILABLE_NODE", "none")
    assert ledger.sessions["s"].unheard() == []


def test_a_failure_stands_for_no_words_of_others() -> None:
    ledger = talk()
    ledger.gave("s", [1, 2, 3, 4])
    ledger.failed("s", 0, "job", "NO_AVAILABLE_NODE", "none")
    ledger.answered("s", 1, "job", "2", backfilled=False)
    ledger.answered("s", 2, "job", "4", backfilled=False)
    assert ledger.sessions["s"].unheard() == [3]


def test_an_utterance_with_a_number_is_owed_under_it() -> None:
    ledger = talk(numbered=True)
    ledger.gave("s", [1], index=0)
    ledger.gave("s", [2], index=1)
    ledger.failed("s", 1, "job", "NO_AVAILABLE_NODE", "none")
    assert ledger.sessions["s"].unheard() == [1]


def test_an_utterance_that_held_other_words_explains_nothing() -> None:
    ledger = talk()
    ledger.gave("s", [1, 2])
    assert ledger.sessions["s"].unheard({0: [1]}) == [2]
    assert ledger.sessions["s"].unheard({0: None}) == []


def test_what_is_owed_is_said_in_words() -> None:
    ledger = talk()
    ledger.gave("s", [1, 2])
    (sentence,) = ledger.owed()
    assert "ann" in sentence
    assert "1-2" in sentence
    ledger.lost("s", "gone")
    assert list(ledger.owed()) == []
