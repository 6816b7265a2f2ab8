"""Engines behind a node: who recognises, who translates, who speaks. Any of the three may be replaced.

    from dragoman.engines import Pipeline, Sound

    Node(url, Pipeline(recognise, translate, synthesise), asr=["en"], semantic=["es"], tts=["es"]).serve()

The three are functions, plain or async: see `engine`. The ones that come with Dragoman are one file each, and import
what they need only when they are opened. Nothing here knows a server: that is the business of `dragoman.node`.
"""

from dragoman.engines.engine import EngineFailed, EngineTimeout, Heard, Missing
from dragoman.engines.pipeline import Pipeline
from dragoman.engines.sound import Sound

__all__ = ["EngineFailed", "EngineTimeout", "Heard", "Missing", "Pipeline", "Sound"]
