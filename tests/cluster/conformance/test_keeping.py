"""Pods keep `sandlot.testing.conformance.keeping`."""

import pytest

from sandlot.testing.conformance.keeping import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
