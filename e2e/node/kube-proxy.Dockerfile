# kube-proxy needs the iptables programs beside it; every other control-plane image is its static program alone.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends iptables nftables conntrack kmod \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*
COPY kube-proxy /usr/local/bin/kube-proxy
ENTRYPOINT ["/usr/local/bin/kube-proxy"]
