#!/bin/bash
# From nothing to docs/evaluation/cloud/slurm/run.log: record.sh [STEP…]
#   build    Debian 12 with slurm-wlm and munge in $SLURMLAB_DIR/root (debootstrap; needs Debian's packages, once)
#   run      run.sh in it, in namespaces of its own; what it prints is kept in $SLURMLAB_DIR/run.log
#   keep     that log becomes the one of docs/evaluation, if everything came as it should
# Without a STEP, all of them. Needs root and BUILD, a folder with weft, weft-node, weft-control, weft-endpoint, gsaas,
# libcuda.so and programs/: `cargo xtask cloud slurm` builds them and calls this.
set -euo pipefail
HERE=$(cd "$(dirname "$0")/../.." && pwd); LAB=${SLURMLAB_DIR:-/var/lib/slurmlab}; ROOT=$LAB/root
die() { echo "error: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "must be root"
# For how long a run may take.
LIMIT=900

build() {
    [ ! -e "$LAB/.built" ] || return 0
    command -v debootstrap > /dev/null || die "debootstrap is missing (apt-get install debootstrap)"
    mkdir -p "$LAB"; rm -rf --one-file-system "$ROOT"
    debootstrap --variant=minbase --include=ca-certificates,iproute2,procps,curl,slurm-wlm,munge bookworm "$ROOT" \
        > "$LAB/debootstrap.log" 2>&1 || die "debootstrap: $(tail -1 "$LAB/debootstrap.log")"
    # Where a file is put over it.
    : >> "$ROOT/etc/hosts"
    touch "$LAB/.built"
}

run() {
    : "${BUILD:?}"
    local program; for program in weft weft-node weft-control weft-endpoint gsaas libcuda.so programs; do
        [ -e "$BUILD/$program" ] || die "$BUILD has no $program"; done
    [ -e "$LAB/.built" ] || die "nothing is built: record.sh build"
    mkdir -p "$ROOT"/weft/{source,build}
    # Its mounts, network and processes end with it.
    local code=0
    timeout "$LIMIT" unshare --mount --net --uts --ipc --pid --fork --kill-child bash -ec '
        root=$1; mount --make-rprivate /
        mount --bind "$root" "$root"; mount --rbind /dev "$root/dev"; mount -t proc proc "$root/proc"
        mount --bind "$2" "$root/weft/source"; mount --bind "$3" "$root/weft/build"
        # Which programs of slurm.conf run must lie below no folder that others may write.
        exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 BUILD=/weft/build \
            /bin/bash /weft/source/tests/slurm/run.sh' run "$ROOT" "$HERE" "$(realpath "$BUILD")" \
        > "$LAB/run.log" 2>&1 < /dev/null || code=$?
    sed -i "1i commit $(git -C "$HERE" describe --always --abbrev=12 --exclude='*' --dirty=+)" "$LAB/run.log"
    cat "$LAB/run.log"
    return $code
}

keep() {
    tail -1 "$LAB/run.log" | grep -q 'everything came as it should' || die "the run did not pass: $LAB/run.log"
    # Where it was built is nobody's business, nor what bash says of what was killed on purpose.
    sed "s|$HERE/||g; /: line [0-9]*: *[0-9]* Killed /d" "$LAB/run.log" > "$HERE/docs/evaluation/cloud/slurm/run.log"
    echo "kept: docs/evaluation/cloud/slurm/run.log"
}

for step in "${@:-all}"; do
    case $step in
        build | run | keep) "$step";;
        all) build; run; keep;;
        *) sed -n '2,7p' "$0" >&2; exit 2;;
    esac
done
