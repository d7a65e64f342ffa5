"""Pods keep `sandlot.testing.conformance.arguments`."""

import pytest

from sandlot.testing.conformance.arguments import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
