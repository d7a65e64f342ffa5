"""Images as they lie on disk, for every backend: `reference` reads the text of a reference, `oci` the documents of an image,
`blobs` its verified bytes, `tarstream` the archive of a layer; `tarwriter` makes archives of directories.

Nothing here unpacks, mounts or sends anything. What is read is untrusted: sizes are bounded before memory is taken.
"""
