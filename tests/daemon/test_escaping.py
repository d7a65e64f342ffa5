"""Real attempts of hostile code, as root of the sandbox, at everything that it must not reach."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.conftest import MakeBox
from tests.daemon.wire import Box

CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    result = libc.syscall(*words)
    return os.strerror(ctypes.get_errno()) if result < 0 else "done"
"""


def python(box: Box, program: str, **more: object) -> str:
    """Run a Python program inside."""
    return box.text(b"cat > /tmp/program <<'END-OF-PROGRAM'\n" + program.encode() + b"\nEND-OF-PROGRAM\n", **more) or box.text(
        "python3 /tmp/program", **more
    )


@pytest.fixture
def canary() -> Iterator[str]:
    """A secret on the machine: in a file that everybody may read, and in this process' environment."""
    secret = f"canary-{secrets.token_hex(16)}"
    places = [Path("/var/tmp", secret), Path("/root", f".{secret}")]
    for place in places:
        place.write_text(secret)
        place.chmod(0o644)
    os.environ["CANARY"] = secret
    yield secret
    del os.environ["CANARY"]
    for place in places:
        place.unlink()


def test_no_secret_of_the_machine_is_in_sight(box: Box, canary: str) -> None:
    """A search through all files, environments and command lines that can be read finds no canary."""
    head, tail = canary[:10], canary[10:]  # in two pieces, or the search would find its own words
    box.text(f"printf %s {head} > /tmp/pattern; printf %s {tail} >> /tmp/pattern")
    assert box.text("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -c -f /tmp/pattern") == "0"
    assert (
        box.text("grep -rlsI --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr -f /tmp/pattern / | head") == "/tmp/pattern"
    )
    assert box.text("ls -A /root /home") == "/home:\n\n/root:"


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "umount -l /proc/sys",
        "umount /usr",
        "mount -o remount,rw /proc/sys",
        "unshare -m true",
        "unshare -Ur true",
        "unshare -n true",
        "nsenter -t 1 -m true",
        "nsenter -t 1 -a true",
        "mknod /tmp/sda b 8 0",
        "mknod /tmp/mem c 1 1",
        "chroot /proc/1/root true",
        "pivot_root /tmp /tmp",
        "echo 1 > /proc/sys/kernel/panic",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "cat /proc/kcore | head -c 1 | grep -q .",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "cat /proc/1/maps",
        "ls /proc/1/fd/",
        "ls /proc/1/root/",
        "readlink /proc/1/exe",
        "cat /proc/1/stack",
        "echo 0 > /proc/1/oom_score_adj",
        "dmesg",
        "swapon /tmp/x",
        "date -s 2000-01-01",
        "kill -9 1 && sleep 0.1 && test ! -d /proc/1",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
        "python3 -c 'import socket; socket.socket(socket.AF_VSOCK)'",
        "python3 -c 'import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)'",
        "ip link add dummy0 type dummy",
        "ip link set lo down",
    ],
)
def test_direct_attempts_fail(box: Box, attempt: str) -> None:
    """Each is refused, as root of the sandbox."""
    assert box.code(attempt) != 0, attempt
    assert box.text("echo alive") == "alive"


def test_raw_calls_are_refused(box: Box) -> None:
    """Calls that no program makes by itself: keys, handles, io_uring, bpf, foreign interfaces."""
    program = (
        CALL
        + """
print(call(248, b"user", b"x", b"y", 1, -3))         # add_key
print(call(250, 0, -3, 1))                           # keyctl
print(call(304, -100, 0, 0))                         # open_by_handle_at
print(call(425, 8, 0))                               # io_uring_setup
print(call(321, 0, 0, 0))                            # bpf
print(call(298, 0, 0, -1, -1, 0))                    # perf_event_open
print(call(323, 0))                                  # userfaultfd
print(call(428, -100, b"/", 1))                      # open_tree
print(call(430, b"tmpfs", 0))                        # fsopen
print(call(272, 0x10000000))                         # unshare(NEWUSER)
print(call(56, 0x10000011, 0, 0, 0, 0))              # clone(NEWUSER)
print(call(435, 0, 0))                               # clone3
print(call(0x40000000 | 39))                         # x32 getpid
"""
    )
    results = python(box, program).splitlines()
    assert set(results[:-2]) == {"Operation not permitted"}, results
    assert set(results[-2:]) == {"Function not implemented"}, results


