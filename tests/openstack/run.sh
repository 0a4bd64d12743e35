#!/bin/bash
# VMs of two tenants of a real OpenStack with cGPUs of a software GPU: run.sh [SCENARIO…]
#
# Needs root, a build (BUILD, with weft, weft-node, weft-control, weft-endpoint, gsaas), and in the environment:
#   OS_AUTH_URL …           an administrator with the role admin in the projects of both tenants
#   TENANT_A, TENANT_B      the projects' ids
#   IMAGE, NETWORK          ids; FLAVOR: a name, with FLAVOR.cgpu1 for local cGPUs; HUGE: one that fits no host,
#                           OVER_QUOTA: one that is more than Nova's quota
#   OWN_NETWORK_A, OWN_NETWORK_B   ids of networks of the tenants' own, with the same addresses
#   TOKEN_A, TOKEN_B, TOKEN_B_READER (optional)   Keystone's tokens of people of the tenants
#   COMPUTE                 name of the compute host
#   COMPUTE_NETNS, UPLINK   its network namespace on this host, and its interface to the GPU node
#   MORE_COMPUTES (optional)   more of them, NAME=NETNS each, with the same name of the interface
#   GPU_LISTEN              address:port of the GPU node that the compute host reaches
#   KEYSTONE_STOP, KEYSTONE_START, COMPUTE_REBOOT (optional)   commands of the cloud's operator
#   DEPLOYMENT              where the scenario `deployment` leaves its figures (.json) and its drawing (.svg)
#   DEPLOYMENT_WHAT         what makes its VMs, in words
#   DEPLOYMENT_VMS, DEPLOYMENT_PACE_MS   how many VMs it makes, one number after the other, and how far apart
#   DEPLOYMENT_REPEATS      how often it makes a VM with 1, 25, 50 and 75 cGPUs
#   PLAIN_BOOTS (optional)  command that, given REPEATS VMS PACE_MS, makes as many servers without cGPUs, alone and several, and
#                           prints how long they took, as figures of `weft-control deployment --baselines`
#   DEPLOYMENT_PLAIN_VMS    how many of those
# Prints what it does and what came of it, and ends with 0 if everything came as it should.
set -uo pipefail
: "${BUILD:?}" "${TENANT_A:?}" "${TENANT_B:?}" "${IMAGE:?}" "${NETWORK:?}" "${FLAVOR:?}" "${COMPUTE:?}" "${COMPUTE_NETNS:?}"
: "${UPLINK:?}" "${GPU_LISTEN:?}"
STATE=$(mktemp -d /tmp/weft-openstack.XXXXXX) BAD=0 BEGUN=$(date +%s%N)
COMPUTES="$COMPUTE=$COMPUTE_NETNS ${MORE_COMPUTES:-}"
declare -A ENDPOINTS=()
# The gateway has a user of its own, and must reach the node.
chmod 711 "$STATE"
export GSAAS_URL=http://127.0.0.1:7719 GSAAS_TOKEN_FILE=$STATE/root.token
say() { printf '%7.1f s  %s\n' "$(( ($(date +%s%N) - BEGUN) / 100000000 ))e-1" "$*"; }
check() { local what=$1; shift; if "$@" > /dev/null; then say "ok      $what"; else say "FAILED  $what"; BAD=1; fi; }
api() { local method=$1 path=$2; shift 2; curl -sS -X "$method" -H "Authorization: Bearer $(cat "$GSAAS_TOKEN_FILE")" "$GSAAS_URL$path" "$@"; }
gsaas() { "$BUILD/gsaas" "$@"; }
until_true() { local left=$(( $1 * 5 )); shift; until "$@" > /dev/null 2>&1; do left=$((left - 1)); [ $left -gt 0 ] || return 1; sleep 0.2; done; }
state() { gsaas -show -id="$1" -json | sed 's/.*"state":"\([a-z]*\)".*/\1/'; }

