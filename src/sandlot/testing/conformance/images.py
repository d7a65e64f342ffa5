"""Images nobody changed for us: any libc or none, any user, any entrypoint; and who one can be inside them."""

from __future__ import annotations

import pytest

from sandlot import errors
from sandlot.testing.conformance import IMAGES, MakeBox


@pytest.mark.parametrize("image", [name for name in IMAGES if name != "static"])
async def test_every_image_with_a_shell_runs_scripts(make_box: MakeBox, image: str) -> None:
    """Whatever the image's user, workdir or entrypoint: a script runs by its sh and the entrypoint does not."""
    box = await make_box(image)
    assert (await box.exec("echo hello; exit 3")).exit_code == 3
    assert (await box.exec(["echo", "a b"])).stdout == "a b\n"


async def test_image_without_any_shell_runs_argument_vectors(make_box: MakeBox) -> None:
    """One static binary is enough: arguments, input, exit code, working directory."""
    box = await make_box("static")
    assert (await box.exec(["tool", "echo", "a b", ""])).stdout == "a b \n"
    assert (await box.exec(["/only/tool", "exit", "9"])).exit_code == 9
    assert (await box.exec(["tool", "cat"], stdin=b"\0x")).stdout_bytes == b"\0x"
    assert (await box.exec(["tool", "pwd"], cwd="/only")).stdout == "/only\n"


async def test_script_in_an_image_without_a_shell_is_127_with_words(make_box: MakeBox) -> None:
    """No sh in the image is said as a shell-less machine would say it; files and argument vectors go on working."""
    box = await make_box("static")
    result = await box.exec("echo x")
    assert result.exit_code == 127
    assert "sh" in result.stderr
    await box.write("/data/f", b"1")
    assert await box.read("/data/f") == b"1"


async def test_entrypoint_is_replaced_and_workdir_made(make_box: MakeBox) -> None:
    """The image's ENTRYPOINT and CMD never run; WORKDIR is where commands start."""
    box = await make_box("entrypoint")
    assert (await box.exec("pwd")).stdout == "/app\n"
    assert (await box.exec("ps -o args | grep -c '[/]bin/false' || true")).stdout == "0\n"


async def test_image_user_without_an_entry_can_work(make_box: MakeBox) -> None:
    """USER 1000 with no passwd entry: commands run as 1000, /dev/shm is writable, the image's directories are not."""
    box = await make_box("nonroot")
    result = await box.exec("id -u; echo x > /dev/shm/f && cat /dev/shm/f; echo x 2>/dev/null > /bin/f || echo refused")
    assert result.stdout.split() == ["1000", "x", "refused"]


async def test_root_is_root_inside(make_box: MakeBox) -> None:
    """The default user is uid 0 with its home."""
    box = await make_box("debian")
    assert (await box.exec("id -u; id -g")).stdout.split() == ["0", "0"]


@pytest.mark.parametrize(
    ("user", "uid", "gid", "home"),
    [
        ("root", "0", "0", "/root"),
        ("nobody", "65534", "65534", "/nonexistent"),
        ("1234", "1234", "0", "/"),
        (1234, "1234", "0", "/"),
        ("nobody:www-data", "65534", "33", "/nonexistent"),
        ("1234:4321", "1234", "4321", "/"),
    ],
)
async def test_users_by_name_and_number(make_box: MakeBox, user: str | int, uid: str, gid: str, home: str) -> None:
    """The right ids, HOME and groups, from the image's own tables."""
    box = await make_box("debian")
    result = await box.exec("id -u; id -g; echo $HOME", user=user, cwd="/")
    assert result.stdout.split() == [uid, gid, home]


async def test_supplementary_groups_come_from_the_image(make_box: MakeBox) -> None:
    """A named user has the groups the image's table gives it, and no others."""
    box = await make_box("busybox")
    result = await box.exec("id -G", user="nobody", cwd="/")
    assert sorted(result.stdout.split()) == ["10", "65534"]


async def test_unknown_user_is_a_typed_error(make_box: MakeBox) -> None:
    """A name nobody knows: an error before anything runs."""
    box = await make_box("debian")
    with pytest.raises((errors.BadRequest, errors.UserUnsupported)):
        await box.exec("touch /tmp/ran", user="ghost")
    assert not await box.exists("/tmp/ran")


async def test_other_users_are_kept_out_of_root_files(make_box: MakeBox) -> None:
    """File permissions inside mean what they say."""
    box = await make_box("debian")
    await box.exec("umask 077; echo secret > /root/s; install -d -m 700 /root/d", check=True)
    result = await box.exec("cat /root/s", user="nobody", cwd="/")
    assert result.exit_code != 0
    assert "secret" not in result.stdout


