"""The local backend keeps `sandlot.testing.conformance.keeping`."""

from sandlot.testing.conformance.keeping import *  # noqa: F403
