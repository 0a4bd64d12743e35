#!/bin/sh
# Runs in a virtual machine: a program before its node is started again, none meanwhile, one after.
vector_add || exit 1
echo "guest: idle"
# Another vGPU's name is refused by a node that is there, and by the machine's server else.
until WEFT_VGPU=another vector_add 2>&1 | grep -q "virtual machine's host"; do
    sleep 0.1
done
echo "guest: no node"
until said=$(vector_add 2>&1); do
    case $said in *"start the machine again"*) break ;; esac
    sleep 0.1
done
echo "$said"
