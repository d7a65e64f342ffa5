"""The local backend keeps `sandlot.testing.conformance.arguments`."""

from sandlot.testing.conformance.arguments import *  # noqa: F403
