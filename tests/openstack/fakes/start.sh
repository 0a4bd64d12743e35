#!/bin/bash
# start.sh COUNT: the services of so many fake computes, inside the lab; each has a network namespace of its name there.
set -euo pipefail; . /lab/lib.sh; hosts=$(seq -f 'fake%g' $1)
count(){ [ "$(mariadb -N -uroot -S /run/mysqld/mysqld.sock $1 -e "select count(*) from $2")" -ge $3 ]; }
svc relay root python3 /lab/fakes/relay.py 5672 $hosts
for host in $hosts; do
  wait_for 30 "RabbitMQ, from $host" ip netns exec $host bash -c 'exec 3<>/dev/tcp/127.0.0.1/5672'
  svc neutron-linuxbridge-$host root ip netns exec $host neutron-linuxbridge-agent --config-file /etc/neutron/neutron.conf \
    --config-file /etc/neutron/plugins/ml2/linuxbridge_agent.ini --config-file /etc/neutron/$host.ini
  svc nova-compute-$host root ip netns exec $host nova-compute --config-file /etc/nova/nova.conf --config-file /etc/nova/compute-$host.conf
done
wait_for 180 "$1 fake computes" count nova "compute_nodes where deleted = 0 and host like 'fake%'" $1
wait_for 90 "agents of $1 fake computes" count neutron "agents where host like 'fake%' and agent_type = 'Linux bridge agent' and heartbeat_timestamp > utc_timestamp() - interval 20 second" $1
# Nova's scheduler looks for new hosts, too; whoever is first has them.
nova-manage cell_v2 discover_hosts >>/lab/log/db-nova.out 2>&1 || true
wait_for 60 "$1 fake computes in Nova's cell" count nova_api "host_mappings where host like 'fake%'" $1
