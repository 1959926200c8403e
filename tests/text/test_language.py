"""The language of a text that hardly has sentences."""

import pytest

from gpu_rag.text.language import language_of

LOGS = (
    "2024-06-0{0} 06:00:00 INFO cellar2 temp=12.{0} hum=88\n",
    "2024-03-0{0} 06:01:12 INFO rectifier start, feeder A 54{0} V\n",
)
TRIPPED = "2024-06-30 ERROR breaker B tripped, cause: squirrel in the busbar chamber, reset by M. Kessler\n"


@pytest.mark.parametrize("line", LOGS)
def test_a_log_that_says_a_few_words_again_and_again_is_english(line: str) -> None:
    """The model alone takes these for French with .82."""
    lines = [line.format(day % 9 + 1) for day in range(20)]
    assert language_of("".join((*lines, TRIPPED, *lines))) == "en"


def test_a_log_with_sentences_has_their_language() -> None:
    says = ("Pumpe 2 wurde wegen eines Lecks abgestellt.", "Der Kessel ist wieder in Betrieb.", "Die Nacht war ruhig.")
    assert language_of("\n".join(f"2024-06-0{day} 06:00 {text}" for day, text in enumerate(says, 1))) == "de"
