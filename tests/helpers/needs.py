"""Marks for tests that need optional packages, without importing them at collection: that takes seconds."""

from importlib.util import find_spec

import pytest


def needs(package, extra):
    """Skip a test where `package` is not installed. `extra` is the extra of Coterie that brings it."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs coterie[{extra}]")
