#!/bin/sh
# Runs in a virtual machine: a program that stays, and others one after the other beside it.
relay 100000000 &
while :; do
    vector_add
    sleep 0.2
done
