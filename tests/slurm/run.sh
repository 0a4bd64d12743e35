#!/bin/bash
# Jobs of a real Slurm with cGPUs of a software GPU: run.sh
#
# Needs root and slurm-wlm, munge (Debian) installed, in mount, network and process namespaces of its own:
#   unshare --mount --net --pid --fork --uts --mount-proc tests/slurm/run.sh
# and BUILD, a folder with weft, weft-node, weft-control, weft-endpoint, gsaas, libcuda.so and programs/.
# Prints what it does and what came of it, and ends with 0 if everything came as it should.
set -uo pipefail
: "${BUILD:?}"; HERE=$(cd "$(dirname "$0")/../.." && pwd) BAD=0 STATE=/run/weft-test BEGUN=$(date +%s%N)
say() { printf '%7.1f s  %s\n' "$(( ($(date +%s%N) - BEGUN) / 100000000 ))e-1" "$*"; }
check() { local what=$1; shift; if "$@" > /dev/null; then say "ok      $what"; else say "FAILED  $what"; BAD=1; fi; }
until_true() { local left=$(( $1 * 10 )); shift; until "$@" > /dev/null 2>&1; do left=$((left - 1)); [ $left -gt 0 ] || return 1; sleep 0.1; done; }

network() {
    mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp; mount -t sysfs sysfs /sys 2> /dev/null
    hostname n1; ip link set lo up
    ip link add sl0 type veth peer name sl1; ip addr add 10.78.0.1/24 dev sl0; ip link set sl0 up; ip link set sl1 up
    printf '127.0.0.1 localhost\n10.78.0.1 n1\n' > /run/hosts; mount --bind /run/hosts /etc/hosts
    mkdir -p $STATE /run/bin; chmod 711 $STATE
    for program in "$BUILD"/{weft,weft-node,weft-control,weft-endpoint,gsaas}; do cp "$program" /run/bin/; done
    mkdir -p /run/lib; cp "$BUILD/libcuda.so" /run/lib/libcuda.so.1; cp -r "$BUILD/programs" /run/programs
    chmod -R a+rX /run/bin /run/lib /run/programs
}
slurm() {
    mkdir -p /run/munge /run/slurm /run/spool/{d,ctld}; chown munge /run/munge
    mkdir -p /run/weft-etc; for file in prolog epilog task-prolog; do
        # As installed, but for the folders of this test.
        sed "s|/etc/weft/slurm.conf|/run/weft-etc/slurm.conf|; s|^export PATH=.*|export PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin|" "$HERE/examples/slurm/$file" > "/run/weft-etc/$file"
        chmod 755 "/run/weft-etc/$file"; done
    printf 'GSAAS_URL=http://127.0.0.1:7610\nGSAAS_TOKEN_FILE=/run/weft-etc/slurm.token\nPROJECT=slurm\nPOOLMEM=512\nLIBRARIES=/run/lib\n' > /run/weft-etc/slurm.conf
    mkdir -p /etc/slurm; [ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1k count=1 status=none; chown munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
    cat > /etc/slurm/slurm.conf << X
ClusterName=test
SlurmctldHost=n1(10.78.0.1)
SlurmUser=root
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=/run/spool/ctld
SlurmdSpoolDir=/run/spool/d
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ReturnToService=2
SchedulerParameters=sched_interval=1
DefMemPerCPU=100
NodeName=n1 NodeAddr=10.78.0.1 CPUs=2 RealMemory=2000 Gres=weft:32 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=YES
$(sed 's|/etc/slurm/weft|/run/weft-etc|' "$HERE/examples/slurm/slurm.conf.part")
X
    echo 'Name=weft Count=32 Flags=CountOnly' > /etc/slurm/gres.conf
    printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n' > /etc/slurm/cgroup.conf
    runuser -u munge -- munged --force < /dev/null
    slurmctld -D > $STATE/ctld.log 2>&1 < /dev/null & slurmd -D > $STATE/slurmd.log 2>&1 < /dev/null &
    until_true 30 bash -c 'sinfo -h -o %T | grep -q idle' || { say "FAILED  Slurm does not start"; tail $STATE/*.log; exit 1; }
    say "$(slurmd -V), $(sinfo -h -o '%n %T %G')"
}
# control [SWEEP_S [PLACE]]: it kills itself at that place, if one is named.
control() { WEFT_CONTROL_CRASH_AT=${2:-} weft-control serve --state-dir $STATE/control --provisioner slurm --sweep-s "${1:-3600}" >> $STATE/control.log 2>&1 & CONTROL=$!; until_true 20 curl -sf http://127.0.0.1:7610/ready; }
used() { local sum=0 n; for n in $(gsaas -gpus -json | grep -o '"cgpus":[0-9]*' | cut -d: -f2); do sum=$((sum + n)); done; [ "$sum" = "$1" ]; }
as() { local user=$1; shift; timeout 60 runuser -u "$user" -- "$@"; }
no_vgpus() { ! weft --runtime-dir $STATE/node ls 2> /dev/null | grep -q cgpu-; }
has_died() { [ ! -e "/proc/$1" ] || grep -q ') Z ' "/proc/$1/stat"; }
idle() { used 0 && [ -z "$(ls /run/weft-slurm 2> /dev/null)" ]; }

network; PATH=/run/bin:$PATH
say "a node with two software GPUs, the control plane, and Slurm"
weft node --runtime-dir $STATE/node --device soft,soft --set state_dir=$STATE/node-state --set remote.listen=10.78.0.1:7600 > $STATE/node.log 2>&1 &
mkdir -p $STATE/control
weft-control token root --role admin --state-dir $STATE/control > $STATE/root.token
weft-control token slurm --role member --project slurm --state-dir $STATE/control > $STATE/slurm.token
export GSAAS_TOKEN_FILE=$STATE/root.token
slurm; mv $STATE/slurm.token /run/weft-etc/; chmod 600 /run/weft-etc/slurm.token
control; api() { curl -sS -f -X PUT -H "Authorization: Bearer $(cat $GSAAS_TOKEN_FILE)" "http://127.0.0.1:7610$1" -d "$2"; }
until_true 30 api /v1/nodes/gpu1 "{\"admin\": \"$STATE/node/admin.sock\"}"
check "the project has a quota of 4 cGPUs" api /v1/projects/slurm '{"quota": {"cgpus": 4, "memory_mib": 65536, "exclusive_gpus": 0}}'

say "-- a job with two cGPUs runs an unmodified program, as its user"
said=$(as nobody srun --gres=weft:2 sh -c 'id -un; echo "WEFT_VGPU=$WEFT_VGPU"; /run/programs/vector_add' 2>&1); echo "$said" | sed 's/^/            /'
check "it passed" grep -q 'vector_add: PASSED' <<< "$said"
check "and gave its cGPUs back" until_true 20 idle
say "-- a job without cGPUs has none"
said=$(timeout 30 srun sh -c 'echo "WEFT_SOCKET=<$WEFT_SOCKET>"'); say "   $said"; check "nothing in its environment" test "$said" = 'WEFT_SOCKET=<>'
say "-- two users' jobs at once; one cannot use the other's endpoint"
as nobody srun --gres=weft:1 sh -c 'touch /tmp/first; until [ -e /tmp/second ]; do sleep 0.1; done' & FIRST=$!
until_true 20 test -e /tmp/first; check "one cGPU is taken" used 1
folder=$(ls -d /run/weft-slurm/*)
said=$(as daemon srun sh -c "ls $folder/run; cat $folder/gateway-0; WEFT_SOCKET=$folder/run/0.sock LD_LIBRARY_PATH=/run/lib /run/programs/vector_add" 2>&1); echo "$said" | sed 's/^/            /'
check "the stranger gets nothing" bash -c '! grep -q PASSED <<< "$0"' "$said"
touch /tmp/second; chmod 666 /tmp/second; wait $FIRST; check "given back" until_true 20 idle
say "-- more than the quota: the job is cancelled, the node stays"
said=$(timeout 30 srun --gres=weft:5 true 2>&1); say "   srun ends with $?: $(tail -1 <<< "$said")"
job=$(squeue -h --states=all -o %i | sort -n | tail -1); say "   $(scontrol show job -o "$job" | grep -o 'Comment=.*' | sed 's/ [A-Z][A-Za-z]*=.*//')"
check "the node is in service" bash -c 'sinfo -h -o %T | grep -qvE "drain|down"'; check "nothing is left" until_true 20 idle
say "-- more memory than any GPU has: the job is cancelled, the node stays"
sed -i 's/^POOLMEM=.*/POOLMEM=400000/' /run/weft-etc/slurm.conf
api /v1/projects/slurm '{"quota": {"cgpus": 4, "memory_mib": 1048576, "exclusive_gpus": 0}}' > /dev/null
said=$(timeout 30 srun --gres=weft:1 true 2>&1); say "   srun ends with $?: $(tail -1 <<< "$said")"
job=$(squeue -h --states=all -o %i | sort -n | tail -1); said=$(scontrol show job -o "$job" | grep -o 'Comment=.*' | sed 's/ [A-Z][A-Za-z]*=.*//'); say "   $said"
check "it says that there is no room" grep -q 'room for 0 of 1' <<< "$said"
check "the node is in service" bash -c 'sinfo -h -o %T | grep -qvE "drain|down"'; check "nothing is left" until_true 20 idle
sed -i 's/^POOLMEM=.*/POOLMEM=512/' /run/weft-etc/slurm.conf
say "-- a job that is killed"
sbatch -Q -o /dev/null --gres=weft:2 --wrap 'sleep 1000'; until_true 20 used 2; check "two cGPUs are taken" used 2
scancel "$(squeue -h -o %i)"; check "given back" until_true 40 idle
say "-- the control plane is killed while a job runs"
sbatch -Q -o /tmp/out --gres=weft:1 --wrap 'until [ -e /tmp/go ]; do sleep 0.1; done; /run/programs/vector_add'; until_true 20 used 1
kill -9 $CONTROL; wait $CONTROL 2> /dev/null; control; touch /tmp/go
check "the job's program runs" until_true 30 grep -q PASSED /tmp/out; check "given back" until_true 20 idle
say "-- the control plane is killed at each step of making a job's cGPUs, and of taking them back"
killed_at() { # killed_at PLACE: a job begins and ends, in which the control plane dies there and is started again
    kill -9 "$CONTROL"; wait "$CONTROL" 2> /dev/null; rm -f /tmp/out3; control 3600 "$1"
    sbatch -Q -o /tmp/out3 --gres=weft:1 --wrap '/run/programs/vector_add'
    if until_true 60 has_died "$CONTROL"; then wait "$CONTROL" 2> /dev/null; else say "FAILED  it does not come to $1"; BAD=1; kill -9 "$CONTROL"; fi
    control
    check "killed $1: its program runs, and everything is given back" \
        eval 'until_true 60 grep -q PASSED /tmp/out3 && until_true 30 idle && until_true 30 no_vgpus'
}
for step in address sign create port grant rules active confirm unrule revoke terminate release; do
    for when in before after kept; do killed_at "$when:$step"; done; done
killed_at inside:grant; killed_at inside:revoke # With one node `between` is no other place than `after`.
say "-- the job's node is lost and comes back: nothing of it is left there"
sbatch -Q -o /dev/null --no-requeue --gres=weft:1 --wrap 'sleep 1000'; until_true 20 used 1
pkill -9 slurmd; pkill -9 slurmstepd; pkill -9 -f weft-slurm; pkill -9 -f 'sleep 1000'; rm -rf /run/weft-slurm
kill -9 $CONTROL; wait $CONTROL 2> /dev/null; control 1
# Slurm itself waits five minutes for a node that says nothing.
scontrol update nodename=n1 state=down reason=lost; slurmd -b -D >> $STATE/slurmd.log 2>&1 < /dev/null &
until_true 60 bash -c '[ -z "$(squeue -h)" ]'; scontrol update nodename=n1 state=resume
check "Slurm has it in service again, and no job" until_true 60 bash -c 'sinfo -h -o %T | grep -q idle && [ -z "$(squeue -h)" ]'
check "a sweep gives its cGPU back" until_true 30 used 0
said=$(as nobody srun --gres=weft:1 /run/programs/vector_add 2>&1); check "the next job runs there" grep -q PASSED <<< "$said"
check "given back" until_true 20 idle; kill -9 $CONTROL; wait $CONTROL 2> /dev/null; control
say "-- no epilog ever runs (its node is gone): the control plane asks Slurm"
sbatch -Q -o /dev/null --gres=weft:1 --wrap 'sleep 1000'; until_true 20 used 1
mv /run/weft-etc/epilog /run/weft-etc/epilog.away; printf '#!/bin/sh\nexit 0\n' > /run/weft-etc/epilog; chmod 755 /run/weft-etc/epilog
scancel "$(squeue -h -o %i)"; until_true 40 bash -c '[ -z "$(squeue -h)" ]'; check "they are still taken" used 1
kill -9 $CONTROL; wait $CONTROL 2> /dev/null; control 1; check "a sweep gives them back" until_true 30 used 0
say "-- the control plane is away when a job begins: Slurm drains the node and keeps the job"
mv /run/weft-etc/epilog.away /run/weft-etc/epilog; rm -rf /run/weft-slurm; kill -9 $CONTROL; wait $CONTROL 2> /dev/null
sbatch -Q -o /tmp/out2 --gres=weft:1 --wrap '/run/programs/vector_add'; until_true 20 bash -c 'sinfo -h -o %T | grep -q drain'
say "   node: $(sinfo -h -o '%T %E'); job: $(squeue -h -o %T)"
control; scontrol update nodename=n1 state=resume; job=$(squeue -h -o %i); scontrol release "$job" 2> /dev/null
# Slurm waits two minutes before it tries a job again.
scontrol update jobid="$job" starttime=now
check "it runs when the node is put back" until_true 150 grep -q PASSED /tmp/out2
if [ $BAD = 0 ]; then say "everything came as it should"; else say "something did not"; tail -n 5 $STATE/slurmd.log; tail -n 5 $STATE/control.log; fi
kill $(jobs -p) 2> /dev/null; exit $BAD
