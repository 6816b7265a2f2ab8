"""What is spoken in a room: which job an utterance becomes, and how often its partial text is shown.

Recognition is expensive and translation of a text is not. So an utterance is recognised once, and each language that
others hear gets a text job. Only if no node serves a language by text, one job does everything into that language.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from dragoman.domain.rooms import AUTO, languages_to_translate

PARTIALS_PER_S = 3

Pair = tuple[str, str]  # source and target


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """For the utterances of one turn. Without a `target` their jobs only recognise."""

    target: str = ""
    by_text: tuple[str, ...] = ()  # languages that text jobs translate into
    unserved: tuple[str, ...] = ()  # languages that end as untranslated: no_node

    @property
    def only_recognises(self) -> bool:
        return not self.target


def plan_speech(
    spoken: str, heard: Mapping[str, int], text_pairs: Container[Pair], speech_pairs: Container[Pair]
) -> SpeechPlan:
    """`heard`: how many members hear each language. If the spoken language is not known before it is recognised, the
    job only recognises: what it finds decides what is translated."""
    others = languages_to_translate(heard, spoken)
    by_text = tuple(lang for lang in others if (spoken, lang) in text_pairs)
    rest = [lang for lang in others if lang not in by_text]
    whole = [lang for lang in rest if (spoken, lang) in speech_pairs] if spoken != AUTO else []
    target = min(whole, key=lambda lang: (-heard[lang], lang), default="")
    return SpeechPlan(target, by_text, tuple(lang for lang in rest if lang != target))


@dataclass(slots=True)
class PartialPace:
    """The partial texts of one speaker: at most three a second. What comes sooner waits, and the latest replaces it."""

    sent_at: float = float("-inf")
    waiting: tuple[int, str] | None = None  # index and text

    def offer(self, index: int, text: str, now: float) -> bool:
        """Whether to send it now; if not, it is due at `due_at`, unless a later one replaces it."""
        self.waiting = (index, text)
        return now >= self.due_at

    def take(self, now: float) -> tuple[int, str] | None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self.sent_at = now
        return waiting

    def forget(self, index: int) -> None:
        """The utterance has its caption: nothing is shown before it any more."""
        if self.waiting is not None and self.waiting[0] <= index:
            self.waiting = None

    @property
    def due_at(self) -> float:
        return self.sent_at + 1 / PARTIALS_PER_S
