"""Pods keep `sandlot.testing.conformance.output`."""

import pytest

from sandlot.testing.conformance.output import *  # noqa: F403

pytestmark = pytest.mark.asyncio(loop_scope="package")
