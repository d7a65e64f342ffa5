"""Sandboxes on this machine: a `sandlotd host` started by this process makes them from namespaces, overlayfs and cgroups.

`runtime` knows the directories and the hosts in them, `hostlink` starts one host and talks to it, `images` turns references
into directories, and `backend` puts these behind the `Backend` protocol.
"""

from sandlot.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
