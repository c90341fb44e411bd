"""The browser that the tests of a module share."""

from tests.dashboard.browsing import launcher  # noqa: F401
