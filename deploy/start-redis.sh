#!/bin/sh
# Starts a server that requires the password in /run/secrets/redis_password. Arguments: options of the server.
#
# The password is passed on standard input, because every user can read command lines.
set -eu
password=$(cat "${REDIS_PASSWORD_FILE:-/run/secrets/redis_password}")
test -n "$password"
exec valkey-server - "$@" <<END
requirepass $password
masterauth $password
END
