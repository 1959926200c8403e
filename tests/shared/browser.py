"""The browser that draws the pages of reports and of the server."""

import os
import shutil

import pytest


def chromium() -> str:
    """Where it is. Without one the test is skipped, in CI it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        message = "no Chromium found: install it to see the pages drawn"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found
