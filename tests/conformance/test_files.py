"""The local backend keeps `sandlot.testing.conformance.files`."""

from sandlot.testing.conformance.files import *  # noqa: F403