control() { # control [PLACE]: starts the control plane; with a place it kills itself there
    local one hosts=(); for one in $COMPUTES; do hosts+=(--host-endpoint "${one%%=*}=$STATE/host-${one%%=*}.sock"); done
    WEFT_CONTROL_CRASH_AT=${1:-} "$BUILD/weft-control" serve --state-dir "$STATE/control" --listen 127.0.0.1:7719 --provisioner openstack \
        --image "$IMAGE" --flavor "${USE_FLAVOR:-$FLAVOR}" --network "$NETWORK" "${hosts[@]}" \
        >> "$STATE/control.log" 2>&1 & CONTROL=$!
    until_true 60 curl -sf "$GSAAS_URL/ready"
}
control_end() { kill -9 "$CONTROL" 2> /dev/null; wait "$CONTROL" 2> /dev/null; }
endpoint() { # endpoint [NAME NETNS]: starts a compute host's
    local name=${1:-$COMPUTE} space=${2:-$COMPUTE_NETNS}
    ip netns exec "$space" "$BUILD/weft-endpoint" host --socket "$STATE/host-$name.sock" --state "$STATE/host-$name.json" --uplink "$UPLINK" \
        > "$STATE/endpoint-$name.ready" 2>> "$STATE/endpoint-$name.log" & ENDPOINTS[$name]=$!
    until_true 20 grep -q ready "$STATE/endpoint-$name.ready" && return
    say "FAILED  the endpoint of $name: $(tail -1 "$STATE/endpoint-$name.log")"; BAD=1
}
finish() {
    local one space
    control_end; kill "${ENDPOINTS[@]}" "$NODE" 2> /dev/null; wait "${ENDPOINTS[@]}" "$NODE" 2> /dev/null
    for one in $COMPUTES; do
        space=${one#*=}
        ip netns exec "$space" nft list tables | grep weft | while read -r _ family table; do ip netns exec "$space" nft delete table "$family" "$table"; done
    done
    [ -n "${KEEP:-}" ] && say "state in $STATE" || rm -rf "$STATE"
}
trap finish EXIT

begin() {
    "$BUILD/weft" node --runtime-dir "$STATE/node" --device "${DEVICES:-soft,soft}" --set state_dir="$STATE/node-state" --set "remote.listen=$GPU_LISTEN" \
        > "$STATE/node.log" 2>&1 & NODE=$!
    local one; for one in $COMPUTES; do endpoint "${one%%=*}" "${one#*=}"; done
    mkdir -p "$STATE/control"
    (umask 077; "$BUILD/weft-control" token root --role admin --state-dir "$STATE/control" > "$GSAAS_TOKEN_FILE")
    control
    until_true 30 test -S "$STATE/node/admin.sock"
    until_true 30 api PUT /v1/nodes/gpu1 -f -d "{\"admin\": \"$STATE/node/admin.sock\", \"host\": \"$COMPUTE\"}"
    local quota='{"quota": {"cgpus": 2, "memory_mib": 1048576, "exclusive_gpus": 1}}'
    check "projects have quotas" api PUT "/v1/projects/$TENANT_A" -f -d "$quota"
    check "of both tenants" api PUT "/v1/projects/$TENANT_B" -f -d "$quota"
    grep 'weft-control: VMs' "$STATE/control.log"
    cat > "$STATE/job.sh" << 'J'
echo "JOB cGPUs at $CGPU_0"
/usr/local/share/weft/vector_add; echo "JOB vector_add ended with $?"
J
    # What the granted VM must do, tried by one that has no grant: the address, and the other's.
    cat > "$STATE/thief.sh" << 'J'
#!/bin/sh
ip route replace 169.254.77.0/24 dev eth0
refused=0; for i in 1 2 3 4 5 6 7 8 9 10; do for n in 1 2; do
    echo | timeout 1 nc 169.254.77.$n 18515 > /dev/null 2>&1 && echo "THIEF reached 169.254.77.$n" || refused=$((refused + 1)); done; done
echo "THIEF refused $refused of 20"
J
}

launch() { # launch PROJECT OPTIONS…: a VM's id, and its state when it settled; it has CGPUS cGPUs, or one
    local project=$1; shift
    gsaas -l -ncgpus="${CGPUS:-1}" -poolmem=512 -mode=shared -project="$project" "$@"
}
printed() { gsaas -console -id="$1" | tr -d '\r' | grep -q "$2"; }
empty() { [ "$(servers)" = 0 ] && ! grep -qs tap "$STATE"/host-*.json && [ "$(gsaas -gpus -json | grep -o '"held_mib":[1-9]' | wc -l)" = 0 ] \
    && [ -z "$("$BUILD/weft" --runtime-dir "$STATE/node" ls 2> /dev/null | grep cgpu-)" ]; }
# Servers of this control plane, whatever it thinks itself.
servers() { nova "servers/detail?all_tenants=1&tags=weft" | grep -o '"weft_seal"' | wc -l; }
nova() {
    local body="{\"auth\": {\"identity\": {\"methods\": [\"password\"], \"password\": {\"user\": {\"name\": \"$OS_USERNAME\", \"domain\": {\"name\": \"Default\"},
        \"password\": \"$OS_PASSWORD\"}}}, \"scope\": {\"project\": {\"name\": \"$OS_PROJECT_NAME\", \"domain\": {\"name\": \"Default\"}}}}}" said token url
    said=$(curl -sSi -H 'content-type: application/json' -d "$body" "$OS_AUTH_URL/auth/tokens" | tr -d '\r')
    token=$(grep -i '^x-subject-token' <<< "$said" | cut -d' ' -f2)
    url=$(python3 -c 'import json,sys; t=json.loads(sys.stdin.read().split("\n\n")[-1])["token"]
print(next(e["url"] for s in t["catalog"] if s["type"]=="compute" for e in s["endpoints"] if e["interface"]=="public"))' <<< "$said")
    curl -sS -H "X-Auth-Token: $token" -H 'OpenStack-API-Version: compute 2.52' "$url/$1"
}

scenario_granted() {
    say "-- a VM of tenant A with a cGPU, one of tenant B with none of it"
    A=$(launch "$TENANT_A" -userdata="$STATE/job.sh" -name=vm-a) || { say "FAILED  launch"; BAD=1; return; }
    gsaas -show -id="$A" | sed 's/^/            /'
    check "the unmodified program runs on the cGPU" until_true 90 printed "$A" 'JOB vector_add ended with 0'
    gsaas -console -id="$A" | tr -d '\r' | grep -E 'LABVM|JOB|vector_add' | sed 's/^/            /'
}
scenario_refused() {
    # It has a cGPU of its own, and names tenant A's.
    { echo '/usr/local/share/weft/vector_add > /dev/null 2>&1; echo "THIEF its own cGPU ended with $?"'
      echo "WEFT_VGPU=cgpu-$A-0 /usr/local/share/weft/vector_add; echo \"THIEF the other one's cGPU ended with \$?\""
      cat "$STATE/thief.sh"; } > "$STATE/neighbour.sh"
    B=$(launch "$TENANT_B" -userdata="$STATE/neighbour.sh" -name=vm-b) || { say "FAILED  launch"; BAD=1; return; }
    until_true 120 printed "$B" 'THIEF refused [0-9]'
    gsaas -console -id="$B" | tr -d '\r' | grep -E 'THIEF|grant' | sed 's/^/            /'
    check "its own cGPU runs, tenant A's never does" bash -c "said=\$('$BUILD/gsaas' -console -id=$B); grep -q 'own cGPU ended with 0' <<< \"\$said\" && grep -q 'other one.s cGPU ended with [1-9]' <<< \"\$said\""
    check "no masked address but its own opens" bash -c "! '$BUILD/gsaas' -console -id=$B | grep -q 'reached 169.254.77.2'"
    gsaas -t -id="$B"
    say "   the same VM, which the control plane does not know"
    plain_vm
}
plain_vm() { # a server of tenant B's own, on the same network
    local id; id=$($PLAIN_VM "$STATE/thief.sh") || { say "FAILED  no plain VM"; BAD=1; return; }
    until_true 120 bash -c "$PLAIN_CONSOLE $id | grep -q 'THIEF refused [0-9]'"
    $PLAIN_CONSOLE "$id" | tr -d '\r' | grep -E 'THIEF (reached|refused) [0-9]' | sed 's/^/            /'
    check "a VM without a grant is refused" bash -c "$PLAIN_CONSOLE $id | grep -q 'THIEF refused 20 of 20'"
    $PLAIN_DELETE "$id"
}
scenario_revoked() {
    gsaas -t -id="$A"; check "terminated, nothing is left" until_true 30 empty
}
scenario_quota() {
    say "-- refusals"
    local said; said=$(gsaas -l -ncgpus=3 -poolmem=512 -mode=shared -project="$TENANT_A" 2>&1); local code=$?
    say "   quota: exit $code: $(head -1 <<< "$said")"; check "the quota is kept" test $code = 3
    said=$(gsaas -l -ncgpus=2 -poolmem=400000 -mode=shared -project="$TENANT_A" 2>&1); code=$?
    say "   room: exit $code: $(head -1 <<< "$said")"; check "too large is refused" test $code = 3
    check "nothing was made" empty
}
scenario_nova() {
    refused_by_nova "$HUGE" 'No valid host'
    refused_by_nova "$OVER_QUOTA" 'Quota exceeded'
}
refused_by_nova() { # refused_by_nova FLAVOR WORDS
    say "-- Nova does not make the server (flavor $1)"
    control_end; USE_FLAVOR=$1 control
    local said; said=$(launch "$TENANT_A" 2>&1); local code=$?
    say "   exit $code: $(tail -1 <<< "$said")"
    check "Nova's words are passed on" grep -q "$2" <<< "$said"
    check "nothing is left" until_true 30 empty
    control_end; control
}
scenario_local() {
    say "-- a local cGPU: Nova is told the host, and Placement counts it"
    until_true 90 placement_total
    local id; id=$(launch "$TENANT_A" -locality=local -userdata="$STATE/job.sh") || { say "FAILED  launch"; BAD=1; return; }
    check "it runs" until_true 90 printed "$id" 'JOB vector_add ended with 0'
    [ -z "${PLACEMENT_USAGE:-}" ] || say "   Placement: $($PLACEMENT_USAGE)"
    gsaas -t -id="$id"; check "nothing is left" until_true 30 empty
    [ -z "${PLACEMENT_USAGE:-}" ] || say "   Placement: $($PLACEMENT_USAGE)"
}
placement_total() { [ -z "${PLACEMENT_USAGE:-}" ] || $PLACEMENT_USAGE | grep -q total; }
scenario_keystone() {
    say "-- Keystone is down"
    local id; id=$(launch "$TENANT_A")
    $KEYSTONE_STOP; control_end; control
    local said; said=$(launch "$TENANT_A" 2>&1); say "   launch: exit $?: $(tail -1 <<< "$said")"
    if [ -n "${TOKEN_A:-}" ]; then said=$(curl -sS -H "X-Auth-Token: $TOKEN_A" "$GSAAS_URL/v1/instances"); say "   a tenant's token: $said"
        check "it is told to come back" grep -q urn:weft:busy <<< "$said"; fi
    gsaas -t -nowait -id="$id"; sleep 3; say "   terminated while it is down: $(state "$id")"
    $KEYSTONE_START; check "undone when it is back" until_true 60 empty
}
scenario_networks() {
    say "-- both tenants on networks of their own, with the same addresses"
    local a b said code
    said=$(launch "$TENANT_B" -network="$OWN_NETWORK_A" 2>&1); code=$?
    say "   B asks for A's: exit $code: $(head -1 <<< "$said")"
    check "B does not get it, and nothing is made" test "$code" = 1 -a "$(servers)" = 0
    a=$(launch "$TENANT_A" -network="$OWN_NETWORK_A" -userdata="$STATE/job.sh" -name=own-a) || { say "FAILED  launch"; BAD=1; return; }
    b=$(launch "$TENANT_B" -network="$OWN_NETWORK_B" -userdata="$STATE/job.sh" -name=own-b) || { say "FAILED  launch"; BAD=1; return; }
    check "A's program runs on its cGPU" until_true 120 printed "$a" 'JOB vector_add ended with 0'
    check "and B's" until_true 120 printed "$b" 'JOB vector_add ended with 0'
    for said in "$a" "$b"; do gsaas -console -id="$said" | tr -d '\r' | grep -m2 -E 'LABVM dhcp|JOB cGPUs' | sed 's/^/            /'; done
    gsaas -t -id="$a"; gsaas -t -id="$b"; check "nothing is left" until_true 60 empty
}
scenario_people() {
    say "-- Keystone's tokens"
    local said
    said=$(curl -sS -H "X-Auth-Token: $TOKEN_A" "$GSAAS_URL/v1/projects/$TENANT_A"); say "   A's own project: $said"; check "a member sees it" grep -q '"quota"' <<< "$said"
    said=$(curl -sS -H "X-Auth-Token: $TOKEN_A" "$GSAAS_URL/v1/projects/$TENANT_B"); check "not another's" grep -q urn:weft:not-found <<< "$said"
    said=$(curl -sS -H "X-Auth-Token: $TOKEN_A" "$GSAAS_URL/v1/nodes"); check "nor nodes" grep -q urn:weft:forbidden <<< "$said"
    said=$(curl -sS -H "X-Auth-Token: wrong" "$GSAAS_URL/v1/instances"); check "an unknown token opens nothing" grep -q urn:weft:unauthenticated <<< "$said"
}
scenario_reboot() {
    say "-- the compute host is rebooted: its VMs stop, its network is gone"
    local id; id=$(launch "$TENANT_A" -userdata="$STATE/job.sh")
    until_true 90 printed "$id" 'JOB vector_add ended with 0'
    kill -9 "${ENDPOINTS[$COMPUTE]}"; wait "${ENDPOINTS[$COMPUTE]}" 2> /dev/null
    $COMPUTE_REBOOT; endpoint
    check "the program runs again after it" until_true 180 printed "$id" 'JOB vector_add ended with 0'
    gsaas -t -id="$id"; check "nothing is left" until_true 60 empty
}
scenario_killed() {
    say "-- the control plane is killed before, after and behind every step, and within those of several parts"
    local place CGPUS=2 # of which one is made, or removed, when it is killed within
    for place in $(places address sign create port grant rules active confirm); do killed_making "$place"; done
    for place in $(places unrule revoke terminate release); do killed_removing "$place"; done
}
places() { # places STEP…: where it is killed; with one node `between` is no other place than `after`
    local step; for step in "$@"; do
        echo "before:$step" "after:$step" "kept:$step"
        case $step in grant | revoke) echo "inside:$step";; esac
    done
}
killed_making() {
    local key=$1; control_end; control "$1"
    launch "$TENANT_A" -key="$key" -nowait > /dev/null 2>&1; wait "$CONTROL" 2> /dev/null
    control; local id; id=$(launch "$TENANT_A" -key="$key" 2> /dev/null)
    local n; n=$(servers); gsaas -t -id="$id"
    if [ "$n" = 1 ] && until_true 30 empty; then say "ok      $1: one server, then nothing"; else say "FAILED  $1: $n servers, $id"; BAD=1; fi
}
killed_removing() {
    local id; control_end; control; id=$(launch "$TENANT_A" 2> /dev/null)
    control_end; control "$1"; gsaas -t -nowait -id="$id" > /dev/null 2>&1; wait "$CONTROL" 2> /dev/null
    control; if until_true 30 empty; then say "ok      $1: nothing is left"; else say "FAILED  $1: $(servers) servers"; BAD=1; fi
}

scenario_deployment() {
    say "-- how long VMs take until they are ready, part for part (GSaaS, equation 1)"
    api PUT "/v1/projects/$TENANT_A" -f -d '{"quota": {"cgpus": 128, "memory_mib": 1048576, "exclusive_gpus": 1}}' > /dev/null
    (umask 077; "$BUILD/weft-control" token deployment --role member --project "$TENANT_A" --state-dir "$STATE/control" > "$STATE/deployment.token")
    rm -f "$DEPLOYMENT".{json,svg,plain.json}
    if [ -n "${PLAIN_BOOTS:-}" ]; then
        check "servers without cGPUs ran and were removed" plain_boots
        say "   without cGPUs, in ms: $(cat "$DEPLOYMENT.plain.json")"
    fi
    check "all of them came to be ready and were removed" deployment
    check "nothing is left" until_true 60 empty
    led_everywhere
}
plain_boots() {
    $PLAIN_BOOTS "${DEPLOYMENT_REPEATS:-3}" "${DEPLOYMENT_PLAIN_VMS:-15}" "${DEPLOYMENT_PACE_MS:-10000}" > "$DEPLOYMENT.plain.json"
}
deployment() {
    local plain=(); [ ! -s "$DEPLOYMENT.plain.json" ] || plain=(--baselines "$DEPLOYMENT.plain.json")
    "$BUILD/weft-control" deployment --json --what "${DEPLOYMENT_WHAT:-OpenStack, QEMU without KVM}" --url "$GSAAS_URL" \
        --token-file "$STATE/deployment.token" --cgpus 1,25,50,75 --repeats "${DEPLOYMENT_REPEATS:-3}" --vms "${DEPLOYMENT_VMS:-15}" \
        --pace-ms "${DEPLOYMENT_PACE_MS:-10000}" --memory-mib 64 --drawing "$DEPLOYMENT.svg" "${plain[@]}" > "$DEPLOYMENT.json"
}
# Of several compute hosts each has had VMs: its endpoint has put rules in force for them.
led_everywhere() {
    local one name applied
    for one in ${MORE_COMPUTES:-}; do
        name=${one%%=*} applied=$(applied "$name") || applied=0
        say "   $name: rules put in force ${applied:-0} times"
        # One of them is its start's.
        check "VMs were on $name" test "${applied:-0}" -gt 1
    done
}
applied() { # applied NAME: how often a host's endpoint has put rules in force, but for those that somebody else had changed
    "$BUILD/weft-endpoint" metrics --socket "$STATE/host-$1.sock" |
        awk '$1 == "weft_endpoint_applied_total" {n += $2} $1 == "weft_endpoint_repaired_total" {n -= $2} END {print n}'
}

begin
for scenario in "${@:-granted}"; do "scenario_$scenario"; done
if [ $BAD = 0 ]; then say "everything came as it should"; else say "something did not"; fi
exit $BAD
