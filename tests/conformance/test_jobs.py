"""The local backend keeps `sandlot.testing.conformance.jobs`."""

from sandlot.testing.conformance.jobs import *  # noqa: F403
