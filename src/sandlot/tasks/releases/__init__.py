"""Tasks from two neighbouring releases of a project on the Python registry: the older tree, the newer one's change, its tests.

recipe     what is asked: project, two versions, and what helps (pins, paths)
index      the client's registry settings, for pip inside the sandbox
inside     downloads, unpacks, builds and installs, all in a networked sandbox; nothing of it runs on this machine
trees      pure: two trees -> gold patch, hidden tests, problem statement
calibrate  runs both, five times, with no network: FAIL_TO_PASS, PASS_TO_PASS, unstable set aside
build      the whole way, cached
"""
