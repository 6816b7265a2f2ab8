"""What a refusal has to be like, whoever refuses."""

from collections.abc import Sequence
from typing import Final

from fuzz.mutate import MARK

LONGEST_SENTENCE: Final = 200


def is_good_refusal(
    sentence: str, field: str, limit: int = LONGEST_SENTENCE, *, word: str = "", words: Sequence[str] = ("",)
) -> None:
    """`word` is what programs are told, one of `words`."""
    assert word in words, f"it is told as {word}"
    assert sentence, "the refusal says nothing"
    assert len(sentence) <= limit, f"the refusal has {len(sentence)} characters"
    assert MARK not in sentence, f"the refusal quotes what it must not: {sentence}"
    sentence.encode()  # lone surrogates could be sent to nobody
    assert not field or field in sentence, f"`{field}` was touched, and the refusal does not name it: {sentence}"
