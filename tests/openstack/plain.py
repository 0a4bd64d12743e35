"""How long servers without cGPUs take until they run, alone and several: plain.py REPEATS VMS PACE_MS

Prints figures with the names that `weft-control deployment` has for VMs with cGPUs. Nova is asked as often as the control
plane asks it. Every server is removed again.
"""
import json
import sys
import time

import openstack

LOOK_S, BOOT_LIMIT_S, END_LIMIT_S = 1.0, 600, 300

cloud = openstack.connect()


def known(what, name, found):
    return found.id if found else sys.exit(f"there is no {what} {name}")


SERVER = {
    "name": "plain", "config_drive": True,
    "imageRef": known("image", "weft", cloud.image.find_image("weft")),
    "flavorRef": known("flavor", "weft.small", cloud.compute.find_flavor("weft.small")),
    "networks": [{"uuid": known("network", "lab-net", cloud.network.find_network("lab-net"))}],
}


def ask(method, path, body=None, fine=()):
    said = cloud.compute.request(path, method, json=body, microversion="2.52", raise_exc=False)
    if said.status_code in fine:
        return None
    if said.status_code >= 400:
        sys.exit(f"{method} {path}: {said.status_code} {said.text[:300]}")
    return said.json() if said.content else {}


def remove(servers):
    for server in servers:
        ask("DELETE", f"/servers/{server}", fine=(404,))
    end = time.monotonic() + END_LIMIT_S
    for server in servers:
        while ask("GET", f"/servers/{server}", fine=(404,)) is not None:
            if time.monotonic() > end:
                sys.exit(f"server {server} is not gone after {END_LIMIT_S} s")
            time.sleep(0.5)


def look(server, begun):
    """Milliseconds from then, if it runs."""
    found = ask("GET", f"/servers/{server}")["server"]
    took = time.monotonic() - begun
    if found["status"] == "ERROR" or took > BOOT_LIMIT_S:
        sys.exit(f"server {server} is {found['status']} after {took:.0f} s: {found.get('fault', {}).get('message')}")
    return took * 1000 if found["status"] == "ACTIVE" else None


def boot(count, pace):
    """Milliseconds of each of so many, begun so many seconds apart, in order."""
    begun, looked, took, first = {}, {}, {}, time.monotonic()
    try:
        while len(took) < count:
            now = time.monotonic()
            if len(begun) < count and now >= first + len(begun) * pace:
                server = ask("POST", "/servers", {"server": SERVER})["server"]["id"]
                begun[server] = looked[server] = now
            for server in [one for one in begun if one not in took and now - looked[one] >= LOOK_S]:
                looked[server] = time.monotonic()
                ran = look(server, begun[server])
                if ran is not None:
                    took[server] = ran
            time.sleep(0.02)
    finally:
        remove(begun)
    return sorted(took.values())


repeats, several, pace = int(sys.argv[1]), [int(one) for one in sys.argv[2].split(",")], int(sys.argv[3]) / 1000
# The first one fills caches.
boot(1, 0)
alone = sorted(boot(1, 0)[0] for _ in range(repeats))
figures = {"boot_ms_0": alone[len(alone) // 2]}
for count in several:
    all_of_them = boot(count, pace)
    figures[f"boot_ms_median_of_{count}_vms"] = all_of_them[len(all_of_them) // 2]
    figures[f"boot_ms_longest_of_{count}_vms"] = all_of_them[-1]
print(json.dumps(figures))
