"""Pods keep `sandlot.testing.conformance.files`."""

import pytest

from sandlot.testing.conformance.files import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
