#!/bin/bash
# Packages as users meet them: `make deb` and `make tarball`, installed, run, upgraded and removed in bare
# Debian 11, 12 and 13 roots, and the tarball for ARM by qemu. Needs root, debootstrap and a mirror.
# KERMES_DEBIAN_ROOTS: a folder with roots to use and keep; KERMES_PACKAGES: packages that are made already.
set -eu
cd "$SRC_DIR"
work=$(mktemp -d)
. tests/long/debian_root.sh
trap 'debian_roots_end; rm -rf "$work"' EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "chroot needs root"
command -v debootstrap >/dev/null 2>&1 || skip "debootstrap is missing"

packages=${KERMES_PACKAGES:-}
if [ -z "$packages" ]; then
    KERMES_CUDA=${KERMES_CUDA:-OFF} scripts/make-deb
    scripts/make-tarball
    ! command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || scripts/make-tarball aarch64
    packages=$SRC_DIR/build/packages
fi
version=$(dpkg-deb -f "$packages"/kermes_*.deb Version)
machine=$(uname -m)
if command -v lintian >/dev/null 2>&1; then
    lintian --fail-on error --allow-root "$packages"/*.deb
    echo "== lintian finds no error"
else
    echo "not run: lintian, which is missing"
fi
# The command is to stay small: 8 MB, with the libraries that it links.
dpkg-deb -x "$packages"/kermes_*.deb "$work/size"
size=$(find "$work/size" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')
echo "== the package kermes takes $size bytes installed"
[ "$size" -le 8000000 ] || { echo "that is more than 8 MB" && exit 1; }

# The same packages under an older number, with a file that the new ones do not have.
mkdir "$work/older"
for deb in "$packages"/*.deb; do
    dpkg-deb -R "$deb" "$work/unpacked"
    sed -i "s/^Version: .*/Version: 0.0.9/; s/(= $version)/(= 0.0.9)/g" "$work/unpacked/DEBIAN/control"
    name=$(dpkg-deb -f "$deb" Package)
    echo "of an older version" >"$work/unpacked/usr/share/doc/$name/older"
    dpkg-deb --root-owner-group -Zgzip -b "$work/unpacked" "$work/older" >/dev/null
    rm -rf "$work/unpacked"
done

cat >"$work/fit.c" <<'C'
#include <kermes.h>
#include <stdio.h>
int main(void) {
    km_model *m = km_model_open("/try/kermes-tiny.gguf", NULL);
    char *text = km_generate_text(m, "The sea is", NULL);
    puts(text ? text : km_last_error());
    int failed = !text;
    km_string_free(text);
    km_model_close(m);
    return failed;
}
C

# Runs inside a root: what a user does.
cat >"$work/user.sh" <<'SH'
set -eu
export HOME=/try/home LC_ALL=C
mkdir -p "$HOME"
chat() { # chat COMMAND: a tiny model that Kermes trained itself answers
    answer=$(echo 'What is the capital of France?' | "$1" chat -m /try/kermes-tiny.gguf --temperature 0 --quiet)
    case $answer in *Paris*) ;; *) echo "$1 chat said: $answer" && exit 1 ;; esac
}
list() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /try -o -path /var/cache \
    -o -path /var/lib/dpkg -o -path /var/log -o -path /var/lib/apt -o -path /root \) -prune -o -print | sort; }
list >/try/before
ls /try/older/*.deb | grep -q . && dpkg -i /try/older/libkermes0_*.deb /try/older/kermes_*.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' kermes)" = 0.0.9 ] && [ -e /usr/share/doc/kermes/older ]
for module in /try/older/kermes-cuda_*.deb; do [ ! -e "$module" ] || dpkg -i "$module" >/dev/null; done
dpkg -i /try/new/libkermes0_*.deb /try/new/kermes_*.deb \
    $(ls /try/new/kermes-cuda_*.deb 2>/dev/null || true) >/dev/null
[ "$(dpkg-query -W -f '${Version}' kermes)" != 0.0.9 ] && [ ! -e /usr/share/doc/kermes/older ]
kermes --version
chat kermes
# Without a GPU, with kermes-cuda or without: one plain line in both, and all of it works by the CPU.
gpu() { # gpu PRESENT: whether there are GPU kernels
    kermes devices --json --quiet | tr -d '\n' | grep -q '"kernels": { *"present": '"$1"
    kermes devices --quiet | grep -q '^GPU *no NVIDIA driver; everything runs on the CPU$'
    kermes doctor >/try/doctor 2>&1 || true
    grep -q '^good *GPU *no NVIDIA driver; everything runs on the CPU$' /try/doctor || { cat /try/doctor && exit 1; }
    if kermes run -m /try/kermes-tiny.gguf --device cuda -n 1 hi >/try/said 2>&1; then exit 1; fi
    [ "$(wc -l </try/said)" -eq 1 ] && grep -q 'no NVIDIA driver' /try/said || { cat /try/said && exit 1; }
    chat kermes
}
if [ -e /usr/lib/kermes/kermes-cuda.so ]; then
    gpu true
    echo "    kermes-cuda is opened: $(kermes devices --json --quiet | sed -n 's/.*"note": "\(sm_[^"]*\)".*/\1/p')"
    dpkg --purge kermes-cuda >/dev/null