async def test_files_act_with_the_rights_of_their_user(make_box: MakeBox) -> None:
    """A user without the right gets PermissionError; what it writes is its own."""
    box = await make_box("debian")
    await box.exec("echo s > /root/s; chmod 600 /root/s; mkdir -m 777 /open", check=True)
    with pytest.raises(PermissionError):
        await box.read("/root/s", user="nobody")
    with pytest.raises(PermissionError):
        await box.write("/usr/x", b"", user="nobody")
    await box.write("/open/mine", b"1", user="nobody")
    assert (await box.exec("stat -c %U /open/mine")).stdout == "nobody\n"


async def test_user_management_works_as_in_a_container(make_box: MakeBox) -> None:
    """useradd, chown, su, sudo and setuid programs do their work."""
    box = await make_box("debian")
    script = """
    useradd -m -s /bin/sh agent && echo 'agent ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/agent
    echo data > /home/agent/f && chown agent:agent /home/agent/f && chmod 600 /home/agent/f
    su agent -c 'cat /home/agent/f; id -un; sudo -n id -u'
    """
    result = await box.exec(script)
    assert result.stdout.split() == ["data", "agent", "0"], result.stderr


async def test_package_database_can_be_written(make_box: MakeBox) -> None:
    """dpkg installs a package made on the spot, with owners and modes."""
    box = await make_box("debian")
    script = """
    set -e
    mkdir -p /tmp/p/DEBIAN /tmp/p/usr/share/thing && echo hi > /tmp/p/usr/share/thing/f
    printf 'Package: thing\\nVersion: 1\\nArchitecture: all\\n' > /tmp/p/DEBIAN/control
    printf 'Maintainer: x <x@example>\\nDescription: x\\n' >> /tmp/p/DEBIAN/control
    dpkg-deb -b /tmp/p /tmp/thing.deb >/dev/null && dpkg -i /tmp/thing.deb >/dev/null
    cat /usr/share/thing/f; dpkg -s thing | grep -c 'ok installed'
    """
    result = await box.exec(script)
    assert result.stdout.split() == ["hi", "1"], result.stderr


async def test_shared_memory_is_as_large_as_documented(make_box: MakeBox) -> None:
    """/dev/shm is half of the memory limit, and that much can really be written."""
    box = await make_box(memory="512MiB")
    result = await box.exec("df -k /dev/shm | tail -1 | awk '{print $2}'; head -c 200000000 /dev/zero > /dev/shm/f && echo ok")
    assert result.stdout.split() == [str(256 * 1024), "ok"]


async def test_disk_limit_is_an_ordinary_no_space_error(make_box: MakeBox) -> None:
    """Writing beyond `disk` fails as on a full disk; removing makes room; the sandbox lives."""
    box = await make_box(disk="16MiB")
    result = await box.exec("dd if=/dev/zero of=/big bs=1000000 count=30")
    assert result.exit_code != 0
    assert "space" in result.stderr.lower()
    assert (await box.exec("rm /big && echo x > /small && cat /small")).stdout == "x\n"


async def test_read_only_root_leaves_the_scratch_places(make_box: MakeBox) -> None:
    """With read_only the system cannot be written; /tmp and /dev/shm can, and files API and commands work."""
    box = await make_box(read_only=True)
    script = "echo x > /bin/f || echo refused; echo y > /tmp/f && cat /tmp/f; echo z > /dev/shm/f && cat /dev/shm/f"
    assert (await box.exec(script)).stdout.split() == ["refused", "y", "z"]
    await box.write("/tmp/g", b"1")
    assert await box.read("/tmp/g") == b"1"


async def test_usage_numbers_are_the_sandboxs_own(make_box: MakeBox) -> None:
    """Limits and use are those of the sandbox, not the machine's."""
    box = await make_box(memory="128MiB", cpu=1, pids=100)
    job = await box.start("head -c 20000000 /dev/zero > /dev/shm/f; sleep 300")
    while not (await box.exec("test $(wc -c < /dev/shm/f) = 20000000")).ok:
        pass
    usage = await box.usage()
    assert usage.memory_limit_bytes == 128 * 2**20
    assert usage.pids_limit == 100
    assert usage.memory_bytes is not None
    assert 20_000_000 <= usage.memory_bytes <= 128 * 2**20
    await job.signal(9)


async def test_missing_image_is_named(make_box: MakeBox) -> None:
    """A reference to nothing: a typed error with the reference in it, at once."""
    with pytest.raises(errors.ImageNotFound, match="no-such-image"):
        await make_box("dir:/no-such-image")
