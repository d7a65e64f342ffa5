"""Image registries: `names` reads references, `credentials` finds what a person's tools have stored for a registry, `client`
speaks the OCI distribution protocol.

Only pushing and looking up are here: nodes pull by themselves.
"""

from sandlot.backends.kubernetes.registry.client import Blob, Registry
from sandlot.backends.kubernetes.registry.names import Repository, Target, parse_repository, parse_target

__all__ = ["Blob", "Registry", "Repository", "Target", "parse_repository", "parse_target"]