def test_thirty_two_bit_calls_do_not_exist(box: Box, tmp_path: Path) -> None:
    """The old interrupt interface, which other filters forget, is not there either."""
    program = """
import ctypes, mmap
code = bytes([0x53, 0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x5b, 0xc3])  # getpid by int 0x80
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
print(ctypes.c_int(function()).value)
"""
    assert int(python(box, program)) < 0


def test_the_daemon_cannot_be_traced_or_read(box: Box) -> None:
    """ptrace, process_vm_readv and a pidfd's descriptors of PID 1 are refused."""
    program = (
        CALL
        + """
print(call(101, 16, 1, 0, 0))                        # ptrace(ATTACH)
print(call(101, 0x4206, 1, 0, 0))                    # ptrace(SEIZE)
buffer = ctypes.create_string_buffer(8)
class Iov(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local, remote = Iov(ctypes.addressof(buffer), 8), Iov(0x400000, 8)
one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
print(call(310, 1, ctypes.byref(local), one, ctypes.byref(remote), one, none))
print(call(311, 1, ctypes.byref(local), one, ctypes.byref(remote), one, none))
pidfd = libc.syscall(434, 1, 0)
print(call(438, pidfd, 0, 0))                        # pidfd_getfd
"""
    )
    assert set(python(box, program).splitlines()) == {"Operation not permitted"}


def test_signals_do_not_reach_beyond(box: Box) -> None:
    """Killing everybody kills the sandbox's own processes alone, and not its daemon."""
    box.run("kill -9 -1")
    box.run("kill -15 1; kill -2 1; kill -11 1; kill -6 1")
    assert box.text("echo alive") == "alive"


