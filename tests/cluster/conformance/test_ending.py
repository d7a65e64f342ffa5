"""Pods keep `sandlot.testing.conformance.ending`."""

import pytest

from sandlot.testing.conformance.ending import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
