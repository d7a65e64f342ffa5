"""From an image reference to what the host mounts: `sandlot.images` reads, `layers` says what each member means, `cache`
where unpacked layers lie, and `store` puts them together.

Nothing of an image is ever extracted by this process: members are streamed into a sandbox that has no image and writes to
one directory, so that links, owners and names of a hostile archive act inside a user namespace.
"""
