#!/bin/sh
# Makes the secrets etcd-server and etcd-client as YAML on standard output, with openssl, for clusters without
# cert-manager: make.sh | kubectl apply -n elastic -f -
# The authority's key is not kept: to add or renew certificates, make all anew.
set -eu
command -v openssl >/dev/null || {
  echo "openssl is not installed (Debian: apt-get install openssl)" >&2
  exit 69
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 077
cd "$work"
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -subj /CN=etcd-ca -days 3650 -out ca.crt
issue() { # name, common name, extensions
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
  printf '%s\n' "$3" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$1.ext" -out "$1.crt" \
    2>/dev/null
  cat <<SECRET
---
apiVersion: v1
kind: Secret
metadata:
  name: $1
type: kubernetes.io/tls
data:
  ca.crt: $(base64 -w0 ca.crt)
  tls.crt: $(base64 -w0 "$1.crt")
  tls.key: $(base64 -w0 "$1.key")
SECRET
}
issue etcd-server etcd "extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:etcd,DNS:etcd-0.etcd,DNS:etcd-1.etcd,DNS:etcd-2.etcd,DNS:localhost,IP:127.0.0.1"
issue etcd-client training extendedKeyUsage=clientAuth
