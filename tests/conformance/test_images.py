"""The local backend keeps `sandlot.testing.conformance.images`."""

from sandlot.testing.conformance.images import *  # noqa: F403
