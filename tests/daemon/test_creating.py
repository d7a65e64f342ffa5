"""What a sandbox is made of: images, uppers, furniture, and what is refused before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.daemon import outside
from tests.daemon.conftest import MakeBox
from tests.daemon.wire import Box, Host

DISK = {"kind": "disk", "size_bytes": None}


def layer(folder: Path, files: dict[str, str]) -> bytes:
    """A directory with these files, as an image's layer."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return os.fsencode(folder)


def with_busybox(folder: Path) -> bytes:
    """A layer with a shell."""
    (folder / "bin").mkdir(parents=True)
    for name in ("sh", "cat", "ls", "id", "stat", "touch", "chown", "mkdir", "mount", "hostname", "printf", "pwd", "rm"):
        (folder / "bin" / name).write_bytes(Path("/bin/busybox").read_bytes())
        (folder / "bin" / name).chmod(0o755)
    return os.fsencode(folder)


@pytest.fixture
def base(tmp_path: Path) -> bytes:
    """A layer that has a shell and little else."""
    os.chmod(tmp_path, 0o755)
    return with_busybox(tmp_path / "base")


def test_the_hello_names_the_sandbox(box: Box) -> None:
    """The init answers on the same connection and says who it is."""
    assert box.greeting["role"] == "init"
    assert (box.greeting["name"], box.greeting["mode"]) == (box.name, "range-root")


def test_environment_is_the_images_alone(make: MakeBox) -> None:
    """Only what was given, and a PATH when none was."""
    box = make(env=[b"A=l1\nl2", b"B="])
    lines = box.text("env -0 | tr '\\0' '|'")
    assert "A=l1\nl2|" in lines
    assert "B=|" in lines
    assert "PATH=/usr/local/sbin:" in lines
    assert "SANDLOT" not in lines


def test_the_system_is_writable_and_the_machine_is_not(box: Box) -> None:
    """System directories can be changed inside; the machine's own do not change."""
    assert box.code("echo x > /usr/bin/from-inside && echo y > /etc/from-inside && rm /usr/bin/env") == 0
    assert not Path("/usr/bin/from-inside").exists()
    assert not Path("/etc/from-inside").exists()
    assert Path("/usr/bin/env").exists()


def test_root_and_others_have_their_files(box: Box) -> None:
    """All 65,536 ids work: root owns the system, files can be given away, users can be become."""
    assert box.text("stat -c %u:%g /usr/bin/env /etc/passwd /root") == "0:0\n0:0\n0:0"
    assert box.text("touch /tmp/f && chown 65534:12345 /tmp/f && stat -c %u:%g /tmp/f") == "65534:12345"
    assert box.text("id -u", user="nobody") == "65534"
    assert box.text("setpriv --reuid 5 --regid 6 --clear-groups id -u") == "5"
    assert box.text("useradd -m ann && su ann -c 'id -un; echo $HOME'") == "ann\n/home/ann"


def test_furniture_is_that_of_a_container(box: Box) -> None:
    """Devices, terminals, shared memory, a host name, loopback and nothing else."""
    assert box.text("echo x > /dev/null; head -c 2 /dev/zero | od -An -tx1; readlink /dev/fd /dev/ptmx") == (
        "00 00\n/proc/self/fd\npts/ptmx"
    )
    assert box.text("hostname; cat /etc/hostname") == "sandbox\nsandbox"
    assert box.text("stat -f -c %T /dev/shm; stat -c %a /tmp /dev/shm /var/tmp") == "tmpfs\n1777\n1777\n1777"
    assert box.text("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '") == "lo"
    assert box.text("getent hosts localhost sandbox | wc -l") == "2"
    assert box.text("python3 -c 'import os; print(os.openpty()[0] > 0)'") == "True"
    server = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('ok')"
    assert box.text(f'python3 -c "{server}"') == "ok"


def test_layers_lie_one_over_the_other(make: MakeBox, base: bytes, tmp_path: Path) -> None:
    """The highest layer wins, whiteouts hide what is below, and no layer changes."""
    lower = layer(tmp_path / "one", {"data/a": "one", "data/b": "one", "data/c": "one"})
    upper = layer(tmp_path / "two", {"data/b": "two"})
    os.mknod(tmp_path / "two/data/c", 0o020000, 0)
    box = make(image={"kind": "layers", "layers": [base, lower, upper]})
    assert box.text("cat /data/a /data/b; ls /data") == "onetwoa\nb"
    assert box.code("echo new > /data/a && rm /data/b") == 0
    assert (tmp_path / "one/data/a").read_text() == "one"
    assert (tmp_path / "two/data/b").read_text() == "two"


def test_many_layers_are_mounted(make: MakeBox, base: bytes, tmp_path: Path) -> None:
    """More layers than descriptors fit into one message, or names into one page."""
    many = [layer(tmp_path / f"layer-{number}", {f"n/{number}": ""}) for number in range(300)]
    box = make(image={"kind": "layers", "layers": [base, *many]})
    assert len(box.text("ls /n").split()) == 300


