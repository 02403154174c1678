"""Digits, and an ordinary network for them, trained once."""

import pytest
from torch import nn

import dubio
from audit_cases import trained

pytest.importorskip("sklearn")


@pytest.fixture(scope="session")
def digits() -> dubio.data.Examples:
    return dubio.data.load_test("digits")


@pytest.fixture(scope="session")
def plain() -> nn.Module:
    """An ordinary network, trained in the ordinary way."""
    return trained(None)