fi
gpu false
[ -s /usr/share/man/man1/kermes.1.gz ] || [ -e /etc/dpkg/dpkg.cfg.d/excludes ]
if [ -e /try/develop ]; then # with a compiler: the header, pkg-config, both libraries
    apt-get -qq install -y --no-install-recommends gcc libc6-dev pkg-config /try/new/libkermes-dev_*.deb >/dev/null 2>&1
    cc /try/fit.c $(pkg-config --cflags --libs kermes) -o /try/fit && /try/fit >/dev/null
    cc /try/fit.c $(pkg-config --cflags kermes) $(pkg-config --variable=libdir kermes)/libkermes.a \
        $(pkg-config --static --libs kermes | sed 's/-lkermes//') -o /try/fit-static && /try/fit-static >/dev/null
    [ -z "$(ldd /try/fit-static | grep kermes)" ]
    echo "    C example, shared and static"
    dpkg --purge libkermes-dev >/dev/null
fi
dpkg --purge $(dpkg-query -W -f '${Package} ' 'kermes*' libkermes0) >/dev/null 2>&1
if [ ! -e /try/develop ]; then
    list >/try/after
    diff /try/before /try/after | grep -v ld.so.cache >/try/left || true
    [ ! -s /try/left ] || { echo "left behind:" && cat /try/left && exit 1; }
    echo "    removed, nothing is left behind"
fi
[ ! -e /usr/bin/kermes ]

# The folder, where it is put, and moved.
mkdir /try/folder && tar -xzf /try/tarball.tar.gz -C /try/folder
mv /try/folder/kermes-* "/try/folder/a place"
"/try/folder/a place/bin/kermes" --version
chat "/try/folder/a place/bin/kermes"
if [ -e /try/develop ]; then
    mv "/try/folder/a place" /try/folder/there
    export PKG_CONFIG_PATH=/try/folder/there/lib/pkgconfig
    cc /try/fit.c $(pkg-config --cflags --libs kermes) -o /try/fit && /try/fit >/dev/null
    echo "    C example with the folder"
fi
SH

for suite in bullseye bookworm trixie; do
    root=$(debian_root "$suite") || skip "debootstrap cannot make $suite here"
    echo "== Debian $suite ($(chroot "$root" sh -c 'ldd --version | head -n 1'))"
    for mode in bare develop; do
        rm -rf "$root/try"
        mkdir -p "$root/try"
        cp -r "$work/older" "$root/try/"
        mkdir "$root/try/new"
        cp "$packages"/*.deb "$root/try/new/"
        cp "$packages/kermes-$version-$machine.tar.gz" "$root/try/tarball.tar.gz"
        cp models/kermes-tiny.gguf "$work/fit.c" "$work/user.sh" "$root/try/"
        use=$root
        if [ "$mode" = develop ]; then
            use=$(debian_copy "$root")
            touch "$use/try/develop"
        fi
        chroot "$use" sh /try/user.sh
        rm -rf "$root/try"
    done
done

# Certificates: a hub of ours over https, whose certificate stands in turn where each distribution keeps its
# bundle. libcurl here is Debian's, so only the folder's own look into the other places finds them.
root=$(debian_copy "${KERMES_DEBIAN_ROOTS:-$work}/bookworm")
mkdir -p "$root/proc" "$root/try" "$work/hub/us/tiny"
chroot "$root" apt-get -qq install -y --no-install-recommends libcurl4 >/dev/null 2>&1
cp models/kermes-tiny.gguf "$work/hub/us/tiny/tiny-Q8_0.gguf"
tar -xzf "$packages/kermes-$version-$machine.tar.gz" -C "$root/try"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$work/key" -out "$work/bundle" 2>/dev/null
cat "$work/key" "$work/bundle" >"$work/pem"
python3 tests/support/hub.py "$work/hub" "$work/ports" "$work/pem" 2>/dev/null &
trap 'kill $!; debian_roots_end; rm -rf "$work"' EXIT
for _ in $(seq 100); do [ -s "$work/ports" ] || sleep 0.1; done
read -r port _ <"$work/ports"
pull() {
    rm -rf "$root/try/home"
    chroot "$root" /usr/bin/env -i HOME=/try/home PATH=/usr/bin:/bin HF_ENDPOINT="https://127.0.0.1:$port" no_proxy='*' \
        sh -c "/try/kermes-$version-$machine/bin/kermes pull us/tiny --quiet" 2>&1
}
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    rm -rf "$root/etc/ssl" "$root/etc/pki"
    ! pull >"$work/said" || { echo "pulled without a certificate" && exit 1; }
    grep -q "certificate is not trusted" "$work/said" || { cat "$work/said" && exit 1; }
    mkdir -p "$(dirname "$root$bundle")"
    cp "$work/bundle" "$root$bundle"
    pull || exit 1
    echo "== certificates in $bundle"
done

# ARM, by an emulator: the folder and its sysroot's glibc 2.31.
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
arm=$packages/kermes-$version-aarch64.tar.gz
if [ -n "$qemu" ] && [ -e "$arm" ] && [ -d build/sysroot-aarch64 ]; then
    tar -xzf "$arm" -C "$work"
    run="$qemu -L build/sysroot-aarch64 $work/kermes-$version-aarch64/bin/kermes"
    $run --version
    answer=$(echo 'What is the capital of France?' | $run chat -m models/kermes-tiny.gguf --temperature 0 --quiet)
    case $answer in *Paris*) echo "== aarch64 under qemu: $answer" ;; *) echo "ARM said: $answer" && exit 1 ;; esac
else
    echo "not run: the folder for ARM, which needs gcc-aarch64-linux-gnu and qemu-user"
fi
