#!/bin/sh
# Runs in a virtual machine: so many microseconds of kernels of each size of FairGV's Figure 2,
# launched in batches and with a wait after each.
for us in 21 51 102 172 285 391; do
    share "step_${us}us" 0 --count $(($1 / us)) || exit 1
    share "step_${us}us" 0 --count $(($1 / us)) --sync || exit 1
done
