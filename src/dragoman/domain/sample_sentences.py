"""The sentences that the page and `dragoman say` speak for a user without a microphone, by language."""

from typing import Final

WORDS_A_MINUTE: Final = 120  # at which a recogniser made for people understands a machine's voice
# The voice, and what it says. The English sentences are ones that the bundled recogniser gets right of this voice at
# this pace, wherever its silence begins and ends, and that the bundled translator knows all words of.
SENTENCES: Final = {
    "en": ("en-us+f2", "We have a big problem.", "We need some money.", "We will go to the market tomorrow."),
    "es": ("es+f2", "Necesitamos un médico.", "Los niños juegan en el jardín.", "Mi amigo vive cerca del mar."),
    "fr": ("fr+f2", "Nous avons besoin d'un médecin.", "Les enfants jouent dans le jardin."),
    "de": ("de+f2", "Wir brauchen einen Arzt.", "Die Kinder spielen im Garten."),
    "it": ("it+f2", "Abbiamo bisogno di un medico.", "I bambini giocano in giardino."),
    "pt": ("pt+f2", "Precisamos de um médico.", "As crianças brincam no jardim."),
    "zh": ("cmn+f2", "我们需要医生。", "孩子们在花园里玩。", "我的朋友住在海边。"),
}
