#!/bin/sh
# Runs in a virtual machine: programs one after the other, and two at once.
for program in vector_add matrix_mul reduction histogram pipeline; do
    "$program" || exit 1
done
relay 5 & first=$!
relay 5 || exit 1
wait $first || exit 1
WEFT_VGPU=another vector_add 2>&1 | grep "leave WEFT_VGPU out" || exit 1
echo "ran as $(id -u): ALL PASSED"
