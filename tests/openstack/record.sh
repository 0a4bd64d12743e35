#!/bin/bash
# From nothing to the logs of docs/evaluation/cloud/openstack: record.sh [STEP…]
#   lab          lab.sh's OpenStack is built, if it is not, and started, if it does not run
#   image        a guest image with what VMs need (image.sh), flavors, and the administrator's role in the tenants' projects
#   granted reboot nova killed deployment      the scenarios of that log (run.sh); what they print is kept in $OSLAB_DIR/log
#   fake         the scenario deployment again, with more VMs than this machine can boot: on lab.sh's fake computes, where
#                everything is done but the VMs' own boot; they are started before and ended after it
#   keep         those logs, and deployment's and fake's figures and drawings, become the ones of docs/evaluation, if everything
#                came as it should in all of them; of PARTS alone, if it is set ("deployment fake")
#   down         lab.sh's OpenStack is stopped
# Without a STEP, all of them. How many VMs deployment and fake make, one number after the other: DEPLOYMENT_VMS (15; each wants
# 250 MiB and half a processor for some seconds), FAKE_VMS (15,30,45,60,75,90); and without cGPUs, beside them:
# DEPLOYMENT_PLAIN_VMS (15), FAKE_PLAIN_VMS (15,90). They are DEPLOYMENT_PACE_MS (10000) apart: with that fake takes an hour and a
# half. Needs root, debootstrap and BUILD, a folder with weft, weft-node, weft-control, weft-endpoint, gsaas, libcuda.so and
# programs/: `cargo xtask cloud openstack` builds them and calls this. Beside Debian's packages (about 300 MB, once) nothing is
# fetched. OSLAB_DIR is /var/lib/oslab.
set -euo pipefail
SELF=$(realpath "$0"); HERE=$(cd "$(dirname "$SELF")/../.." && pwd)
export OSLAB_DIR=${OSLAB_DIR:-/var/lib/oslab}
LAB=$HERE/tests/openstack/lab.sh; ROOT=$OSLAB_DIR/root; LOGS=$OSLAB_DIR/log
PARTS=${PARTS:-granted reboot nova killed deployment fake}
# What a guest of image's takes of this machine's memory, under QEMU's interpreter.
GUEST_MIB=260
die() { echo "error: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "must be root"
[[ "$SELF" != *" "* ]] || die "the path $SELF has a space in it, and run.sh takes its words apart"
inlab() { "$LAB" exec "$@"; }
tenant() { local name=$1; shift; inlab env OS_USERNAME="$name" OS_PROJECT_NAME="$name" "$@"; }
# The checkout's commit, with + if something of it was changed.
commit() { git -C "$HERE" describe --always --abbrev=12 --exclude='*' --dirty=+; }
of() { inlab openstack "$1" show "$2" -f value -c id; }

lab() {
    command -v debootstrap > /dev/null || [ -e "$OSLAB_DIR/.built" ] || die "debootstrap is missing (apt-get install debootstrap)"
    inlab true 2> /dev/null || "$LAB" up
}

image() {
    : "${BUILD:?}"
    mkdir -p "$ROOT/lab/weft"
    "$HERE/tests/openstack/image.sh" "$ROOT/lab/img/initrd.gz" "$BUILD" "$ROOT/lab/weft/initrd.gz"
    cat > "$ROOT/lab/weft/set-up.sh" << 'S'
set -euo pipefail
if openstack image show weft > /dev/null 2>&1; then openstack image delete weft weft-initrd; fi
openstack image create weft-initrd --public --disk-format ari --container-format ari --file /lab/weft/initrd.gz > /dev/null
kernel=$(openstack image show lab-kernel -f value -c id) initrd=$(openstack image show weft-initrd -f value -c id)
openstack image create weft --public --disk-format raw --container-format bare --file /lab/img/disk.raw --property kernel_id="$kernel" \
    --property ramdisk_id="$initrd" --property os_command_line='console=ttyS0 quiet panic=5' > /dev/null
flavor() { local name=$1; shift; openstack flavor show "$name" > /dev/null 2>&1 || openstack flavor create "$name" "$@" > /dev/null; }
# Only administrators may use a flavor without a disk.
flavor weft.small --vcpus 1 --ram 256 --disk 1
flavor weft.small.cgpu1 --vcpus 1 --ram 256 --disk 1 --property resources:CUSTOM_WEFT_CGPU=1
# One that no host has the disk for, and one that is more than a project's quota.
flavor weft.large --vcpus 1 --ram 256 --disk 1000000
flavor weft.huge --vcpus 64 --ram 262144 --disk 1
for tenant in tenant-a tenant-b; do openstack role add --project "$tenant" --user admin admin; done
openstack quota set --instances 100 --cores 100 --ram 100000 tenant-a
S
    cat > "$ROOT/lab/weft/placement.py" << 'P'
import sys, openstack
placement = openstack.connect().placement
def ask(path):
    return placement.request(path, "GET", headers={"OpenStack-API-Version": "placement 1.28"}, raise_exc=False)
for provider in ask(f"/resource_providers?name={sys.argv[1]}").json()["resource_providers"]:
    path = f"/resource_providers/{provider['uuid']}"
    for name, known in ask(f"{path}/inventories").json()["inventories"].items():
        used = ask(f"{path}/usages").json()["usages"].get(name, 0)
        print(f"{provider['name']}: {name} total {known['total']}, used {used}")
P
    inlab bash /lab/weft/set-up.sh
}

# The id of a network of a tenant's own, with the same addresses for each tenant.
own_network() {
    local id
    if ! id=$(tenant "$1" openstack network show own -f value -c id 2> /dev/null); then
        id=$(tenant "$1" openstack network create own -f value -c id)
        tenant "$1" openstack subnet create own --network own --subnet-range 10.99.0.0/24 > /dev/null
    fi
    echo "$id"
}

# What run.sh is to know of this cloud.
scenarios() { # scenarios LOG SCENARIO…
    local log=$1 code=0; shift
    : "${BUILD:?}"
    mkdir -p "$LOGS"
    local variable value
    while IFS='=' read -r variable value; do export "$variable=$value"; done < <("$LAB" shell-env | sed 's/^export //' | tr ' ' '\n')
    TENANT_A=$(of project tenant-a) TENANT_B=$(of project tenant-b) IMAGE=$(of image weft) NETWORK=$(of network lab-net)
    TOKEN_A=$(tenant tenant-a openstack token issue -f value -c id)
    OWN_NETWORK_A=$(own_network tenant-a) OWN_NETWORK_B=$(own_network tenant-b)
    export OWN_NETWORK_A OWN_NETWORK_B BUILD TENANT_A TENANT_B IMAGE NETWORK TOKEN_A
    export FLAVOR=weft.small HUGE=weft.large OVER_QUOTA=weft.huge
    export COMPUTE=oslab COMPUTE_NETNS=oslab UPLINK=eth-lab GPU_LISTEN=10.77.0.1:7600
    export KEYSTONE_STOP="$LAB keystone-stop" KEYSTONE_START="$LAB keystone-start" COMPUTE_REBOOT="$LAB reboot"
    export PLAIN_VM="$SELF plain-vm" PLAIN_CONSOLE="$SELF plain-console" PLAIN_DELETE="$SELF plain-delete"
    export PLAIN_BOOTS="$SELF plain-boots"
    export PLACEMENT_USAGE="$SELF placement-usage"
    "$HERE/tests/openstack/run.sh" "$@" > "$LOGS/$log.log" 2>&1 < /dev/null || code=$?
    # Names of hosts and ids of projects are this run's own; the guest repeats its script.
    sed -i -e "s/$TENANT_A/<tenant-a>/g; s/$TENANT_B/<tenant-b>/g; s/\boslab\b/<compute1>/g; s/10\.77\.0\.2\b/<controller>/g" \
        -e "s/\boslab_weft\b/<compute1>_weft/g; s|$HERE/||g" -e '/^ \{12\}\(echo \|\/usr\/local\/share\/\)/d' "$LOGS/$log.log"
    sed -i "1i commit $(commit)" "$LOGS/$log.log"
    cat "$LOGS/$log.log"
    return $code
}
granted() { scenarios granted granted refused revoked quota local networks people keystone; }
reboot() { scenarios reboot reboot; }
nova() { scenarios nova nova; }
killed() { scenarios killed killed; }

deployment() {
    local vms=${DEPLOYMENT_VMS:-15} plain=${DEPLOYMENT_PLAIN_VMS:-15} most free wanted
    most=$(tr ',' '\n' <<< "$vms,$plain" | sort -n | tail -1)
    free=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo) wanted=$((most * GUEST_MIB))
    [ "$free" -gt "$wanted" ] || die "$most VMs want $wanted MiB, and $free are free: DEPLOYMENT_VMS, DEPLOYMENT_PLAIN_VMS"
    DEPLOYMENT=$LOGS/deployment DEPLOYMENT_VMS=$vms DEPLOYMENT_PLAIN_VMS=$plain scenarios deployment deployment
}

