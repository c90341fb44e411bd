"""The browser fixture of a test module."""

from tests.dashboard.browsing import launcher  # noqa: F401
