"""Pod networking on the nodes, and cutting a node from its control plane."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass

from e2e.engine import CLUSTER_LABEL, Engine
from e2e.failure import SetupError

POD_NETWORK = "10.244.0.0/16"
ROLE_LABEL = "io.x-k8s.kind.role"
CHAIN = "QW-PARTITION"


@dataclass(frozen=True, slots=True)
class NodeContainer:
    """A node as the engine sees it. `addresses` are its IPv4 and, where the network has it, IPv6 one.

    `whole` is false for a node that stopped, or that the engine started again: its routes and rules are gone.
    """

    name: str
    role: str
    whole: bool
    addresses: tuple[str, ...]


def node_containers(engine: Engine, cluster: str) -> list[NodeContainer]:
    """The containers of the cluster's nodes, running or not, by name."""
    label = f"label={CLUSTER_LABEL}={cluster}"
    names = engine.docker("ps", "--all", "--filter", label, "--format", "{{.Names}}").stdout.split()
    if not names:
        return []
    nodes = []
    # Fails for one that went meanwhile, and tells of the others all the same.
    for document in json.loads(engine.docker("inspect", *names, check=False).stdout or "[]"):
        networks = document["NetworkSettings"]["Networks"].values()
        addresses = [network[key] for network in networks for key in ("IPAddress", "GlobalIPv6Address")]
        nodes.append(
            NodeContainer(
                document["Name"].lstrip("/"),
                document["Config"]["Labels"].get(ROLE_LABEL, ""),
                bool(document["State"]["Running"]) and document["RestartCount"] == 0,
                tuple(address for address in addresses if address),
            )
        )
    return sorted(nodes, key=lambda node: node.name)


def conflist(pod_range: str) -> str:
    """The CNI configuration of one node: a link per pod, addresses from the node's own range."""
    plugins = [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni-ipam-state",
                "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": pod_range}]],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "queueworker", "plugins": plugins}, indent=2)


def configure_pods(engine: Engine, nodes: list[NodeContainer], ranges: dict[str, str]) -> None:
    """Give each node its CNI configuration, routes to the other nodes' pods, and masquerading to the outside.

    `ranges` is each node's `.spec.podCIDR`. Traffic between pods keeps its address, on one node and across.
    """
    for node in nodes:
        commands = [
            "set -e",
            "mkdir -p /etc/cni/net.d",
            f"cat > /etc/cni/net.d/.queueworker <<'END'\n{conflist(ranges[node.name])}\nEND",
            "mv /etc/cni/net.d/.queueworker /etc/cni/net.d/10-queueworker.conflist",
            f"rule='POSTROUTING -s {POD_NETWORK} ! -d {POD_NETWORK} -j MASQUERADE'",
            "iptables -t nat -C $rule 2>/dev/null || iptables -t nat -A $rule",
        ]
        for other in nodes:
            if other.name != node.name:
                commands.append(f"ip route replace {ranges[other.name]} via {address_of(other, version=4)}")
        engine.docker("exec", "--interactive", node.name, "sh", stdin="\n".join(commands) + "\n")


def address_of(node: NodeContainer, *, version: int) -> str:
    """The node's IPv4 or IPv6 address. Raises SetupError when it has none."""
    for address in node.addresses:
        if ipaddress.ip_address(address).version == version:
            return address
    raise SetupError(f"node {node.name}: no IPv{version} address among {', '.join(node.addresses) or 'none'}")


def partition(engine: Engine, cluster: str, node: str) -> None:
    """Drop everything between the node itself and the control plane, in both address families.

    Only what the node's own processes send and receive is dropped. Its pods' traffic is forwarded, so that a
    broker elsewhere stays reachable. Repeating it is harmless; `heal` undoes it.
    """
    nodes = node_containers(engine, cluster)
    target = _named(nodes, cluster, node)
    controllers = [one for one in nodes if one.role == "control-plane"]
    if target in controllers:
        raise SetupError(f"node {node}: is the control plane of {cluster}; name one of its workers")
    for version, program in ((4, "iptables"), (6, "ip6tables")):
        addresses = [
            address
            for one in controllers
            for address in one.addresses
            if ipaddress.ip_address(address).version == version
        ]
        if not addresses:
            continue
        lines = ["set -e", f"{program} -w -N {CHAIN} 2>/dev/null || {program} -w -F {CHAIN}"]
        for address in addresses:
            lines += [
                f"{program} -w -A {CHAIN} -d {address} -j DROP",
                f"{program} -w -A {CHAIN} -s {address} -j DROP",
            ]
        for hook in ("INPUT", "OUTPUT"):
            lines.append(
                f"{program} -w -C {hook} -j {CHAIN} 2>/dev/null || {program} -w -I {hook} 1 -j {CHAIN}"
            )
        engine.docker("exec", "--interactive", target.name, "sh", stdin="\n".join(lines) + "\n")


def heal(engine: Engine, cluster: str, node: str) -> None:
    """Undo `partition`; harmless on a node that was not cut off."""
    target = _named(node_containers(engine, cluster), cluster, node)
    lines = []
    for program in ("iptables", "ip6tables"):
        for hook in ("INPUT", "OUTPUT"):
            lines.append(f"while {program} -w -D {hook} -j {CHAIN} 2>/dev/null; do :; done")
        lines += [
            f"{program} -w -F {CHAIN} 2>/dev/null",
            f"{program} -w -X {CHAIN} 2>/dev/null",
            f"! {program} -w -S | grep -q {CHAIN} || exit 1",
        ]
    engine.docker("exec", "--interactive", target.name, "sh", stdin="\n".join([*lines, "exit 0"]) + "\n")


def _named(nodes: list[NodeContainer], cluster: str, node: str) -> NodeContainer:
    for one in nodes:
        if one.name == node:
            return one
    known = ", ".join(one.name for one in nodes) or "none"
    raise SetupError(f"node {node}: not in cluster {cluster}, whose nodes are: {known}")
