from dragoman.config.errors import ConfigError, Problem


def test_one_problem_reads_as_a_sentence_and_several_as_a_list() -> None:
    first, second = Problem(("a",), "a is wrong."), Problem(("b",), "b is wrong.")
    assert str(ConfigError([first])) == "a is wrong."
    assert str(ConfigError([first, second])) == "the configuration has 2 problems:\n  - a is wrong.\n  - b is wrong."
