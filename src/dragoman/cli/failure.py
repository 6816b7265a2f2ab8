"""How a command says no: one sentence for standard error and an exit status."""

USAGE = 2


class Failure(Exception):
    """Raised anywhere below a command. Status 1: it did not work; `USAGE`: it was asked for wrongly."""

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