fake() {
    local number computes=()
    for number in $(seq "${OSLAB_FAKES:-3}"); do computes+=("fake$number=oslab-fake$number"); done
    # The other scenarios need the real compute, which is out of service meanwhile.
    trap '"$LAB" fakes-down' EXIT
    "$LAB" fakes-up
    DEPLOYMENT=$LOGS/fake DEPLOYMENT_WHAT="OpenStack, ${#computes[@]} computes that boot nothing" MORE_COMPUTES="${computes[*]}" \
        DEPLOYMENT_REPEATS=${DEPLOYMENT_REPEATS:-9} DEPLOYMENT_VMS=${FAKE_VMS:-15,30,45,60,75,90} DEPLOYMENT_PLAIN_VMS=${FAKE_PLAIN_VMS:-15,90} scenarios fake deployment
    trap - EXIT
    "$LAB" fakes-down
}

keep() {
    local part; for part in $PARTS; do
        tail -1 "$LOGS/$part.log" 2> /dev/null | grep -q 'everything came as it should' || die "the run did not pass: $LOGS/$part.log"; done
    for part in $PARTS; do
        cp "$LOGS/$part.log" "$HERE/docs/evaluation/cloud/openstack/"
        case $part in deployment | fake) cp "$LOGS/$part".{json,svg} "$HERE/docs/evaluation/cloud/openstack/";; esac
    done
    echo "kept in docs/evaluation/cloud/openstack: $PARTS"
}