def test_only_its_own_processes_are_in_sight(make: MakeBox) -> None:
    """Neither the machine's processes nor another sandbox's."""
    one, two = make(), make()
    one.run("sleep 1000 & sleep 1001 &")
    listed = two.text("ls /proc | grep -c '^[0-9]'; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "1000" not in listed
    assert int(listed.split()[0]) < 8


def test_sandboxes_do_not_share_memory_or_names(make: MakeBox) -> None:
    """System V and POSIX objects, abstract sockets, /tmp and /dev/shm are each sandbox's own."""
    one, two = make(), make()
    one.run("ipcmk -M 4096; ipcmk -Q; echo x > /dev/shm/x; echo x > /tmp/x; mkdir /dev/mqueue/x 2>/dev/null; hostname other")
    listen = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0name'); s.listen(); time.sleep(1000)"
    one.run(f'python3 -c "{listen}" &')
    assert two.text("tail -n +2 /proc/sysvipc/shm; tail -n +2 /proc/sysvipc/msg; ls /dev/shm /tmp /dev/mqueue | grep x") == ""
    assert two.text("cat /proc/net/unix | grep -c '@name'") == "0"
    assert two.text("hostname") == "sandbox"


def test_the_hosts_socket_is_out_of_reach(box: Box, host_socket: str) -> None:
    """There is no path to it, no abstract name, and no descriptor of the daemon's in a command."""
    assert box.code(f"test -e {host_socket}") == 1
    assert box.text("ls -l /proc/self/fd | tail -n +2 | wc -l") == "4"  # 0, 1, 2 and the directory itself
    assert box.text("awk 'NR > 1 && NF > 7' /proc/net/unix") == ""  # no socket with a name


@pytest.fixture
def host_socket(host: object) -> str:
    """Path of the host's listener."""
    return os.fsdecode(host.ready["socket"])  # type: ignore[attr-defined]


def test_layers_cannot_be_written_through(make: MakeBox, tmp_path: Path) -> None:
    """Hard links, renames, xattrs and open files of a lower change the sandbox's copy alone."""
    os.chmod(tmp_path, 0o755)
    box = make(image={"kind": "host"})
    before = os.stat("/usr/bin/env")
    box.run(
        "ln /usr/bin/env /usr/bin/env2; chmod 777 /usr/bin/env; echo x >> /usr/bin/env; setfattr -n user.x -v y /usr/bin/env"
    )
    box.run("python3 -c \"import os; f = os.open('/usr/bin/env', os.O_RDWR); os.pwrite(f, b'x', 0); os.ftruncate(f, 1)\"")
    after = os.stat("/usr/bin/env")
    assert (before.st_size, before.st_mode, before.st_mtime_ns, before.st_nlink) == (
        after.st_size,
        after.st_mode,
        after.st_mtime_ns,
        after.st_nlink,
    )


def test_set_user_id_files_mean_nothing_outside(make: MakeBox, host: object, runtime: Path) -> None:
    """Root's files on disk belong to an id that is nobody's outside."""
    box = make(upper={"kind": "disk", "size_bytes": None})
    box.run("cp /bin/sh /evil && chmod 6777 /evil")
    (evil,) = (runtime / host.ready["host"] / "disk").rglob("evil")  # type: ignore[attr-defined]
    assert evil.stat().st_uid >= 0x7000_0000
    assert (runtime / host.ready["host"]).stat().st_mode & 0o077 == 0  # type: ignore[attr-defined]


def test_capabilities_are_those_of_a_container_at_most(box: Box) -> None:
    """No dangerous capability, not even for a set-user-ID program; a filter is in force."""
    status = dict(line.split(":\t") for line in box.text("cat /proc/self/status").splitlines() if ":\t" in line)
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0xA00405FB
    assert status["Seccomp"] == "2"
    nobody = dict(line.split(":\t") for line in box.text("cat /proc/self/status", user="nobody").splitlines() if ":\t" in line)
    assert int(nobody["CapEff"], 16) == int(nobody["CapPrm"], 16) == int(nobody["CapAmb"], 16) == 0
    assert nobody["Groups"].split() in ([], ["65534"])


def test_a_chroot_leads_nowhere(box: Box) -> None:
    """The classical way out of a chroot ends at the sandbox's own root."""
    program = """
import os
os.makedirs("/tmp/jail", exist_ok=True)
fd = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(fd)
for _ in range(64): os.chdir("..")
os.chroot(".")
print(sorted(os.listdir("/")))
"""
    assert python(box, program) == box.text("python3 -c 'import os; print(sorted(os.listdir(\"/\")))'")


def test_core_dumps_go_nowhere(box: Box) -> None:
    """A crash writes no file, and asks no program of the machine to take a dump."""
    assert box.run("cd /tmp && ulimit -c unlimited; kill -SEGV $$")["signal"] == 11
    assert box.text("ls /tmp; ulimit -Hc") == "0"


def test_links_planted_by_the_sandbox_are_not_followed_outside(make: MakeBox) -> None:
    """File calls resolve inside, whatever links the sandbox has made."""
    box = make()
    marker = Path("/var/tmp/sandlot-marker")
    marker.unlink(missing_ok=True)
    box.run("rm -rf /var/tmp; ln -s /proc/1/root/var/tmp /var/tmp; ln -s /proc/1/cwd /esc")
    box.call(t="write", path=b"/var/tmp/sandlot-marker", d=b"x", eof=True)
    box.call(t="write", path=b"/esc/var/tmp/sandlot-marker", d=b"x", eof=True)
    assert not marker.exists()


def test_another_users_connection_is_refused(host_socket: str) -> None:
    """Even with a way to the socket, only this user and root may speak to the host."""
    folder = Path(host_socket).parent
    os.chmod(folder, 0o755)
    os.chmod(host_socket, 0o777)
    read, write = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(10)
                sock.connect(host_socket)
                os.write(write, b"closed" if sock.recv(1) == b"" else b"served")
            except OSError as error:
                os.write(write, f"refused {error}".encode())
            finally:
                os._exit(0)
        os.close(write)
        word = os.read(read, 100)
        os.waitpid(child, 0)
        assert word == b"closed" or word.startswith(b"refused"), word
    finally:
        os.close(read)
        os.chmod(folder, 0o700)
