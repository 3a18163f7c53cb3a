"""Tables of command words: which start another command, which only talk, which options take a value."""

from __future__ import annotations

from typing import Final


def _table(words: str) -> frozenset[str]:
    return frozenset(words.split())


SHELLS: Final = _table("bash sh zsh dash ash ksh")

TALK: Final = _table(
    """
    echo printf pkill pgrep kill killall grep egrep rg ps which type whereis man cat tee sed awk
    head tail git pip pip3 apt apt-get log info warn warning error die fail print say test [ [[
    alias logger read local return export assert curl wget hf huggingface-cli notify-send
    """
)
"""Commands that name vLLM without starting it."""

BAIT: Final = _table("echo printf pkill pgrep grep pip pip3")
"""Of those, the ones that may stand behind a wrapper."""

WRAPPERS: Final = _table(
    """
    srun mpirun mpiexec uv uvx hatch poetry pipenv pdm rye pixi conda mamba micromamba nsys ncu ray
    torchrun accelerate singularity apptainer kubectl lxc enroot sbatch tmux screen ssh deepspeed
    coverage py-spy scalene numactl taskset timeout sudo nice ionice chrt stdbuf xvfb-run gosu
    su-exec tini dumb-init flock systemd-run doas runuser su setpriv catchsegv strace ltrace perf
    gdb memray watch parallel xargs pm2 opentelemetry-instrument ddtrace-run proxychains4
    proxychains unshare cgexec infisical doppler op dotenv with-contenv s6-setuidgid envdir
    """
)
"""Commands whose arguments hold another command, behind options that are not worth a table each."""

TRANSPARENT: Final = _table("exec nohup setsid time command builtin unbuffer coproc then do")
"""Commands that run their arguments as they are."""

TEXT_RUNNERS: Final = _table("tmux screen ssh sbatch eval su parallel watch pm2 systemd-run")
"""Commands that take a whole command line in one word."""

DOCKER_WITH_VALUE: Final = _table(
    """
    -a --attach --add-host --annotation --blkio-weight --blkio-weight-device --cap-add --cap-drop
    --cgroup-parent --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota
    --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems
    --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops
    --device-write-bps --device-write-iops --dns --dns-option --dns-search --domainname --entrypoint
    -e --env --env-file --expose --gpus --group-add --health-cmd --health-interval --health-retries
    --health-start-interval --health-start-period --health-timeout -h --hostname --io-maxbandwidth
    --io-maxiops --ip --ip6 --ipc --isolation --kernel-memory -l --label --label-file --link
    --link-local-ip --log-driver --log-opt --mac-address -m --memory --memory-reservation
    --memory-swap --memory-swappiness --mount --name --net --network --net-alias --network-alias
    --oom-score-adj --pid --pids-limit --platform -p --publish --pull --restart --runtime
    --security-opt --shm-size --stop-signal --stop-timeout --storage-opt --sysctl --tmpfs --ulimit
    -u --user --userns --uts -v --volume --volume-driver --volumes-from -w --workdir --hooks-dir
    --arch --os --secret --pod
    """
)

KSERVE_OPTIONS: Final = _table(
    """
    --model-name --backend --model-dir --http-port --grpc-port --workers --max-threads
    --enable-docs-url --enable-latency-logging --predictor-host --predictor-protocol
    --predictor-use-ssl --predictor-request-timeout-seconds --return-probabilities
    --disable-lower-case --disable-special-tokens --tensor-input-names --return-token-type-ids
    --max-length --log-config-file --access-log-format --configure-logging --model-revision
    --enable-grpc
    """
)
"""Options of KServe's Hugging Face server, which passes the rest on to vLLM."""

TELLING_SETTINGS: Final = _table(
    """
    gpu_memory_utilization max_model_len max_num_seqs max_num_batched_tokens tensor_parallel_size
    kv_cache_dtype pipeline_parallel_size enable_prefix_caching served_model_name enforce_eager
    block_size quantization kv_transfer_config speculative_config compilation_config
    enable_expert_parallel data_parallel_size enable_chunked_prefill swap_space cpu_offload_gb
    kv_cache_memory_bytes
    """
)
"""Keys of which a YAML file must hold one to be taken for a vLLM config."""
