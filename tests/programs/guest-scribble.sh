#!/bin/sh
# Runs in a virtual machine as root: programs lose their sessions while somebody writes all over the
# region, and none of them may hang.
region=$(weft-guest devices | sed -n 's/^region: //p')
relay 100000 & sleep 0.3
scribble 2 "$region"
wait $!
echo "relay ended with $?"
timeout 60 vector_add
echo "vector_add ended with $?"
