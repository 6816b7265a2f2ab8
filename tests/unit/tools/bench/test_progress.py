import io

from rich.console import Console

from dragoman.tools.bench.progress import bar


def drawn(*, terminal: bool) -> str:
    shown = io.StringIO()
    with bar(2, Console(file=shown, force_terminal=terminal, width=100)) as step:
        step("single: PING")
        step("single: command")
    return shown.getvalue()


def test_a_terminal_sees_how_far_it_is_and_what_is_measured() -> None:
    shown = drawn(terminal=True)
    assert "0/2" in shown
    assert "1/2" in shown
    assert "single: command" in shown


def test_a_file_sees_nothing() -> None:
    assert drawn(terminal=False).strip() == ""
