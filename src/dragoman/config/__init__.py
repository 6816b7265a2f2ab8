"""Settings: one frozen, typed tree, loaded once at start.

`load` merges file, environment and flags and raises `ConfigError` with every problem it found. Nothing below this
package reads the environment or a file for a setting. It imports nothing else of Dragoman.
"""

from dragoman.config.checks import ConfigError
from dragoman.config.load import Loaded, Source, load, load_with_sources
from dragoman.config.reference import masked, masked_url
from dragoman.config.schema import Config

__all__ = ["Config", "ConfigError", "Loaded", "Source", "load", "load_with_sources", "masked", "masked_url"]