def test_an_image_needs_nothing_but_its_program(make: MakeBox, base: bytes) -> None:
    """Mount points and the files that name the machine are there even if the image has none."""
    box = make(image={"kind": "layers", "layers": [base]}, hostname="h-1.x")
    assert box.text("ls -d /proc/self /dev/null /sys /tmp; cat /etc/hostname; stat -c %a /tmp") == (
        "/dev/null\n/proc/self\n/sys\n/tmp\nh-1.x\n1777"
    )


def test_directories_of_the_image_keep_their_owner_and_mode(make: MakeBox, base: bytes, tmp_path: Path) -> None:
    """What is laid over the image does not change its root or its /etc."""
    os.chmod(base, 0o751)
    layer(Path(os.fsdecode(base)), {"etc/x": "x"})
    os.chown(Path(os.fsdecode(base), "etc"), 12, 34)
    os.chmod(Path(os.fsdecode(base), "etc"), 0o750)
    box = make(image={"kind": "layers", "layers": [base]})
    assert box.text("stat -c %a:%u:%g / /etc") == "751:0:0\n750:12:34"


def test_a_linked_etc_is_left_alone(make: MakeBox, base: bytes) -> None:
    """An image whose /etc is a link has it still."""
    Path(os.fsdecode(base), "etc").symlink_to("usr/etc")
    box = make(image={"kind": "layers", "layers": [base]})
    assert "/etc -> usr/etc" in box.text("ls -ld /etc")


def test_a_missing_workdir_is_made(make: MakeBox, base: bytes) -> None:
    """The working directory is made where the image has none, below links too, and never outside."""
    Path(os.fsdecode(base), "app").symlink_to("/srv/real")
    box = make(image={"kind": "layers", "layers": [base]}, workdir=b"/new/work dir")
    assert box.text("pwd") == "/new/work dir"
    Path(os.fsdecode(base), "srv").mkdir()
    Path(os.fsdecode(base), "srv/real").mkdir()
    box = make(image={"kind": "layers", "layers": [base]}, workdir=b"/app/below")
    assert box.text("pwd -P") == "/srv/real/below"
    assert not Path(os.fsdecode(base), "srv/real/below").exists()


def test_a_workdir_that_cannot_be_is_the_images_fault(host: Host, base: bytes) -> None:
    """A file where the working directory should be is a clear error, and leaves no sandbox."""
    layer(Path(os.fsdecode(base)), {"app": "a file"})
    _, answer = host.try_create("bad", image={"kind": "layers", "layers": [base]}, workdir=b"/app/x")
    assert (answer["t"], answer["code"]) == ("error", "not_a_directory"), answer
    assert "bad" not in host.names()


def test_bare_directories_are_written_as_root_would(make: MakeBox, tmp_path: Path) -> None:
    """Ids inside are ids in the directory; nothing is mounted in it."""
    os.chmod(tmp_path, 0o755)
    tree = tmp_path / "tree"
    tree.mkdir()
    box = make(image={"kind": "bare", "path": os.fsencode(tree)})
    answer = box.call(t="write", path=b"/a/b", d=b"text", eof=True, parents=True, mode=0o4755)
    assert answer["t"] == "ok", answer
    found = (tree / "a/b").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (0, 0, 0o4755)
    assert os.listdir(tree) == ["a"]


def test_an_upper_on_disk_works_and_goes(make: MakeBox, host: Host, runtime: Path) -> None:
    """Files go to disk, without a limit to be enforced, and are gone with the sandbox and after a reset."""
    box = make(upper=DISK)
    disk = runtime / host.ready["host"] / "disk"
    assert box.code("head -c 3000000 /dev/zero > /big; mkdir -p /d/e; ln -s / /d/link") == 0
    assert sum(path.stat().st_size for path in disk.rglob("big")) == 3_000_000
    for _ in range(5):
        assert all(box.call(t="reset")["verified"].values())
        assert box.code("test ! -e /big && test ! -e /d && mkdir -p /d && echo x > /big") == 0
    outside.wait_until(lambda: sum(files.count("big") for _, _, files in os.walk(disk)) == 1, "old uppers are removed")
    assert host.destroy(box.name) == {"t": "ok", "id": 1, "existed": True}
    assert list(disk.iterdir()) == []


def test_a_disk_limit_cannot_be_required(host: Host, make: MakeBox) -> None:
    """A limit that nobody holds is refused, or named when that is enough."""
    _, answer = host.try_create("limited", upper={"kind": "disk", "size_bytes": 1 << 20})
    assert answer["code"] == "limit_unenforceable"
    assert "disk" in answer["message"]
    box = make(upper={"kind": "disk", "size_bytes": 1 << 20}, limits_mode="best-effort")
    assert box.created["unenforced"] == ["disk"]
    assert box.greeting["unenforced"] == ["disk"]
    assert box.run("true")["unenforced"] == ["disk"]


