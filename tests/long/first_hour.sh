#!/bin/bash
# The first hour of somebody new, in a bare Debian 12 with git and make, as a user without rights: what
# `make demo` says when it may install nothing, the chat it gives without a network, `make install` into the
# home folder, README's C program, habits that people bring, a conversation on a terminal, and `make
# uninstall`. Needs root, debootstrap and a mirror. KERMES_DEBIAN_ROOTS: a folder with roots to use and keep.
set -eu
cd "$SRC_DIR"
work=$(mktemp -d)
. tests/long/debian_root.sh
trap 'debian_roots_end; rm -rf --one-file-system "$work"' EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "chroot needs root"
command -v debootstrap >/dev/null 2>&1 || skip "debootstrap is missing"
base=$(debian_root bookworm) || skip "debootstrap cannot make bookworm here"
root=$(debian_copy "$base")
mount -t proc proc "$root/proc" && echo "$root/proc" >>"$work/mounts"
mkdir -p "$root/dev/pts"
mount --bind /dev/pts "$root/dev/pts" && echo "$root/dev/pts" >>"$work/mounts"
for node in "zero c 1 5" "random c 1 8" "urandom c 1 9" "tty c 5 0" "ptmx c 5 2"; do
    # shellcheck disable=SC2086 # its words
    [ -e "$root/dev/${node%% *}" ] || mknod -m 666 "$root/dev/"$node
done
chroot "$root" sh -c 'apt-get -qq install -y --no-install-recommends git make >/dev/null 2>&1; useradd -m new'
git clone -q --no-hardlinks . "$root/home/new/kermes"
chroot "$root" chown -R new:new /home/new
user() { # user COMMAND: as somebody without rights and without a network, in the clone
    unshare -n chroot --userspec=new:new "$root" /usr/bin/env -i HOME=/home/new USER=new TERM=xterm LC_ALL=C.UTF-8 \
        PATH=/usr/local/bin:/usr/bin:/bin sh -c "cd ~/kermes && $1" </dev/null
}
fail() {
    echo "first hour: $1"
    tail -n 20 "$work/said"
    exit 1
}
try() { user "$1" >"$work/said" 2>&1 || fail "'$1' failed"; }
says() { grep -qF -- "$1" "$work/said" || fail "it does not say: $1"; }

# Nothing may be installed: the one line to run, and it works.
user 'make demo' >"$work/said" 2>&1 && fail "make demo went on without a compiler"
says "Run this as root (su -), then try again:"
! grep -q sudo "$work/said" || fail "sudo is named where there is none"
line=$(sed -n 's/^    \(apt-get update .*\)/\1/p' "$work/said")
chroot "$root" sh -c "$(echo "$line" | sed 's/apt-get install/apt-get -y install/')" >"$work/said" 2>&1 || fail "the line failed: $line"

# No network, no model: the tiny one answers, and says how to get a better one.
try 'make demo'
says "this is a tiny one that Kermes trained itself"
says "kermes pull smollm2"
grep -A1 '^> Who are you?' "$work/said" | tail -n 1 | grep -q '[a-z]' || fail "no answer"
kept=$(stat -c %Y "$root/home/new/kermes/build/release/CMakeFiles/kermes_objects.dir/src/base/alloc.c.o")

# README's C program, by README's lines.
try 'make install PREFIX=$HOME/.local'
says "export PKG_CONFIG_PATH=/home/new/.local/lib/pkgconfig"
[ "$(stat -c %Y "$root/home/new/kermes/build/release/CMakeFiles/kermes_objects.dir/src/base/alloc.c.o")" = "$kept" ] ||
    fail "make install compiled what make demo had compiled"
awk '/^```c$/ { on = 1; text = ""; next } /^```/ { on = 0 } on { text = text $0 "\n" } END { printf "%s", text }' \
    README.md >"$root/home/new/kermes/fit.c"
lines=$(awk '/^make install PREFIX=/ { on = 1; next } /^```/ { on = 0 } on' README.md)
try "$lines"
says "3.000 -1.000"

# Habits, with the installed command and the model of the repository.
k='export PATH=$HOME/.local/bin:$PATH KERMES_MODELS=$HOME/kermes/models;'
try "$k kermes --version && kermes -V && kermes models"
user "$k kermes doctor" >"$work/said" 2>&1 || true # what is missing is told by its status, too
says "Kermes can run here"
try "$k echo 'Who are you?' | kermes run --chat --temp 0"
try "$k kermes run 'The sea is' -n 8 && kermes run -p 'The sea is' -n 8 -m kermes-tiny && echo hi | kermes run --file - -n 4"
try "$k kermes sample 'The sea' -n 4 && kermes perplexity --file README.md --context 64 --pieces 2"
user "$k kermes run -m docs/nothing.png hi" >"$work/said" 2>&1 && fail "a name that does not exist was run"
[ "$(wc -l <"$work/said")" -eq 1 ] || fail "not one line"

# A conversation on a terminal.
try "$k printf 'Who are you?\n/settings\n/stats\n/bye\n' >typed; script -qec 'kermes chat -m models/kermes-tiny.gguf --temperature 0' /dev/null <typed"
says "temperature"

# And away with it.
try 'make uninstall PREFIX=$HOME/.local'
# Models and the history of chats are the user's.
left=$(find "$root/home/new/.local" -type f -o -type l | grep -v '/\(share\|state\)/kermes/' || true)
[ -z "$left" ] || fail "left behind: $left"
echo "a new user got through"
