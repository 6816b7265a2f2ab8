from collections.abc import Sequence

import pytest

from dragoman.tools.bench.rounds import Case, Quantities, in_turns, medians


class Log:
    """The context of the cases here: notes who ran, answers with what was prepared."""

    def __init__(self, **answers: Sequence[float | Exception]) -> None:
        self.ran: list[str] = []
        self._answers = {name: list(values) for name, values in answers.items()}

    def answer(self, name: str) -> Quantities:
        self.ran.append(name)
        value = self._answers[name].pop(0)
        if isinstance(value, Exception):
            raise value
        return {"per_s": value}


def case(name: str, peer: str = "") -> Case[Log]:
    async def run(log: Log) -> Quantities:
        return log.answer(name)

    return Case(name, name.upper(), run, peer)


async def test_every_second_round_goes_backwards_and_the_median_counts() -> None:
    log, told = Log(ours=[1, 9, 3], theirs=[4, 5, 6]), list[str]()
    found = await in_turns([case("ours"), case("theirs", "them")], log, 3, told.append)
    assert log.ran == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert told == [name.upper() for name in log.ran]
    assert found.figures == {"ours_per_s": 3, "theirs_per_s": 5}
    assert found.left_out == {}


async def test_a_peer_that_fails_is_left_out_of_that_case_by_name() -> None:
    log, told = Log(ours=[1, 2, 3], few=[7, 7, 7], many=[5, OSError("pool is full")]), list[str]()
    cases = [case("ours"), case("few", "them"), case("many", "them")]
    found = await in_turns(cases, log, 3, told.append)
    assert found.figures == {"ours_per_s": 2, "few_per_s": 7}
    assert found.left_out == {"many": "them: pool is full"}
    assert log.ran.count("many") == 2
    assert len(told) == 9  # the bar reaches its end all the same


async def test_an_error_without_words_is_told_by_its_kind() -> None:
    found = await in_turns([case("theirs", "them")], Log(theirs=[TimeoutError()]), 1)
    assert found.left_out == {"theirs": "them: TimeoutError"}


async def test_when_one_of_ours_fails_the_bench_has_failed() -> None:
    with pytest.raises(OSError, match="gone"):
        await in_turns([case("ours")], Log(ours=[OSError("gone")]), 1)


def test_medians_are_taken_quantity_by_quantity() -> None:
    assert medians([{"a": 1, "b": 9}, {"a": 5, "b": 2}, {"a": 3, "b": 4}]) == {"a": 3, "b": 4}
