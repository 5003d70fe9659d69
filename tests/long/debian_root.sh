# For tests that need bare Debian systems: makes them by debootstrap, in KERMES_DEBIAN_ROOTS (kept) or in
# $work (gone with it). Sourced, not run.

# debian_root SUITE: tells a root's folder. Bare: no compiler; Python with venv is there for wheels.
debian_root() {
    local root=${KERMES_DEBIAN_ROOTS:-$work}/$1
    if [ ! -e "$root/.whole" ]; then
        mkdir -p "$root"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$1" "$root" \
            >"$work/debootstrap.log" 2>&1 || { tail -n 3 "$work/debootstrap.log" >&2 && return 1; }
        touch "$root/.whole"
    fi
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # An index behind a certificate of one's own is reached as it is here, and so are packages.
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] ||
        cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    mkdir -p "$root/proc" "$root/dev"
    mountpoint -q "$root/proc" || { mount -t proc proc "$root/proc" && echo "$root/proc" >>"$work/mounts"; }
    [ -c "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
    echo "$root"
}

# debian_copy ROOT: a copy to install things in.
debian_copy() {
    rm -rf "$work/copy"
    mkdir "$work/copy"
    tar -C "$1" --one-file-system --exclude=./proc -cf - . | tar -C "$work/copy" -xf -
    mkdir -p "$work/copy/proc"
    chroot "$work/copy" apt-get -qq update >/dev/null 2>&1 || true
    echo "$work/copy"
}

debian_roots_end() {
    [ ! -e "$work/mounts" ] || while read -r place; do umount "$place" 2>/dev/null || true; done <"$work/mounts"
}
