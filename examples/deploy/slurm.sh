#!/bin/sh
# Controllers on a Slurm cluster: one for each GPU of the allocation, until its time ends. Adapt the first lines, then
#   TENSILE_DSN="host=database.example dbname=app user=tensile_worker sslmode=verify-full" sbatch examples/deploy/slurm.sh
# Passwords are in ~/.pgpass. Jobs come from the queue in the database, so several such allocations may run at once, and
# an allocation that ends early costs its jobs no more than the time since their last checkpoints.
#SBATCH --job-name=tensile
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
# Two minutes before the end controllers get SIGTERM: they save and return their jobs, and claim no others.
#SBATCH --signal=TERM@120
set -eu

: "${TENSILE_DSN:?set it to the connection string of the database, as the role tensile_worker}"
export TENSILE_DSN
# Directories of a node go with the allocation, so checkpoints are stored in the database.
export TENSILE_CHECKPOINT_STORE="${TENSILE_CHECKPOINT_STORE:-catalog}"
# Slurm shows each task its own GPU alone. Each has a directory of its own.
exec srun --kill-on-bad-exit=0 sh -c '
  TENSILE_STATE_DIR="${TMPDIR:-/tmp}/tensile-$SLURM_JOB_ID-$SLURM_PROCID"
  export TENSILE_STATE_DIR
  mkdir -p "$TENSILE_STATE_DIR"
  exec tensile controller'
