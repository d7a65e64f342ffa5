#!/bin/sh
# Bring what Sandlot's build and tests take from the operating system, and only what is missing.
# A quick look when nothing is: safe to run before every target.
set -eu

needed=""   # without these nothing builds
wanted=""   # without these some tests have nothing to run on

# want LIST COMMAND PACKAGE...: remember the packages when the command is absent.
want() {
    list=$1 command=$2; shift 2
    command -v "$command" >/dev/null 2>&1 && return 0
    case $list in needed) needed="$needed $*" ;; *) wanted="$wanted $*" ;; esac
}

PATH="$PATH:/usr/sbin:/sbin"
want needed cc gcc libc6-dev
want wanted newuidmap uidmap
want wanted debootstrap debootstrap
want wanted busybox busybox-static
want wanted git git
want wanted docker-registry docker-registry
want wanted skopeo skopeo
want wanted runc runc
want wanted qemu-system-x86_64 qemu-system-x86 seabios
if ! "${PYTHON:-python3}" -c 'import ensurepip, venv' >/dev/null 2>&1; then needed="$needed python3 python3-venv"; fi

[ -n "$needed$wanted" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: missing:$needed$wanted (Debian's names); install them with this system's package manager and run again" >&2
    [ -z "$needed" ] && exit 0 || exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: not root, so these are not installed; run: sudo apt-get install -y$needed$wanted" >&2
    [ -z "$needed" ] && exit 0 || exit 1
fi

echo "setup: installing$needed$wanted" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
if ! { apt-get update -q && apt-get install -q -y --no-install-recommends $needed $wanted; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed (its last lines are above); install by hand and run again:$needed$wanted" >&2
    exit 1
fi
