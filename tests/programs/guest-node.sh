#!/bin/sh
# Runs in a virtual machine: a program on a node of the machine's own, which shares nothing with the
# host.
export WEFT_RUNTIME_DIR=/tmp/node WEFT_STATE_DIR=/tmp/state
unset WEFT_SOCKET
weft node >/tmp/node.log 2>&1 & node=$!
tries=0
until weft ls >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat /tmp/node.log; exit 1; }
    sleep 0.1
done
"$@"
status=$?
kill $node
exit $status
