"""Programs that run inside a task's sandbox, under the task's own interpreter: standard library only, any Python 3.

Nothing here is imported by Sandlot; each file is written into the sandbox as it stands.
"""
