"""The generator of broken inputs, with one seed for all of these tests."""

import pytest
from mutator import Mutator


@pytest.fixture
def mutator() -> Mutator:
    return Mutator(20261121)
