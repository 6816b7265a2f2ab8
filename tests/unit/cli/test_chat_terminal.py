"""A chat by keyboard and screen, on a terminal of the system."""

import asyncio
import os
import pty
import termios
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest

from dragoman.cli import chat_terminal, output
from dragoman.cli.chat_terminal import Talk, Terminal

if TYPE_CHECKING:
    from dragoman.client.chat import Chat

LFLAG = 3
CTRL_D = b"\x04"


class _Nobody:
    """A chat in which nothing is said."""

    user_id, unsaved = 1, 0

    async def messages(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def test_a_key_pressed_at_the_first_sight_of_the_chat_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that still gathers lines makes something else of Ctrl-D than a key."""
    keyboard, terminal = pty.openpty()
    by_lines: list[bool] = []

    def shown(text: str) -> None:
        if not by_lines:
            os.write(keyboard, CTRL_D)
        by_lines.append(bool(termios.tcgetattr(terminal)[LFLAG] & termios.ICANON))

    monkeypatch.setattr(chat_terminal, "STDIN_FD", terminal)
    monkeypatch.setattr(output, "paint", shown)
    try:
        async with asyncio.timeout(60):
            assert await Terminal(Talk("ann", "ben", 2)).hold(cast("Chat", _Nobody()), []) == 0
        assert by_lines[0] is False
        assert termios.tcgetattr(terminal)[LFLAG] & termios.ICANON, "the terminal is as it was"
    finally:
        os.close(keyboard)
        os.close(terminal)
