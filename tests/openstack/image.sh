#!/bin/bash
# Adds what a VM with cGPUs needs to an initramfs of busybox: image.sh INITRD BUILD OUT
#   INITRD  gzipped cpio; its init gets an address by DHCP and runs the user-data with sh
#   BUILD   folder with weft-endpoint, libcuda.so and programs/
#   OUT     the new one
# A cloud's image has the same: weft-endpoint in PATH, libcuda.so.1 in /usr/local/lib/weft.
set -euo pipefail
initrd=$(realpath "$1") build=$(realpath "$2") out=$(realpath -m "$3")
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
cd "$root"
gzip -dc "$initrd" | cpio -idm --quiet
mkdir -p usr/local/lib/weft usr/local/share/weft lib64 lib/x86_64-linux-gnu etc/profile.d
install -s "$build/weft-endpoint" bin/
install -s "$build/libcuda.so" usr/local/lib/weft/libcuda.so.1
for program in vector_add matrix_mul; do install -s "$build/programs/$program" usr/local/share/weft/; done
# The libraries that they load, where the loader looks for them.
ldd bin/weft-endpoint usr/local/lib/weft/libcuda.so.1 usr/local/share/weft/* 2>/dev/null \
    | grep -o '/lib[^ ]*' | grep -v libcuda | sort -u | while read -r library; do
    mkdir -p ".$(dirname "$library")"; cp -L "$library" ".$library"; done
find . | cpio -o -H newc --quiet | gzip -6 > "$out"
