#!/bin/bash
#SBATCH --gres=gpu:h100:2
# Nightly summaries.
srun vllm serve Qwen/Qwen2.5-32B-Instruct \
  --tensor-parallel-size 2 \
  --max-model-len 16384 \
  --max-num-seqs 64
