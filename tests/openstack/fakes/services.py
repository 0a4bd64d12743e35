"""What Nova and Neutron are to know of fake computes: services.py WHAT

alone COUNT  so many are up, and Nova makes servers on no other
empty        they have no servers
forget       they are not known, and Nova makes servers on the others
"""
import sys
import time

import openstack

CLOUD = openstack.connect()
GONE = (404,)


def ask(proxy, method, path, body=None, fine=()):
    version = "2.53" if proxy is CLOUD.compute else None
    said = proxy.request(path, method, json=body, microversion=version, raise_exc=False)
    if said.status_code in fine:
        return {}
    if said.status_code >= 400:
        sys.exit(f"{method} {path}: {said.status_code} {said.text[:300]}")
    return said.json() if said.content else {}


def is_fake(service):
    return service["host"].startswith("fake")


def services():
    return ask(CLOUD.compute, "GET", "/os-services?binary=nova-compute")["services"]


def switch(service, status):
    ask(CLOUD.compute, "PUT", f"/os-services/{service['id']}", {"status": status})


def until(limit_s, what, is_so):
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"after {limit_s} s: {what}")
        time.sleep(1)


def alone(count):
    for service in services():
        if not is_fake(service):
            switch(service, "disabled")

    def are_up():
        return sum(is_fake(one) and one["state"] == "up" for one in services()) >= count

    until(90, f"not all of {count} fake computes are up", are_up)


def empty():
    hosts = [service["host"] for service in services() if is_fake(service)]
    asked = set()

    def is_empty():
        left = []
        for host in hosts:
            left += ask(CLOUD.compute, "GET", f"/servers/detail?all_tenants=1&host={host}")["servers"]
        for server in left:
            if server["id"] not in asked:
                asked.add(server["id"])
                ask(CLOUD.compute, "DELETE", f"/servers/{server['id']}", fine=GONE)
        return not left

    until(300, "servers of fake computes are left", is_empty)


def forget():
    known = services()
    for service in known:
        if not is_fake(service):
            switch(service, "enabled")
    empty()
    for service in filter(is_fake, known):
        ask(CLOUD.compute, "DELETE", f"/os-services/{service['id']}", fine=GONE)
    for agent in ask(CLOUD.network, "GET", "/agents")["agents"]:
        if is_fake(agent):
            ask(CLOUD.network, "DELETE", f"/agents/{agent['id']}", fine=GONE)


if sys.argv[1] == "alone":
    alone(int(sys.argv[2]))
else:
    {"empty": empty, "forget": forget}[sys.argv[1]]()
