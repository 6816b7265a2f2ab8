"""Listed words become ***, whatever their case and whatever stands around them.

A word is found inside others too: many languages put nothing between words. Where several begin at the same place the
longest wins. The words are a tree by letters, walked from each place of the text: what a message costs does not grow
with the list, as it would with one regular expression of all words.
"""

from collections.abc import Iterable
from typing import Final

MASK: Final = "***"

_Tree = dict[str, "_Tree"]
_END: Final = ""  # as a key: a word ends here


class WordFilter:
    def __init__(self, words: Iterable[str] = ()) -> None:
        self._tree: _Tree = {}
        for word in words:
            at = self._tree
            for letter in _lower(word.strip()):
                at = at.setdefault(letter, {})
            at[_END] = {}
        self._tree.pop(_END, None)  # of empty words

    def clean(self, body: str) -> str:
        """The body with `***` for each listed word; the same object where there is none."""
        if not self._tree:
            return body
        text, tree = _lower(body), self._tree
        parts: list[str] = []
        end = 0
        for at, letter in enumerate(text):
            if letter in tree and at >= end and (stop := self._longest(text, at)):
                parts += (body[end:at], MASK)
                end = stop
        return "".join((*parts, body[end:])) if parts else body

    def _longest(self, text: str, at: int) -> int:
        """Where the longest word that begins here ends; 0: none does."""
        tree, stop = self._tree, 0
        while at < len(text) and (below := tree.get(text[at])) is not None:
            tree, at = below, at + 1
            if _END in tree:
                stop = at
        return stop


def _lower(text: str) -> str:
    """In lower case, letter by letter, so that places in it are places in `text`."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