def test_a_full_upper_is_no_space(make: MakeBox) -> None:
    """The size of a tmpfs upper, and its number of files, are limits."""
    box = make(upper={"kind": "tmpfs", "size_bytes": 1 << 20, "inodes": 100})
    assert "No space left" in box.text("head -c 2000000 /dev/zero > /big")
    assert box.code("rm /big; i=0; while [ $i -lt 200 ]; do echo > /f$i || exit 9; i=$((i+1)); done") == 9


def test_read_only_roots_have_writable_places(make: MakeBox) -> None:
    """Nothing of the system can be written; /tmp, /run and /dev/shm can."""
    box = make(read_only=True)
    assert box.code("touch /x") != 0
    assert box.code("touch /usr/bin/x") != 0
    assert box.code("touch /tmp/x /run/x /dev/shm/x") == 0
    assert all(box.call(t="reset")["verified"].values())
    assert box.text("ls /tmp /dev/shm | grep x") == ""


def test_the_machines_network_is_shared_when_asked_for(make: MakeBox) -> None:
    """Network `host` has the machine's interfaces and its resolver."""
    box = make(network="host")
    inside = box.text("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").split()
    outside = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    assert inside == outside
    assert box.text("cat /etc/resolv.conf") == Path("/etc/resolv.conf").read_text().strip()
    assert all(box.call(t="reset")["verified"].values())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"image": {"kind": "layers", "layers": [b"/nowhere/at/all"]}}, "image"),
        ({"image": {"kind": "layers", "layers": [b"/etc/passwd"]}}, "image"),
        ({"image": {"kind": "layers", "layers": [b"relative"]}}, "bad_request"),
        ({"image": {"kind": "layers", "layers": []}}, "bad_request"),
        ({"image": {"kind": "layers", "layers": [b"/usr"] * 500}}, "bad_request"),
        ({"image": {"kind": "bare"}}, "bad_request"),
        ({"hostname": "a b"}, "bad_request"),
        ({"hostname": "a" * 65}, "bad_request"),
        ({"env": [b"NOVALUE"]}, "bad_request"),
        ({"env": [b"=x"]}, "bad_request"),
        ({"env": [b"A=" + b"x" * 300_000]}, "argument_too_long"),
        ({"workdir": b"relative"}, "bad_request"),
        ({"owner": "leased"}, "bad_request"),
        ({"owner": "attached", "lease_ms": 5}, "bad_request"),
        ({"labels": {"a": "x" * 20_000}}, "bad_request"),
    ],
)
def test_impossible_wishes_are_refused(host: Host, fields: dict[str, object], code: str) -> None:
    """Each is a typed error, the connection lives on, and nothing is left."""
    link, answer = host.try_create("refused", **fields)
    assert (answer["t"], answer.get("code")) == ("error", code), answer
    assert link.call(t="list")["sandboxes"] == []


@pytest.mark.parametrize("fields", [{"image": {"kind": "other"}}, {"limits": {"memory_bytes": "much"}}, {"owner": 5}])
def test_fields_of_a_wrong_type_end_the_connection(host: Host, fields: dict[str, object]) -> None:
    """They are a breach of the contract, which is told first."""
    link, answer = host.try_create("breach", **fields)
    assert (answer["t"], answer["id"], answer["code"]) == ("error", 0, "protocol_error"), answer
    with pytest.raises(EOFError):
        link.receive()


@pytest.mark.parametrize("name", ["", "x" * 129, "new\nline", "nul\0"])
def test_impossible_names_are_refused(host: Host, name: str) -> None:
    """A name is text that can be shown."""
    _, answer = host.try_create(name)
    assert answer["code"] == "bad_request", answer


def test_a_name_is_taken_while_its_sandbox_lives(host: Host, make: MakeBox) -> None:
    """The second creation under a name is refused; after the first is gone the name is free."""
    box = make(labels={"run": "1"})
    _, answer = host.try_create(box.name)
    assert answer["code"] == "exists"
    (entry,) = host.ask(t="list")["sandboxes"]
    assert (entry["name"], entry["owner"], entry["labels"]) == (box.name, "attached", {"run": "1"})
    host.destroy(box.name)
    again = host.create(box.name)
    assert again.text("echo again") == "again"


def test_a_sandbox_is_entered_by_name(host: Host, box: Box) -> None:
    """A second connection is a second link to the same sandbox."""
    box.text("echo shared > /tmp/x")
    other = host.enter(box.name)
    assert other.text("cat /tmp/x") == "shared"
    assert box.text("echo still here") == "still here"
    answer = host.ask(t="enter", name="nobody")
    assert (answer["t"], answer["code"]) == ("error", "gone")
