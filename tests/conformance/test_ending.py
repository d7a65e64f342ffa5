"""The local backend keeps `sandlot.testing.conformance.ending`."""

from sandlot.testing.conformance.ending import *  # noqa: F403