down() { "$LAB" down; }

# Commands of the cloud's operator, which run.sh is told of: a server of tenant B's that the control plane does not know.
plain_vm() {
    cp "$1" "$ROOT/lab/weft/plain.sh"
    tenant tenant-b openstack server create plain --flavor weft.small --image weft --nic net-id=lab-net --user-data /lab/weft/plain.sh \
        --config-drive True -f value -c id
}
# Servers of tenant A's without cGPUs.
plain_boots() {
    mkdir -p "$ROOT/lab/weft"
    cp "$HERE/tests/openstack/plain.py" "$ROOT/lab/weft/"
    tenant tenant-a python3 /lab/weft/plain.py "$@"
}
plain_console() { cat "$ROOT/var/lib/nova/instances/$1/console.log"; }
plain_delete() { tenant tenant-b openstack server delete --wait "$1"; }
placement_usage() { inlab python3 /lab/weft/placement.py oslab_weft; }

case ${1:-all} in
    plain-vm) plain_vm "$2"; exit;;
    plain-boots) shift; plain_boots "$@"; exit;;
    plain-console) plain_console "$2"; exit;;
    plain-delete) plain_delete "$2"; exit;;
    placement-usage) placement_usage; exit;;
    all) set -- lab image granted reboot nova killed deployment fake keep down;;
esac
for step in "$@"; do
    case $step in
        lab | image | granted | reboot | nova | killed | deployment | fake | keep | down) "$step";;
        *) sed -n '2,16p' "$0" >&2; exit 2;;
    esac
done
