#!/bin/bash
# The Containerfile, instruction by instruction as it stands, in chroots of bare Debian roots: no registry and
# no daemon are needed, and its own RUN and COPY lines are what runs. Then its entry point answers, as its
# user. Needs root, debootstrap and a mirror. KERMES_DEBIAN_ROOTS: a folder with roots to use and keep;
# KERMES_CONTAINER_CUDA=ARCHS (90a): with GPU kernels for these, where nvcc is in /usr/local/cuda.
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

# One instruction a line, those that go on with \ joined, comments gone.
instructions() {
    awk '/^#/ || /^[ \t]*$/ { next }
        { line = line $0 }
        /\\$/ { sub(/\\$/, "", line); next }
        { print line; line = "" }' Containerfile
}

declare -A vars=() # ARG and ENV of this stage
declare -A stages=()
if [ -n "${KERMES_CONTAINER_CUDA:-}" ]; then
    vars[CUDA]=1 vars[CUDA_ARCHS]=$KERMES_CONTAINER_CUDA
fi
stage= root= folder=/ user=root n=0 entry=
declare -a given=("${!vars[@]}") # build arguments go before the file's defaults
words() { # a text with its variables put in, as a builder does for all but RUN
    local text=$1 name
    for name in "${!vars[@]}"; do text=${text//\$\{$name\}/${vars[$name]}}; done
    echo "$text"
}
inside() { # inside COMMAND: in the stage, as its user, with its variables
    local name assigned=()
    for name in "${!vars[@]}"; do assigned+=("$name=${vars[$name]}"); done
    chroot --userspec="$user" "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME="$(chroot "$root" getent passwd "$user" | cut -d: -f6)" "${assigned[@]}" sh -c "cd '$folder' && $1" </dev/null
}

while IFS= read -r line; do
    echo "    $line"
    what=${line%% *} rest=${line#* }
    case $what in
        ARG)
            name=${rest%%=*}
            case " ${given[*]} " in *" $name "*) ;; *) vars[$name]=$(words "${rest#*=}") ;; esac
            ;;
        ENV) vars[${rest%%=*}]=$(words "${rest#*=}") ;;
        FROM)
            n=$((n + 1))
            stage=$n root=$work/stage$n folder=/ user=root
            case $rest in *" AS "*) stage=${rest##* AS } ;; esac
            stages[$stage]=$root
            mkdir "$root"
            tar -C "$base" --one-file-system --exclude=./proc -cf - . | tar -C "$root" -xf -
            mkdir -p "$root/proc"
            mount -t proc proc "$root/proc" && echo "$root/proc" >>"$work/mounts"
            if [ -n "${vars[CUDA_ARCHS]:-}" ] && [ "${vars[CUDA]}" = 1 ] && [ "$stage" = build ]; then
                mkdir -p "$root/usr/local/cuda"
                mount --bind -r "$(readlink -f /usr/local/cuda)" "$root/usr/local/cuda" && echo "$root/usr/local/cuda" >>"$work/mounts"
            fi
            ;;
        WORKDIR) folder=$rest && mkdir -p "$root$folder" ;;
        USER) user=$rest ;;
        RUN) inside "$rest" >"$work/log" 2>&1 || { tail -n 30 "$work/log" && echo "failed: $line" && exit 1; } ;;
        COPY)
            # shellcheck disable=SC2086 # its words
            set -- $rest
            case $1 in
                --from=*) from=${stages[${1#--from=}]}$2 to=$3 && mkdir -p "$root$to" && cp -a "$from/." "$root$to/" ;;
                *) # what .dockerignore leaves of this folder: here, what git knows
                    mkdir -p "$root$2"
                    git ls-files -z "$1" | tar --null -T - -cf - | tar -C "$root$2" -xf - ;;
            esac
            ;;
        VOLUME) [ -d "$root$rest" ] || { echo "$rest is no folder" && exit 1; } ;;
        ENTRYPOINT) entry=$(echo "$rest" | sed 's/[]["]//g; s/,/ /g') ;;
        *) echo "container: '$what' is not known to this test" && exit 1 ;;
    esac
done < <(instructions)

# As `podman run kermes chat` would, with a model in the volume.
mkdir -p "$root/data/models"
cp models/kermes-tiny.gguf "$root/data/models/"
inside "$entry --version"
answer=$(inside "echo 'What is the capital of France?' | $entry chat --temperature 0 --quiet")
case $answer in *Paris*) echo "$user says: $answer" ;; *) echo "the container said: $answer" && exit 1 ;; esac
inside "$entry doctor" || true
if [ "${vars[CUDA]}" = 1 ]; then
    inside "$entry devices --json --quiet" | tr -d '\n' | grep -q '"kernels": { *"present": true' ||
        { echo "the container has no GPU kernels" && exit 1; }
    echo "GPU kernels for ${vars[CUDA_ARCHS]} are inside"
fi
