"""Pods keep `sandlot.testing.conformance.images`."""

import pytest

from sandlot.testing.conformance.images import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
