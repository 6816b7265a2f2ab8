"""Checks of tables (pages, settings, scripts, names): one test for a whole table, which names every row that fails."""

from collections.abc import Callable, Iterable
from typing import Any


def for_each(
    rows: Iterable[Any], name: Callable[[Any], object] = str
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make one test of a check that takes a row. A row that is a tuple is passed as several arguments."""

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            failed: dict[str, str] = {}
            count = 0
            for row in rows:
                count += 1
                try:
                    check(*row) if isinstance(row, tuple) else check(row)
                except Exception as error:
                    failed[str(name(row))] = f"{type(error).__name__}: {error}"
            assert not failed, "\n".join(f"{row}: {why}" for row, why in failed.items())
            assert count, "there is nothing to check"

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
