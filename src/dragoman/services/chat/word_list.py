"""The file of listed words (`chat.words_file`): UTF-8, one a line, empty lines between them as one likes."""

from pathlib import Path
from typing import Final

MAX_WORD: Final = 64  # letters
MAX_WORDS: Final = 100_000


class BadWordList(Exception):
    """The file cannot be used; `str()` says why, for the operator."""


def load_words(path: str | Path) -> list[str]:
    """The words of the file, without blanks around them."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise BadWordList(f"chat.words_file {str(path)!r} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadWordList(f"chat.words_file {str(path)!r} is not UTF-8 text.") from None
    words = [line.strip() for line in lines]
    for number, word in enumerate(words, 1):
        if len(word) > MAX_WORD:
            raise BadWordList(
                f"chat.words_file {str(path)!r}, line {number}: more than {MAX_WORD} letters are no word."
            )
    words = [word for word in words if word]
    if len(words) > MAX_WORDS:
        raise BadWordList(f"chat.words_file {str(path)!r} has {len(words)} words; up to {MAX_WORDS} are possible.")
    return words
