"""Pods keep `sandlot.testing.conformance.jobs`."""

import pytest

from sandlot.testing.conformance.jobs import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
