"""How long to wait before something that died is started again: at once, unless it keeps dying."""

FIRST_S = 0.5
LONGEST_S = 10.0
GOOD_LIFE_S = 30.0


class Backoff:
    """Deaths in a row are counted; a life of `GOOD_LIFE_S` forgets those before it."""

    def __init__(self) -> None:
        self.deaths = 0

    def after(self, lived_s: float) -> float:
        """The seconds to wait, now that it died after `lived_s`: 0, 0.5, 1, 2 … 10."""
        self.deaths = 1 if lived_s >= GOOD_LIFE_S else self.deaths + 1
        if self.deaths == 1:
            return 0.0
        # The exponent is bounded, or a long night of crashes ends in numbers too large for a float.
        return float(min(LONGEST_S, FIRST_S * 2 ** min(self.deaths - 2, 16)))
