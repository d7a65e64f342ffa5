"""Images that exist only on this machine, brought to where nodes can pull them: into a registry, once, named by their content.

`packing` makes blobs of directories, `images` puts the documents of an image together, `archives` writes images to files,
`publisher` sends what is missing and lets concurrent callers share it, `daemon` makes the image that delivers the daemon,
`advertised` finds a cluster's registry.
"""

from sandlot.backends.kubernetes.publishing.publisher import Publisher, Step

__all__ = ["Publisher", "Step"]
