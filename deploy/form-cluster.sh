#!/bin/sh
# Makes a Cluster of six servers that do not know each other yet: three masters with a replica each. On one that is
# there already it only waits until all slots are served. Arguments: the servers, as address:port. Their password is in
# /run/secrets/redis_password.
set -eu
: "${REDISCLI_AUTH:=$(cat /run/secrets/redis_password)}"
export REDISCLI_AUTH
host=${1%:*}
port=${1##*:}

reports() {
    valkey-cli -h "$host" -p "$port" cluster info | tr -d '\r' | grep -q "^$1\$"
}

if reports cluster_known_nodes:1; then
    valkey-cli --cluster create "$@" --cluster-replicas 1 --cluster-yes
fi
until reports cluster_state:ok; do
    sleep 1
done
