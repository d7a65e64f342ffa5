"""The local backend keeps `sandlot.testing.conformance.output`."""

from sandlot.testing.conformance.output import *  # noqa: F403
