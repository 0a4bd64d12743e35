#!/bin/bash
# A real, small OpenStack (keystone glance placement nova neutron; Debian 12's packages, "Zed") in a chroot with mount, pid,
# uts, ipc and net namespaces of its own. Nothing listens on the host: the services are at 10.77.0.2, reached over one veth
# pair whose end on the host is 10.77.0.1, and no Internet is reached from inside. One compute host with libvirt and QEMU.
#   build        debootstrap and packages into $OSLAB_DIR/root      (needs Debian's packages; once)
#   up           starts everything; the first time it also makes databases, users, services, image, network, flavors
#   status       services, and their memory
#   exec C…      a command inside, with the administrator's OS_* set:  lab.sh exec openstack server list
#   shell-env    OS_* for programs of the host
#   keystone-stop, keystone-start
#   reboot       what a reboot of the compute host does: its VMs, agents, bridges and rules are gone, then agents start
#   fakes-up     starts $OSLAB_FAKES (3) compute hosts more, fake1 …, and has Nova make no VM on the real one: each is a network
#                namespace (on the host: oslab-fake1 …) with Neutron's real agent, and a nova-compute with Nova's fake driver,
#                which makes the interfaces that a hypervisor would and nothing else of VMs. None boots; all around it is real
#   fakes-down   ends them with their VMs, and Nova makes VMs on the real one again
#   down         stops everything and removes namespaces;  reset: and forgets all databases;  clean: and removes the chroot
# Environment: OSLAB_DIR (/var/lib/oslab), OSLAB_NICE (nice value of all of it), OSLAB_KVM=1 (/dev/kvm instead of QEMU's TCG)
set -euo pipefail
HERE=$(dirname "$(realpath "$0")")
LAB=${OSLAB_DIR:-/var/lib/oslab}; ROOT=$LAB/root; NS=oslab; IP=10.77.0.2; HIP=10.77.0.1; FAKES=${OSLAB_FAKES:-3}
say(){ printf '[%s] %s\n' "$(date +%T)" "$*"; }
die(){ echo "error: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "must be root"
initpid(){ local p; p=$(cat $LAB/unshare.pid 2>/dev/null) || return 1; [ -d /proc/$p ] || return 1
  grep -q oslab-init /proc/$p/cmdline 2>/dev/null || return 1
  cat /proc/$p/task/$p/children 2>/dev/null | awk '{print $1}' | grep .; }
inlab(){ local p; p=$(initpid) || die "lab is not up"; nice -n ${OSLAB_NICE:-0} nsenter -t "$p" -m -u -i -n -p -r -w env -i HOME=/root TERM=dumb LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONWARNINGS=ignore \
  OS_AUTH_URL=http://$IP:5000/v3 OS_USERNAME=admin OS_PASSWORD=lab OS_PROJECT_NAME=admin OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default OS_IDENTITY_API_VERSION=3 OS_COMPUTE_API_VERSION=2.90 OS_PLACEMENT_API_VERSION=1.39 "$@"; }

build(){
  command -v debootstrap >/dev/null || apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends debootstrap
  mkdir -p $LAB
  if [ ! -e $LAB/.base ]; then say "debootstrap"; rm -rf --one-file-system $ROOT
    debootstrap --variant=minbase --include=ca-certificates,iproute2,nftables,iptables,procps,curl,python3 bookworm $ROOT >$LAB/debootstrap.log 2>&1; touch $LAB/.base; fi
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C
  mkdir -p $ROOT/etc/apt/sources.list.d
  if ls /etc/apt/sources.list.d/*.sources >/dev/null 2>&1; then rm -f $ROOT/etc/apt/sources.list; cp /etc/apt/sources.list.d/debian*.sources $ROOT/etc/apt/sources.list.d/ 2>/dev/null || cp /etc/apt/sources.list.d/*.sources $ROOT/etc/apt/sources.list.d/; fi
  cp /etc/resolv.conf $ROOT/etc/resolv.conf
  printf '#!/bin/sh\nexit 101\n' >$ROOT/usr/sbin/policy-rc.d; chmod 755 $ROOT/usr/sbin/policy-rc.d
  printf 'APT::Install-Recommends "false";\nAcquire::Languages "none";\nDpkg::Options { "--force-confdef"; "--force-confold"; "--force-unsafe-io"; };\n' >$ROOT/etc/apt/apt.conf.d/99lab
  printf 'path-exclude=/usr/share/man/*\npath-exclude=/usr/share/doc/*\npath-exclude=/usr/share/locale/*\n' >$ROOT/etc/dpkg/dpkg.cfg.d/99lab
  say "apt (about 290 MB of packages)"
  unshare -m bash -ec "mount --bind /dev $ROOT/dev; mount -t proc proc $ROOT/proc
    chroot $ROOT apt-get update; chroot $ROOT apt-get install -y mariadb-server rabbitmq-server
    chroot $ROOT apt-get install -y python3-pymysql keystone glance-api placement-api nova-api nova-conductor nova-scheduler nova-compute neutron-server neutron-linuxbridge-agent neutron-dhcp-agent neutron-metadata-agent neutron-l3-agent python3-openstackclient uwsgi-core uwsgi-plugin-python3 genisoimage bridge-utils tcpdump iputils-ping netcat-openbsd busybox-static cpio linux-image-cloud-amd64 sudo kmod iperf3" >$LAB/apt.log 2>&1
  chroot $ROOT apt-get clean; touch $LAB/.built; say "built: $(du -sh $ROOT | cut -f1)"
}

writeconf(){
  mkdir -p $ROOT/lab/log $ROOT/etc/neutron/plugins/ml2
  cat >$ROOT/etc/hosts <<E
127.0.0.1 localhost
$IP oslab controller
E
  local AUTH="www_authenticate_uri = http://$IP:5000
auth_url = http://$IP:5000
auth_type = password
project_domain_name = Default
user_domain_name = Default
project_name = service
password = lab"
  service(){ printf '[%s]\nregion_name = RegionOne\n%s\nusername = %s\n' "$1" "$AUTH" "$1"; }
  db(){ echo "connection = mysql+pymysql://os:lab@localhost/$1?unix_socket=/run/mysqld/mysqld.sock"; }
  cat >$ROOT/etc/keystone/keystone.conf <<E
[DEFAULT]
log_file = /lab/log/keystone.log
[database]
$(db keystone)
max_pool_size = 5
[token]
provider = fernet
[identity]
password_hash_rounds = 4
[cache]
enabled = true
backend = oslo_cache.dict
E
  cat >$ROOT/etc/glance/glance-api.conf <<E
[DEFAULT]
bind_host = $IP
workers = 1
[database]
$(db glance)
[glance_store]
stores = file
default_store = file
filesystem_store_datadir = /var/lib/glance/images
[keystone_authtoken]
$AUTH
username = glance
[paste_deploy]
flavor = keystone
E
  cat >$ROOT/etc/placement/placement.conf <<E
[placement_database]
$(db placement)
[api]
auth_strategy = keystone
[keystone_authtoken]
$AUTH
username = placement
E
  cat >$ROOT/etc/nova/nova.conf <<E
[DEFAULT]
transport_url = rabbit://guest:guest@127.0.0.1:5672/
my_ip = $IP
state_path = /var/lib/nova
osapi_compute_listen = $IP
metadata_listen = $IP
osapi_compute_workers = 1
metadata_workers = 1
enabled_apis = osapi_compute,metadata
compute_driver = fake.FakeDriver
reserved_host_memory_mb = 0
cpu_allocation_ratio = 64
ram_allocation_ratio = 2
report_interval = 5
service_down_time = 30
vif_plugging_timeout = 300
resume_guests_state_on_host_boot = true
update_resources_interval = 60
[api_database]
$(db nova_api)
max_pool_size = 5
[database]
$(db nova)
max_pool_size = 5
[keystone_authtoken]
$AUTH
username = nova
[service_user]
send_service_user_token = true
$AUTH
username = nova
$(service placement)
$(service neutron)
service_metadata_proxy = true
metadata_proxy_shared_secret = lab
[glance]
region_name = RegionOne
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 20
[oslo_concurrency]
lock_path = /var/lib/nova/tmp
[vnc]
enabled = false
[libvirt]
virt_type = $([ "${OSLAB_KVM:-0}" = 1 ] && echo kvm || echo qemu)
cpu_mode = none
hw_machine_type = x86_64=pc
inject_partition = -2
[cinder]
os_region_name = RegionOne
E
  : >$ROOT/etc/nova/nova-compute.conf
  printf '[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\nhost = oslab\n' >$ROOT/etc/nova/compute-qemu.conf
  cat >$ROOT/etc/neutron/neutron.conf <<E
[DEFAULT]
bind_host = $IP
core_plugin = ml2
service_plugins = router
transport_url = rabbit://guest:guest@127.0.0.1:5672/
auth_strategy = keystone
api_workers = 1
rpc_workers = 1
rpc_state_report_workers = 0
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = true
dhcp_agents_per_network = 1
host = oslab
[experimental]
linuxbridge = true
[database]
$(db neutron)
max_pool_size = 5
[keystone_authtoken]
$AUTH
username = neutron
$(service nova)
$(service placement)
[agent]
root_helper =
report_interval = 5
[oslo_concurrency]
lock_path = /var/lib/neutron/tmp
E
  cat >$ROOT/etc/neutron/plugins/ml2/ml2_conf.ini <<E
[ml2]
type_drivers = local,flat,vxlan
tenant_network_types = vxlan
mechanism_drivers = linuxbridge
extension_drivers = port_security
[ml2_type_vxlan]
vni_ranges = 1:1000
E
  cat >$ROOT/etc/neutron/plugins/ml2/linuxbridge_agent.ini <<E
[linux_bridge]
[vxlan]
enable_vxlan = true
local_ip = $IP
l2_population = false
[securitygroup]
enable_security_group = true
firewall_driver = iptables
enable_ipset = true
[agent]
polling_interval = 1
E
  printf '[DEFAULT]\ninterface_driver = linuxbridge\ndhcp_driver = neutron.agent.linux.dhcp.Dnsmasq\nenable_isolated_metadata = true\nforce_metadata = true\nmetadata_proxy_user = root\nmetadata_proxy_group = root\n' >$ROOT/etc/neutron/dhcp_agent.ini
  printf '[DEFAULT]\nnova_metadata_host = %s\nmetadata_proxy_shared_secret = lab\nmetadata_workers = 1\n' $IP >$ROOT/etc/neutron/metadata_agent.ini
  cat >$ROOT/etc/libvirt/qemu.conf <<E
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = []
namespaces = []
E
  mkdir -p $ROOT/etc/uwsgi-lab
  cat >$ROOT/lab/init.sh <<'E'
#!/bin/bash
# PID 1 of the lab (oslab-init): mounts, then reap children until told to stop
hostname oslab
mount -t proc proc /proc; mount -t sysfs sysfs /sys 2>/dev/null; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mkdir -p /run/lock /run/netns /run/mysqld /run/libvirt /run/rabbitmq; chown mysql /run/mysqld
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts -o ptmxmode=666,newinstance 2>/dev/null; mount -t tmpfs shm /dev/shm
chmod 1777 /tmp /dev/shm
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' >/run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf
touch /run/lab-ready
trap 'exit 0' TERM INT
while :; do sleep 3600 & wait $!; done
E
  cat >$ROOT/lab/lib.sh <<E
IP=$IP
export PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1
E
  cat >>$ROOT/lab/lib.sh <<'E'
T0=$(date +%s.%N); say(){ printf '   %6.1fs %s\n' "$(awk -v a=$T0 -v b=$(date +%s.%N) 'BEGIN{print b-a}')" "$*"; }
wait_for(){ # wait_for SECONDS WHAT CMD...   (bounded)
  local n=$(( $1 * 5 )) w=$2; shift 2; while ! "$@" >/dev/null 2>&1; do n=$((n-1)); [ $n -gt 0 ] || { echo "timeout: $w" >&2; return 1; }; sleep 0.2; done; say "$w ready"; }
svc(){ local name=$1 user=$2; shift 2; ( cd /; setsid runuser -u $user -- "$@" >>/lab/log/$name.out 2>&1 </dev/null & echo $! >/run/lab-$name.pid ); }
wsgi(){ local name=$1 user=$2 port=$3 file=$4; svc $name $user uwsgi --plugins python3 --http-socket $IP:$port --wsgi-file $file --master --processes 1 --threads 4 --enable-threads --need-app --die-on-term --lazy-apps --buffer-size 65535 --add-header "Connection: close" --disable-logging --procname-prefix "$name-"; }
keystone_up(){ wsgi keystone keystone 5000 /usr/bin/keystone-wsgi-public; wait_for 60 keystone curl -fs http://$IP:5000/v3; }
compute_up(){ local nc="--config-file /etc/neutron/neutron.conf"
  svc neutron-linuxbridge root neutron-linuxbridge-agent $nc --config-file /etc/neutron/plugins/ml2/linuxbridge_agent.ini
  svc neutron-dhcp root neutron-dhcp-agent $nc --config-file /etc/neutron/dhcp_agent.ini
  svc virtlogd root virtlogd; svc libvirtd root libvirtd
  wait_for 30 libvirtd virsh -c qemu:///system version
  svc nova-compute root nova-compute --config-file /etc/nova/nova.conf --config-file /etc/nova/compute-qemu.conf; }
stop(){ local name; for name; do kill -KILL -- "-$(cat /run/lab-$name.pid)" 2>/dev/null || true; done; }
compute_down(){ local link space
  stop nova-compute neutron-linuxbridge neutron-dhcp libvirtd virtlogd
  # The lab has a pid namespace: nobody else's are seen.
  pkill -KILL qemu-system || true; pkill -KILL dnsmasq || true; pkill -KILL haproxy || true
  for space in $(ip netns list | awk '/^qdhcp/{print $1}'); do ip netns del "$space"; done
  for link in $(ls /sys/class/net); do case $link in tap*|brq*|vxlan-*) ip link del "$link" 2>/dev/null || true;; esac; done
  nft flush ruleset; }
E
  cat >$ROOT/lab/up.sh <<'E'
#!/bin/bash
set -euo pipefail; . /lab/lib.sh
for u in keystone glance placement nova neutron; do for d in /var/lib/$u /var/log/$u; do mkdir -p $d; chown -R $u:$u $d; done; chown root:$u /etc/$u /etc/$u/*.conf; chmod 755 /etc/$u; done
mkdir -p /var/lib/nova/tmp /var/lib/nova/instances /var/lib/neutron/tmp /var/lib/glance/images; chown nova /var/lib/nova/tmp /var/lib/nova/instances; chown neutron /var/lib/neutron/tmp; chown glance /var/lib/glance/images; chmod 777 /lab/log
FIRST=0; [ -e /lab/.initialised ] || FIRST=1
# --- state: MariaDB + RabbitMQ -------------------------------------------------
[ -d /var/lib/mysql/mysql ] || mariadb-install-db --user=mysql --datadir=/var/lib/mysql >/dev/null
svc mariadb mysql mariadbd --no-defaults --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --bind-address=127.0.0.1 --innodb-buffer-pool-size=128M --performance-schema=OFF --skip-log-bin --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --max-connections=400 --pid-file=/run/mysqld/mysqld.pid --skip-name-resolve --character-set-server=utf8mb3
mkdir -p /var/lib/rabbitmq /var/log/rabbitmq; chown -R rabbitmq:rabbitmq /var/lib/rabbitmq /var/log/rabbitmq /run/rabbitmq
svc rabbitmq rabbitmq env HOME=/var/lib/rabbitmq RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_ENABLED_PLUGINS_FILE=/dev/null RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}" /usr/lib/rabbitmq/bin/rabbitmq-server
wait_for 60 mariadb mariadb -uroot -S /run/mysqld/mysqld.sock -e 'select 1'
if [ $FIRST = 1 ]; then
  { for d in keystone glance placement nova nova_api nova_cell0 neutron; do echo "CREATE DATABASE IF NOT EXISTS $d CHARACTER SET utf8mb3;"; done
    echo "CREATE USER IF NOT EXISTS 'os'@'127.0.0.1' IDENTIFIED BY 'lab'; CREATE USER IF NOT EXISTS 'os'@'localhost' IDENTIFIED BY 'lab'; GRANT ALL ON *.* TO 'os'@'127.0.0.1'; GRANT ALL ON *.* TO 'os'@'localhost'; FLUSH PRIVILEGES;"; } | mariadb -uroot -S /run/mysqld/mysqld.sock
  run(){ local u=$1 n=$2; shift 2; runuser -u $u -- "$@" >>/lab/log/db-$n.out 2>&1 || { echo "db step failed: $*"; tail -5 /lab/log/db-$n.out; exit 1; }; }
  ( run placement placement placement-manage db sync; run glance glance glance-manage db_sync; run neutron neutron neutron-db-manage --config-file /etc/neutron/neutron.conf --config-file /etc/neutron/plugins/ml2/ml2_conf.ini upgrade head; say "placement, glance, neutron schemas" ) & A=$!
  run keystone keystone keystone-manage db_sync
  keystone-manage fernet_setup --keystone-user keystone --keystone-group keystone; keystone-manage credential_setup --keystone-user keystone --keystone-group keystone
  keystone-manage bootstrap --bootstrap-password lab --bootstrap-admin-url http://$IP:5000/v3/ --bootstrap-internal-url http://$IP:5000/v3/ --bootstrap-public-url http://$IP:5000/v3/ --bootstrap-region-id RegionOne >>/lab/log/db-keystone.out 2>&1
  say "keystone schema"
  run nova nova nova-manage api_db sync
  run nova nova nova-manage cell_v2 map_cell0 --database_connection "mysql+pymysql://os:lab@localhost/nova_cell0?unix_socket=/run/mysqld/mysqld.sock"
  run nova nova nova-manage db sync
  run nova nova nova-manage cell_v2 create_cell --name cell1
  say "nova schema"; wait $A
fi
# --- APIs ----------------------------------------------------------------------
keystone_up
wsgi placement placement 8778 /usr/bin/placement-api
svc glance glance glance-api --config-file /etc/glance/glance-api.conf
wait_for 60 rabbitmq bash -c 'exec 3<>/dev/tcp/127.0.0.1/5672'
[ $FIRST = 0 ] || { python3 /lab/boot.py identity; say "users + endpoints"; }
svc nova-api nova nova-api
svc nova-conductor nova nova-conductor
svc nova-scheduler nova nova-scheduler
svc neutron-server neutron neutron-server --config-file /etc/neutron/neutron.conf --config-file /etc/neutron/plugins/ml2/ml2_conf.ini
wait_for 60 placement curl -fs http://$IP:8778/
wait_for 60 glance curl -s http://$IP:9292/versions
wait_for 90 nova-api curl -fs http://$IP:8774/
wait_for 90 neutron-server curl -fs http://$IP:9696/
# --- agents + hypervisor -------------------------------------------------------
svc neutron-metadata root neutron-metadata-agent --config-file /etc/neutron/neutron.conf --config-file /etc/neutron/metadata_agent.ini
compute_up
wait_for 120 nova-compute bash -c "[ \$(mariadb -N -uroot -S /run/mysqld/mysqld.sock nova -e \"select count(*) from compute_nodes where deleted=0\") -ge 1 ]"
nova-manage cell_v2 discover_hosts >>/lab/log/db-nova.out 2>&1 || true
wait_for 90 "neutron agents" bash -c "[ \$(mariadb -N -uroot -S /run/mysqld/mysqld.sock neutron -e \"select count(*) from agents where heartbeat_timestamp > utc_timestamp() - interval 20 second\") -ge 3 ]"
[ $FIRST = 0 ] || { python3 /lab/boot.py resources; say "image, network, flavors"; }
touch /lab/.initialised; say "UP"
E
  cat >$ROOT/lab/boot.py <<'E'
import openstack,sys,os,warnings
warnings.simplefilter("ignore")
IP=[l.split("=")[1].strip() for l in open("/lab/lib.sh") if l.startswith("IP=")][0]
c=openstack.connect(auth_url=f"http://{IP}:5000/v3",username="admin",password="lab",project_name="admin",user_domain_name="Default",project_domain_name="Default",region_name="RegionOne")
if sys.argv[1]=="identity":
    k=c.identity
    dom="default"
    svc=k.find_project("service") or k.create_project(name="service",domain_id=dom)
    roles={r.name:r for r in k.roles()}
    if "service" not in roles: roles["service"]=k.create_role(name="service")
    eps={"glance":("image",f"http://{IP}:9292"),"placement":("placement",f"http://{IP}:8778"),"nova":("compute",f"http://{IP}:8774/v2.1"),"neutron":("network",f"http://{IP}:9696")}
    for n,(t,u) in eps.items():
        us=k.find_user(n) or k.create_user(name=n,password="lab",domain_id=dom)
        for r in ("admin","service"): k.assign_project_role_to_user(svc,us,roles[r])
        s=k.find_service(n) or k.create_service(name=n,type=t)
        have={e.interface for e in k.endpoints(service_id=s.id)}
        for i in ("public","internal","admin"):
            if i not in have: k.create_endpoint(service_id=s.id,interface=i,url=u,region_id="RegionOne")
    for t in ("tenant-a","tenant-b"):                    # two ordinary tenants for isolation tests
        p=k.find_project(t) or k.create_project(name=t,domain_id=dom)
        u=k.find_user(t) or k.create_user(name=t,password="lab",domain_id=dom)
        k.assign_project_role_to_user(p,u,roles["member"])
else:
    def fl(n,v,r,d,**x):
        f=c.compute.find_flavor(n) or c.compute.create_flavor(name=n,vcpus=v,ram=r,disk=d)
        if x: c.compute.create_flavor_extra_specs(f,x)
    fl("m1.lab",1,256,1); fl("m1.nano",1,64,0)
    def img(n,f,**kw):
        i=c.image.find_image(n)
        return i or c.create_image(n,filename=f,wait=True,visibility="public",**kw)
    a=img("lab-kernel","/lab/img/vmlinuz",disk_format="aki",container_format="aki")
    r=img("lab-initrd","/lab/img/initrd.gz",disk_format="ari",container_format="ari")
    img("lab","/lab/img/disk.raw",disk_format="raw",container_format="bare",kernel_id=a.id,ramdisk_id=r.id,os_command_line="console=ttyS0 quiet panic=5")
    n=c.network.find_network("lab-net")
    if not n:
        n=c.network.create_network(name="lab-net",shared=True)
        c.network.create_subnet(network_id=n.id,name="lab-sub",ip_version=4,cidr="10.200.0.0/24",gateway_ip="10.200.0.1",enable_dhcp=True)
E
  cat >$ROOT/lab/mkimg.sh <<'E'
#!/bin/bash
# a cirros-like guest: Debian cloud kernel + busybox initramfs. It brings eth0 up by DHCP, reads
# config-drive or http metadata, runs user_data if it is a shell script, and prints everything on ttyS0.
set -e; mkdir -p /lab/img; cd /lab/img; [ -s initrd.gz ] && exit 0
K=$(ls /lib/modules | sort -V | tail -1); cp /boot/vmlinuz-$K vmlinuz
rm -rf rd; mkdir -p rd/{bin,proc,sys,dev,tmp,etc,mnt,run,lib/modules}; cp /bin/busybox rd/bin/; for a in $(rd/bin/busybox --list); do [ $a = busybox ] || ln -sf busybox rd/bin/$a; done
for m in virtio_pci virtio_blk virtio_net virtio_rng vfat isofs sr_mod ata_piix ext4 nls_ascii nls_cp437 nls_utf8; do
  modprobe -S $K -a --show-depends $m 2>/dev/null | awk '$1=="insmod"{print $2}'; done | awk '!s[$0]++' >mods
printf 'hosts: files\n' >rd/etc/nsswitch.conf; printf '127.0.0.1 localhost\n' >rd/etc/hosts
: >rd/lib/modules/order; while read f; do cp "$f" rd/lib/modules/; basename "$f" >>rd/lib/modules/order; done <mods
cat >rd/udhcpc.sh <<'X'
#!/bin/sh
case $1 in bound|renew) ip addr flush dev $interface; ip addr add $ip/${mask:-24} dev $interface; [ -n "$router" ] && ip route replace default via ${router%% *} dev $interface
 set -- $staticroutes; while [ $# -ge 2 ]; do [ "$2" = 0.0.0.0 ] && ip route replace $1 dev $interface || ip route replace $1 via $2 dev $interface 2>/dev/null; shift 2; done;; esac
X
cat >rd/init <<'X'
#!/bin/sh
export PATH=/bin; mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
exec >/dev/console 2>&1
for m in $(cat /lib/modules/order); do insmod /lib/modules/$m 2>/dev/null; done
echo "LABVM kernel up $(cut -d' ' -f1 /proc/uptime)s"
ip link set lo up; ip link set eth0 up; chmod +x /udhcpc.sh
udhcpc -i eth0 -s /udhcpc.sh -n -q -t 8 -T 2 -O staticroutes >/dev/null 2>&1 && echo "LABVM dhcp $(ip -4 -o addr show eth0 | awk '{print $4}') $(cut -d' ' -f1 /proc/uptime)s"
UD=; for d in /dev/sr0 /dev/vdb /dev/vda; do [ -b $d ] || continue; mount -o ro $d /mnt 2>/dev/null || continue; [ -d /mnt/openstack ] && { cp -r /mnt/openstack /tmp/cd; echo "LABVM config-drive $d"; UD=/tmp/cd/latest/user_data; SRC=configdrive; }; umount /mnt; done
if [ ! -f "$UD" ]; then timeout 15 wget -q -O /tmp/ud http://169.254.169.254/openstack/latest/user_data && { UD=/tmp/ud; echo "LABVM http metadata user_data"; }; fi
if [ -f "$UD" ]; then echo "LABVM user_data from $UD"; cat $UD; sh $UD; fi
echo "LABVM ready $(cut -d' ' -f1 /proc/uptime)s"
while :; do sleep 3600; done
X
chmod +x rd/init; (cd rd && find . | cpio -o -H newc 2>/dev/null | gzip -6) >initrd.gz; truncate -s 1M disk.raw; ls -l vmlinuz initrd.gz
E
  chmod 755 $ROOT/lab/*.sh
}

up(){
  [ -e $LAB/.built ] || build
  initpid >/dev/null 2>&1 && die "already up"
  writeconf
  { unshare -m bash -ec "mount -t proc proc $ROOT/proc; chroot $ROOT /lab/mkimg.sh" >$LAB/mkimg.log 2>&1 || die "mkimg: $(tail -1 $LAB/mkimg.log)"; }
  ip netns add $NS; ip -n $NS link set lo up
  ip link add oslab-h type veth peer name eth-lab netns $NS; ip addr add $HIP/30 dev oslab-h; ip link set oslab-h up
  ip -n $NS addr add $IP/30 dev eth-lab; ip -n $NS link set eth-lab up
  setsid ip netns exec $NS unshare --mount --uts --ipc --pid --fork --kill-child bash -c \
    "mount --make-rprivate /; mount --bind $ROOT $ROOT; mount -t devtmpfs dev $ROOT/dev 2>/dev/null || mount --bind /dev $ROOT/dev; exec chroot $ROOT /bin/bash /lab/init.sh oslab-init" oslab-init </dev/null >$LAB/init.log 2>&1 &
  echo $! >$LAB/unshare.pid
  for _ in $(seq 50); do sleep 0.1; initpid >/dev/null && inlab test -e /run/lab-ready 2>/dev/null && break; done
  inlab /lab/up.sh || { echo "logs: $ROOT/lab/log"; exit 1; }
  # The databases know of fake computes that ended with an earlier run.
  if [ -e $ROOT/lab/.fakes ]; then
    inlab python3 /lab/fakes/services.py forget || die "the fake computes of an earlier run are not forgotten: $0 fakes-down"; rm -f $ROOT/lab/.fakes; fi
}

# --- compute hosts without a hypervisor ----------------------------------------
fakes(){ ip netns list | awk '{print $1}' | grep "^$NS-fake[0-9]*\$" || true; }
unname_fakes(){ local space; for space in $(fakes); do ip netns del $space; ip -n $NS link del to-${space#$NS-} 2>/dev/null || true; done; }

writefakes(){
  local i virt=$ROOT/usr/lib/python3/dist-packages/nova/virt
  [ -d $virt ] || die "Nova's drivers are not at $virt"
  mkdir -p $ROOT/lab/fakes; install -m 644 "$HERE"/fakes/{relay.py,services.py,start.sh} $ROOT/lab/fakes/
  # Nova loads drivers from its own package only.
  install -m 644 "$HERE/fakes/driver.py" $virt/lab.py
  for i in $(seq $FAKES); do
    mkdir -p $ROOT/var/lib/nova/fake$i/{tmp,instances} $ROOT/var/lib/neutron/fake$i
    cat >$ROOT/etc/nova/compute-fake$i.conf <<E
[DEFAULT]
host = fake$i
my_ip = 10.77.$i.2
compute_driver = lab.Driver
state_path = /var/lib/nova/fake$i
[oslo_concurrency]
lock_path = /var/lib/nova/fake$i/tmp
E
    printf '[DEFAULT]\nhost = fake%s\n[vxlan]\nlocal_ip = 10.77.%s.2\n[oslo_concurrency]\nlock_path = /var/lib/neutron/fake%s\n' $i $i $i >$ROOT/etc/neutron/fake$i.ini
  done
}

fakes_up(){
  local i p space
  [[ $FAKES =~ ^[1-9][0-9]?$ ]] || die "OSLAB_FAKES=$FAKES is no number from 1 to 99"
  p=$(initpid) || die "lab is not up"
  [ -z "$(fakes)" ] && [ ! -e $ROOT/lab/.fakes ] || die "there are fake computes, or what is left of some: $0 fakes-down"
  writefakes; touch $ROOT/lab/.fakes
  for i in $(seq $FAKES); do
    space=$NS-fake$i; ip netns add $space; ip -n $space link set lo up
    ip -n $NS link add to-fake$i type veth peer name eth-lab netns $space
    ip -n $NS addr add 10.77.$i.1/30 dev to-fake$i; ip -n $NS link set to-fake$i up
    ip -n $space addr add 10.77.$i.2/30 dev eth-lab; ip -n $space link set eth-lab up; ip -n $space route add default via 10.77.$i.1
    # The lab has names of namespaces of its own.
    nsenter -t "$p" -m -u -i -p -r -w --net=/run/netns/$space env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      bash -c 'ip netns attach "$0" $$' fake$i
  done
  inlab bash /lab/fakes/start.sh $FAKES || die "they did not start: see $ROOT/lab/log, nova-compute-fake1.out and neutron-linuxbridge-fake1.out"
  inlab python3 /lab/fakes/services.py alone $FAKES || die "Nova does not have them: see $ROOT/lab/log/nova-compute-fake1.out"
  say "$FAKES fake computes"
}

fakes_down(){
  local space
  if initpid >/dev/null; then
    # As long as there is somebody who removes them: without it Nova takes no host for gone that has VMs.
    if [ -e $ROOT/lab/.fakes ]; then inlab python3 /lab/fakes/services.py empty || say "VMs of fake computes are left"; fi
    # A number that is kept may be another process's by the time it is stopped again.
    for space in $(fakes); do
      inlab bash -c '. /lab/lib.sh; stop "nova-compute-$0" "neutron-linuxbridge-$0"; rm -f /run/lab-*-"$0".pid' ${space#$NS-}; done
    inlab bash -c '. /lab/lib.sh; stop relay; rm -f /run/lab-relay.pid'
    if [ -e $ROOT/lab/.fakes ]; then inlab python3 /lab/fakes/services.py forget || die "Nova or Neutron has not forgotten them"; fi
    for space in $(fakes); do inlab ip netns del ${space#$NS-} 2>/dev/null || true; done
    rm -f $ROOT/lab/.fakes
  fi
  unname_fakes; say "no fake computes"
}
down(){
  local p; if p=$(initpid); then kill -TERM "$p" 2>/dev/null || true; for _ in $(seq 50); do [ -d /proc/$p ] || break; sleep 0.1; done; [ -d /proc/$p ] && kill -KILL "$p" || true; fi
  rm -f $LAB/unshare.pid; unname_fakes; ip netns del $NS 2>/dev/null || true; ip link del oslab-h 2>/dev/null || true; say "down"
}
status(){
  inlab bash -c 'ps -eo rss=,args= | awk "{r=\$1;\$1=\"\";n=\$0;
    if(n~/mariadbd/)k=\"mariadb\";else if(n~/beam|epmd|erl_child|inet_gethost|rabbitmq/)k=\"rabbitmq\";else if(n~/keystone/)k=\"keystone\";else if(n~/placement/)k=\"placement\";else if(n~/glance/)k=\"glance\";;else if(n~/qemu-system/)k=\"guest-qemu\";else if(match(n,/(nova|neutron)-[a-z]+(-[a-z]+)?/))k=substr(n,RSTART,RLENGTH);else if(n~/privsep|rootwrap/)k=\"privsep\";else if(n~/libvirtd|virtlogd/)k=\"libvirt\";else if(n~/dnsmasq|haproxy/)k=\"dnsmasq+haproxy\";else k=\"other\";m[k]+=r;t+=r}END{for(k in m)printf \"%-26s %6.0f MB rss\n\",k,m[k]/1024;printf \"%-26s %6.0f MB rss\n\",\"TOTAL\",t/1024}" | sort'
  inlab openstack compute service list -f value -c Binary -c Host -c State; inlab openstack network agent list -f value -c Binary -c Host -c Alive; inlab openstack hypervisor list -f value -c "Hypervisor Hostname" -c State
}
case ${1:-} in
 build) build;; up) up;; down) down;; status) status;; exec) shift; inlab "$@";;
 keystone-stop) inlab bash -c '. /lab/lib.sh; stop keystone';;
 keystone-start) inlab bash -c '. /lab/lib.sh; keystone_up';;
 reboot) inlab bash -ec '. /lab/lib.sh; compute_down; compute_up';;
 fakes-up) fakes_up;; fakes-down) fakes_down;;
 reset) down; rm -f $ROOT/lab/.initialised $ROOT/lab/.fakes $ROOT/etc/libvirt/qemu/instance-*.xml; rm -rf $ROOT/var/lib/mysql $ROOT/var/lib/rabbitmq/mnesia $ROOT/var/lib/glance/images $ROOT/var/lib/nova/instances; mkdir -p $ROOT/var/lib/mysql; chroot $ROOT chown mysql:mysql /var/lib/mysql;;
 clean) down; rm -rf --one-file-system $ROOT $LAB/.base $LAB/.built;;
 shell-env) printf 'export OS_AUTH_URL=http://%s:5000/v3 OS_USERNAME=admin OS_PASSWORD=lab OS_PROJECT_NAME=admin OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default OS_REGION_NAME=RegionOne\n' $IP;;
 *) sed -n 2,18p "$0"; exit 2;;
esac
