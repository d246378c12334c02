"""The meanings of the settings of a controller, in one or two sentences each, for the reference page.

Keys are the names in `config.py`. As for meanings.py, a test requires a meaning for each of them and for no other.
"""

SETTINGS: dict[str, str] = {
    "dsn": "The database, as a libpq connection string. Empty: libpq's own variables and defaults.",
    "reader_dsn": "The connection string with which trainers read tables. Empty: that of `dsn` with the role "
    "tensile_reader and without the password.",
    "read_limit_bytes": "The most memory that a trainer may use for the rows of its table; the rows of larger tables "
    "are stored in a file in `rows_directory`. 0: half of the memory of the machine or its container.",
    "rows_directory": "The directory of the files for the rows of tables that exceed `read_limit_bytes` or the free "
    "memory; it must be on a disk. Empty: `rows` in `state_dir`.",
    "device": "The device that trains: `auto` is a GPU if the driver and torch have CUDA, else the processor; "
    "`cpu` is the processor; `cuda` or `cuda:1` is that GPU and no other; `emulated` is an imitation of a GPU, for "
    "tests, and `emulated:1` one of several.",
    "devices": "The number of controllers that share this machine, each with a device of its own: each one's default "
    "sizes and threads are that part of the machine's. `tensile up` starts them; with 0 (`--devices all`) it starts "
    "one for each usable GPU.",
    "capacity_bytes": "Memory of the device. Unset: the memory of the GPU, or for the processor half of the memory "
    "of the machine or its container.",
    "budget_bytes": "The part of the device's memory that all jobs may use together. Unset: the whole capacity. "
    "May be changed while the controller runs (SIGHUP).",
    "region_bytes": "The unit in which device memory is assigned to jobs; a multiple of a page.",
    "share_memory": "Whether trainers share the device's memory. Off, each trainer allocates its grant as memory "
    "of its own; for debugging.",
    "memory_directory": "The directory for the memory of the processor or the emulated device, such as /dev/shm. "
    "Empty: anonymous memory.",
    "emulate": "The GPU that the emulated device imitates.",
    "link_out_bytes_per_s": "The rate of copies from the emulated device to the host. 0: the rate of the imitated "
    "GPU, slowed down by the same factor as its computation. Other devices measure their rates.",
    "link_in_bytes_per_s": "The rate of copies from the host to the emulated device. 0: as above.",
    "host_pool_bytes": "The most host memory for swapped-out tensors; on `cpu`, the most disk space. Unset on a GPU: "
    "half of the memory that the trainers leave free.",
    "swap_directory": "On `cpu`, the directory of the file for swapped-out tensors; it must be on a disk. Empty: "
    "`swap` in `state_dir`.",
    "lease_s": "The time without a heartbeat after which other controllers take over a controller's jobs; at least "
    "three times `beat_s`.",
    "beat_s": "The time between two heartbeats of a controller, with which it also reads cancellations.",
    "poll_s": "The time after which a controller reads the queue even without a notification.",
    "spare_trainers": "Trainer processes that are started in advance, so that no job waits for a process.",
    "max_jobs": "The most jobs that a controller runs at once.",
    "entering_jobs": "The most jobs of one owner that are read and captured at once. 0: as many as the "
    "machine has cores, at least 2. Other jobs of this owner that wait for the device may have half of `max_jobs`.",
    "parked_jobs": "The most jobs that wait in host memory without device memory, because their owners paused them "
    "or the controller parked them; at most `max_jobs` - 1. Any other paused job saves a checkpoint, and its trainer "
    "ends. 0: no job leaves the device for a shorter one.",
    "policy": "The policy that plans memory: `tensile+` is this project's, `tensile` the published one; `liveness` "
    "and `vanilla` do not plan, and are for comparison.",
    "drift_threshold": "The relative change of measured latencies at which memory is planned again.",
    "sharing": "When a waiting job starts beside running jobs: `completion` if all jobs then end sooner; `any_price` "
    "as soon as any plan fits, however slow the jobs become, which is for comparison.",
    "max_slowdown": "With `completion`: the most that sharing may slow a job down, against alone with all memory.",
    "first_step_s": "With `completion`: how long a job that is ready to train waits for its first step until running "
    "jobs make way for it. They do so at once for a job with less work left.",
    "phases": "Whether jobs of one owner that run side by side may take turns with memory within their iterations, "
    "if that is predicted to be faster. Not with `strict`, and not on a GPU whose memory trainers cannot share.",
    "phases_gain": "The factor by which taking turns must be predicted to speed the jobs up before they do so.",
    "phases_s": "The time that the jobs must still be expected to run side by side before they take turns.",
    "checkpoint_s": "The least time between two checkpoints. Checkpoints take at most a tenth of the training time.",
    "checkpoint_store": "Where checkpoints are stored: `local` in files below `state_dir`; `catalog` in the "
    "database; `auto` in files, and also in the catalog while a controller of another host is alive or files "
    "cannot be written.",
    "checkpoint_catalog_s": "With `auto`: the least time between two checkpoints in the catalog.",
    "stop_grace_s": "The time between the request that a process ends and its kill.",
    "rank_address": "The address on which a trainer listens for the other ranks, if several devices train one job: "
    "loopback if all devices are of this machine, else the machine's address in a private network. The connections "
    "are not encrypted, so other addresses are refused.",
    "rank_network": "How the ranks of a job exchange gradients: `host` in host memory and over TCP, with a copy of a "
    "GPU's gradients to the host; `nccl` between the memories of GPUs by NVIDIA's NCCL, to which all ranks must be "
    "set. NCCL takes some of each GPU's memory while such a job trains. It has not run on GPUs yet.",
    "rank_timeout_s": "The time after which a rank of a job on several devices is lost that does not answer another. "
    "The job then goes on from its last checkpoint.",
    "answer_s": "The time without a sign of progress after which a trainer is killed; its job resumes from its last "
    "checkpoint.",
    "start_patience_s": "How long a starting controller waits for a database that does not answer.",
    "interrupted_s": "The most time that interruptions without its own fault may cost a job before it fails. 0: no "
    "limit.",
    "service_directory": "The directory for the socket of the prediction service, by which a database server of this "
    "machine reaches it. Empty: no socket, and no service without `service_address`.",
    "service_address": "The IP address and port at which the prediction service answers database servers of other "
    "machines by TLS, such as `10.0.0.7:7443`; port 0 takes a free one. Empty: it answers none.",
    "service_tls_directory": "The directory with the service's certificate `tls.crt`, its key `tls.key`, and "
    "`ca.crt`, the authority that has signed the certificates of its clients.",
    "service_host_name": "The name for which the service's certificate is valid. Empty: the IP address.",
    "service_client_name": "The name that a client's certificate must have, as common name or DNS name.",
    "state_dir": "The directory for checkpoints, logs, captured networks and swapped-out data; commands look for the "
    "embedded database in it. In a file the path is absolute; in the variable it may start at the working directory.",
    "strict": "Whether an access to swapped-out memory ends the process; for debugging the emulated device.",
    "cuda_graphs": "Whether a GPU runs an iteration as one recorded graph if its plan allows that.",
    "mps": "Whether NVIDIA's Multi-Process Service must serve the GPU, so that kernels of several jobs run side by "
    "side. `tensile up --mps` starts its daemon, and `tensile down` ends it.",
    "baseline": "Whether gradient boosting is fitted to the rows of each published version while a processor is "
    "idle, for its metrics beside those of the version.",
    "survey_s": "The device's time for measuring operators when a kind of device is used for the first time. 0: "
    "none, and how much jobs slow each other down is not measured either.",
    "survey_busy_cores": "How many processor cores other programs may keep busy while it is measured how much jobs "
    "slow each other down, if that is more than a twentieth of all cores. Beside more, the measurement is dropped, "
    "and begins again later. Set it higher on a machine that is never idle.",
    "log_level": "The least severity of logged records.",
    "log_bytes": "The size at which the logs of `tensile up` are rotated.",
    "log_files": "The number of older files of each log that are kept.",
    "torch_threads": "The number of threads of one job, which the job keeps from its first start on. 0: half of the "
    "processors on `cpu`, one elsewhere.",
}
