#!/bin/bash
# scripts/release from a tag, twice: in two clones that lie in different folders, each compiled from nothing
# and without a compiler cache. All checksums are equal, but kermes-cuda's, which nvcc makes. Before that,
# what it refuses. Needs what scripts/release needs: Debian or Ubuntu, a mirror, pip, a cross compiler.
# KERMES_RELEASE_ARCHS, KERMES_CUDA (OFF here, unless set) as for scripts/release; KERMES_KEEP: a folder
# that the first clone's packages are copied to.
set -eu
cd "$SRC_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KERMES_CUDA=${KERMES_CUDA:-OFF} CCACHE_DISABLE=1
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER SOURCE_DATE_EPOCH
command -v dpkg-deb >/dev/null 2>&1 || { echo "skipped: Debian packages are made on Debian or Ubuntu"; exit 77; }
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || export KERMES_RELEASE_ARCHS="${KERMES_RELEASE_ARCHS:-$(uname -m)}"
version=$(sed -n 's/^project(kermes VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
fail() {
    echo "release: $1"
    exit 1
}
refused() { # refused WORDS: a release of the first clone says this and makes nothing
    (cd "$work/one" && scripts/release) >"$work/said" 2>&1 && fail "it was not refused: $1"
    grep -qF "$1" "$work/said" || { cat "$work/said" && fail "it does not say: $1"; }
    [ ! -e "$work/one/build/packages" ] || fail "a refused release made packages"
}

git clone -q . "$work/one"
git -C "$work/one" tag -d "v$version" >/dev/null 2>&1 || true
refused "this commit has no tag"
git -C "$work/one" tag v999.0
refused "the tag is v999.0, but CMakeLists.txt says $version"
git -C "$work/one" tag -d v999.0 >/dev/null
git -C "$work/one" tag "v$version"
echo more >>"$work/one/README.md"
refused "there are changes that are not committed"
git -C "$work/one" checkout -q README.md

git clone -q "$work/one" "$work/in another place"
for clone in one "in another place"; do
    began=$SECONDS
    (cd "$work/$clone" && scripts/release) >"$work/said" 2>&1 || { tail -n 30 "$work/said" && fail "no release in '$clone'"; }
    echo "$clone: $(wc -l <"$work/$clone/build/packages/SHA256SUMS") files in $((SECONDS - began)) s"
    # Debian 11's libraries are fetched once.
    [ "$clone" != one ] || { mkdir -p "$work/in another place/build" && cp -a "$work"/one/build/sysroot-* "$work/in another place/build/"; }
done
(cd "$work/one/build/packages" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS are not those of the files"
for clone in one "in another place"; do grep -v ' kermes-cuda_' "$work/$clone/build/packages/SHA256SUMS" >"$work/$clone.sums"; done
diff "$work/one.sums" "$work/in another place.sums" || fail "two releases of the same tag differ"
cat "$work/one.sums"
[ -z "${KERMES_KEEP:-}" ] || { mkdir -p "$KERMES_KEEP" && cp "$work"/one/build/packages/* "$KERMES_KEEP/"; }
