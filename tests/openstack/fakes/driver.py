"""Nova's fake driver, with what Neutron's agent and an endpoint see of a VM: its interface, in its network's bridge."""
import eventlet
import nova.conf
from nova import exception
from nova.virt import fake
from oslo_concurrency import processutils


def ip(*words, exits=(0,)):
    processutils.execute("ip", *words, check_exit_code=list(exits))


def plug(vif):
    bridge, tap = vif["network"]["bridge"], vif["devname"]
    # 2: it is there.
    ip("link", "add", "name", bridge, "type", "bridge", "forward_delay", "0", exits=(0, 2))
    ip("link", "set", bridge, "up")
    ip("tuntap", "add", "dev", tap, "mode", "tap")
    ip("link", "set", tap, "master", bridge)
    ip("link", "set", tap, "up")


class Driver(fake.FakeDriver):
    taps = {}

    def spawn(self, context, instance, *args, **kwargs):
        vifs = list(kwargs.get("network_info") or ())
        self.taps[instance.uuid] = [vif["devname"] for vif in vifs]
        awaited = [("network-vif-plugged", vif["id"]) for vif in vifs if not vif["active"]]
        limit_s = nova.conf.CONF.vif_plugging_timeout
        try:
            # A hypervisor's driver waits, too: the VM runs when its network is there.
            with self.virtapi.wait_for_instance_event(instance, awaited, deadline=limit_s):
                for vif in vifs:
                    plug(vif)
                super().spawn(context, instance, *args, **kwargs)
        except eventlet.timeout.Timeout:
            raise exception.VirtualInterfaceCreateException() from None

    def destroy(self, context, instance, network_info, *args, **kwargs):
        super().destroy(context, instance, network_info, *args, **kwargs)
        for tap in self.taps.pop(instance.uuid, ()):
            # 1: it is not there.
            ip("link", "del", tap, exits=(0, 1))
