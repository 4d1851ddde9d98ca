#!/bin/sh
# The server of infra/images/triton, started with the options of `headwater up`
# (infra/local/triton.py), other than the addresses; a test compares them.
set -eu

# All models of the repository are loaded at the start; `headwater export` loads later ones by name.
for config in /models/*/config.pbtxt; do
  if [ -f "$config" ]; then
    set -- "$@" "--load-model=$(basename "$(dirname "$config")")"
  fi
done

exec tritonserver \
  --model-repository=/models \
  --model-control-mode=explicit \
  --strict-readiness=false \
  --exit-on-error=false \
  --backend-directory=/opt/triton/server/backends \
  --grpc-address=0.0.0.0 \
  --grpc-port=8001 \
  --http-address=0.0.0.0 \
  --http-port=8000 \
  --metrics-address=0.0.0.0 \
  --metrics-port=8002 \
  --http-thread-count=2 \
  --buffer-manager-thread-count=1 \
  --pinned-memory-pool-byte-size=16777216 \
  --exit-timeout-secs=5 \
  --log-warning=true \
  --backend-config=python,shm-region-prefix-name=headwater- \
  "$@"
